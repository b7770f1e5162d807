"""GELATO: offline reinforcement learning that measures, along the data manifold, where its model can be trusted.

>>> import gelato
>>> data = gelato.load("hopper-medium")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gelato.envs import register
from gelato.errors import InputError

if TYPE_CHECKING:
    from gelato.data.reference import load
    from gelato.data.summary import summarise
    from gelato.data.transitions import Dataset, Standardiser, Transitions, split
    from gelato.environments import pessimistic_env
    from gelato.methods import method_for, train_preset
    from gelato.model.check import check_model
    from gelato.model.training import FittedModel, fit_model, load_model
    from gelato.pipeline import train
    from gelato.trained import evaluate_run, trained_policies
    from gelato.uncertainty.instrument import measure
    from gelato.uncertainty.trust import Trust

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "FittedModel",
    "InputError",
    "Standardiser",
    "Transitions",
    "Trust",
    "check_model",
    "evaluate_run",
    "fit_model",
    "load",
    "load_model",
    "measure",
    "method_for",
    "pessimistic_env",
    "split",
    "summarise",
    "train",
    "train_preset",
    "trained_policies",
]

# Found on first use, so that a worker that only steps a simulator, or `gelato --help`, does not wait for JAX.
_HOMES = {
    "load": "gelato.data.reference",
    "summarise": "gelato.data.summary",
    "Dataset": "gelato.data.transitions",
    "Standardiser": "gelato.data.transitions",
    "Transitions": "gelato.data.transitions",
    "split": "gelato.data.transitions",
    "FittedModel": "gelato.model.training",
    "fit_model": "gelato.model.training",
    "load_model": "gelato.model.training",
    "check_model": "gelato.model.check",
    "pessimistic_env": "gelato.environments",
    "method_for": "gelato.methods",
    "train_preset": "gelato.methods",
    "train": "gelato.pipeline",
    "evaluate_run": "gelato.trained",
    "trained_policies": "gelato.trained",
    "Trust": "gelato.uncertainty.trust",
    "measure": "gelato.uncertainty.instrument",
}

register()


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gelato' has no attribute {name!r}")
