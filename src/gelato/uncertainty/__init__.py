"""Penalties that say where the model can be trusted, their calibration, and how well they do it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gelato.uncertainty.registry import penalty_names, register_penalty

if TYPE_CHECKING:
    from gelato.uncertainty.bounds import ErrorBounds
    from gelato.uncertainty.build import PenaltyInputs, build_penalty
    from gelato.uncertainty.calibration import calibrate
    from gelato.uncertainty.conformal import Threshold, find_threshold, measure_coverage
    from gelato.uncertainty.embedded import EmbeddedData, embed, embed_pairs
    from gelato.uncertainty.guard import Guard, UnusualAction
    from gelato.uncertainty.judge import judge_penalties
    from gelato.uncertainty.penalty import AbstractPenalty, penalise
    from gelato.uncertainty.trust import Trust, Verdict

__all__ = [
    "AbstractPenalty",
    "EmbeddedData",
    "ErrorBounds",
    "Guard",
    "PenaltyInputs",
    "Threshold",
    "Trust",
    "UnusualAction",
    "Verdict",
    "build_penalty",
    "calibrate",
    "embed",
    "embed_pairs",
    "find_threshold",
    "judge_penalties",
    "measure_coverage",
    "penalise",
    "penalty_names",
    "register_penalty",
]

# Imported on first use: `gelato --help` lists penalties without waiting for JAX.
_MODULES = {
    "AbstractPenalty": "penalty",
    "EmbeddedData": "embedded",
    "ErrorBounds": "bounds",
    "Guard": "guard",
    "PenaltyInputs": "build",
    "Threshold": "conformal",
    "Trust": "trust",
    "UnusualAction": "guard",
    "Verdict": "trust",
    "build_penalty": "build",
    "calibrate": "calibration",
    "embed": "embedded",
    "embed_pairs": "embedded",
    "find_threshold": "conformal",
    "judge_penalties": "judge",
    "measure_coverage": "conformal",
    "penalise": "penalty",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"gelato.uncertainty.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gelato.uncertainty' has no attribute {name!r}")
