"""Penalties that estimate where the model is unreliable: calibration and evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gelato.uncertainty.registry import list_penalties, register_penalty

if TYPE_CHECKING:
    from gelato.uncertainty.build import PenaltyInputs, build_penalty
    from gelato.uncertainty.calibration import calibrate
    from gelato.uncertainty.embedded import EmbeddedData, embed, embed_pairs
    from gelato.uncertainty.judge import judge_penalties
    from gelato.uncertainty.penalty import AbstractPenalty, penalise
    from gelato.uncertainty.trust import Trust, Verdict

__all__ = [
    "AbstractPenalty",
    "EmbeddedData",
    "PenaltyInputs",
    "Trust",
    "Verdict",
    "build_penalty",
    "calibrate",
    "embed",
    "embed_pairs",
    "judge_penalties",
    "list_penalties",
    "penalise",
    "register_penalty",
]

# Imported on first use: `gelato --help` lists penalties without waiting for JAX.
_MODULES = {
    "AbstractPenalty": "penalty",
    "EmbeddedData": "embedded",
    "PenaltyInputs": "build",
    "Trust": "trust",
    "Verdict": "trust",
    "build_penalty": "build",
    "calibrate": "calibration",
    "embed": "embedded",
    "embed_pairs": "embedded",
    "judge_penalties": "judge",
    "penalise": "penalty",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"gelato.uncertainty.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gelato.uncertainty' has no attribute {name!r}")
