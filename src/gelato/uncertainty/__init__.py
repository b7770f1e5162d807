"""Penalties that estimate where the model is unreliable: calibration and evaluation."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use
from gelato.uncertainty.registry import list_penalties, register_penalty

if TYPE_CHECKING:
    from gelato.uncertainty.bounds import ErrorBounds
    from gelato.uncertainty.build import PenaltyInputs, build_penalty
    from gelato.uncertainty.calibration import calibrate
    from gelato.uncertainty.conformal import Threshold, find_threshold, measure_coverage
    from gelato.uncertainty.embedded import (
        EmbeddedColumns,
        EmbeddedData,
        embed,
        embed_all,
        embed_pairs,
    )
    from gelato.uncertainty.guard import Guard, UnusualAction
    from gelato.uncertainty.judge import judge_penalties
    from gelato.uncertainty.penalty import AbstractPenalty, penalise
    from gelato.uncertainty.trust import Trust, Verdict

__all__ = [
    "AbstractPenalty",
    "EmbeddedColumns",
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
    "embed_all",
    "embed_pairs",
    "find_threshold",
    "judge_penalties",
    "list_penalties",
    "measure_coverage",
    "penalise",
    "register_penalty",
]

# Imported on first use: `gelato --help` lists penalties without waiting for JAX.
_HOMES = {
    "AbstractPenalty": "gelato.uncertainty.penalty",
    "EmbeddedColumns": "gelato.uncertainty.embedded",
    "EmbeddedData": "gelato.uncertainty.embedded",
    "ErrorBounds": "gelato.uncertainty.bounds",
    "Guard": "gelato.uncertainty.guard",
    "PenaltyInputs": "gelato.uncertainty.build",
    "Threshold": "gelato.uncertainty.conformal",
    "Trust": "gelato.uncertainty.trust",
    "UnusualAction": "gelato.uncertainty.guard",
    "Verdict": "gelato.uncertainty.trust",
    "build_penalty": "gelato.uncertainty.build",
    "calibrate": "gelato.uncertainty.calibration",
    "embed": "gelato.uncertainty.embedded",
    "embed_all": "gelato.uncertainty.embedded",
    "embed_pairs": "gelato.uncertainty.embedded",
    "find_threshold": "gelato.uncertainty.conformal",
    "judge_penalties": "gelato.uncertainty.judge",
    "measure_coverage": "gelato.uncertainty.conformal",
    "penalise": "gelato.uncertainty.penalty",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
