"""GELATO: offline reinforcement learning that knows where its model can be trusted.

import gelato

data = gelato.load("hopper-medium")
"""

from typing import TYPE_CHECKING

from gelato.errors import InputError
from gelato.lazy import import_on_use
from gelato.tasks import Task, register_task

if TYPE_CHECKING:
    from gelato.data.columns import make_dataset
    from gelato.data.reference import load
    from gelato.data.sources import register_source
    from gelato.data.summary import summarise
    from gelato.data.transitions import Dataset, Standardiser, Transitions, split
    from gelato.model.check import check_model
    from gelato.model.training import FittedModel, fit_model, load_model
    from gelato.policy.encoded_env import EncodedEnv
    from gelato.policy.evaluate import evaluate_policy
    from gelato.report.figures import register_figure
    from gelato.runs.loggers import Logger, register_logger
    from gelato.selection.select import select
    from gelato.training.environment import pessimistic_env
    from gelato.training.method import Method
    from gelato.training.policies import evaluate_run, trained_policies
    from gelato.training.presets import (
        Parts,
        TrainSettings,
        choose_parts,
        make_method,
        register_method,
        vary_method,
    )
    from gelato.training.train import train
    from gelato.uncertainty.judge import judge_penalties
    from gelato.uncertainty.registry import register_penalty
    from gelato.uncertainty.trust import Trust

__version__ = "0.2.0"
__all__ = [
    "Dataset",
    "EncodedEnv",
    "FittedModel",
    "InputError",
    "Logger",
    "Method",
    "Parts",
    "Standardiser",
    "Task",
    "TrainSettings",
    "Transitions",
    "Trust",
    "check_model",
    "choose_parts",
    "evaluate_policy",
    "evaluate_run",
    "fit_model",
    "judge_penalties",
    "load",
    "load_model",
    "make_dataset",
    "make_method",
    "pessimistic_env",
    "register_figure",
    "register_logger",
    "register_method",
    "register_penalty",
    "register_source",
    "register_task",
    "select",
    "split",
    "summarise",
    "train",
    "trained_policies",
    "vary_method",
]

# Names are imported on first use, so that workers and `gelato --help` do not wait for JAX.
_HOMES = {
    "load": "gelato.data.reference",
    "make_dataset": "gelato.data.columns",
    "register_source": "gelato.data.reference",
    "summarise": "gelato.data.summary",
    "Dataset": "gelato.data.transitions",
    "Standardiser": "gelato.data.transitions",
    "Transitions": "gelato.data.transitions",
    "split": "gelato.data.transitions",
    "FittedModel": "gelato.model.training",
    "fit_model": "gelato.model.training",
    "load_model": "gelato.model.training",
    "check_model": "gelato.model.check",
    "EncodedEnv": "gelato.policy.encoded_env",
    "evaluate_policy": "gelato.policy.evaluate",
    "register_figure": "gelato.report.figures",
    "Logger": "gelato.runs.loggers",
    "register_logger": "gelato.runs.loggers",
    "select": "gelato.selection.select",
    "pessimistic_env": "gelato.training.environment",
    "Method": "gelato.training.method",
    "Parts": "gelato.training.presets",
    "TrainSettings": "gelato.training.presets",
    "choose_parts": "gelato.training.presets",
    "make_method": "gelato.training.presets",
    "register_method": "gelato.training.presets",
    "vary_method": "gelato.training.presets",
    "train": "gelato.training.train",
    "evaluate_run": "gelato.training.policies",
    "trained_policies": "gelato.training.policies",
    "Trust": "gelato.uncertainty.trust",
    "judge_penalties": "gelato.uncertainty.judge",
    "register_penalty": "gelato.uncertainty.registry",
}


__getattr__, __dir__ = import_on_use(__name__, _HOMES)
