"""Choose a policy without a simulator: estimators of returns behind one interface, and `select`."""

from gelato.selection.cross_model import CrossModel
from gelato.selection.estimate import AbstractEstimator, Estimate
from gelato.selection.evidence import Evidence, SelectSettings
from gelato.selection.fqe import FittedQ
from gelato.selection.importance import ImportanceWeighting
from gelato.selection.log import Log, make_log
from gelato.selection.policies import AbstractTarget, NetworkPolicy, stack_policies
from gelato.selection.rollouts import Judge, Rollouts, roll_out
from gelato.selection.run import Candidate, RunEstimates, choose_settings, estimate_run
from gelato.selection.select import Selection, find_selected, select
from gelato.selection.temporal import TemporalConfig
from gelato.selection.value import CommonValue, OwnValue, PathPenalty, measure_common_weight

__all__ = [
    "AbstractEstimator",
    "AbstractTarget",
    "Candidate",
    "CommonValue",
    "CrossModel",
    "Estimate",
    "Evidence",
    "FittedQ",
    "ImportanceWeighting",
    "Judge",
    "Log",
    "NetworkPolicy",
    "OwnValue",
    "PathPenalty",
    "Rollouts",
    "RunEstimates",
    "SelectSettings",
    "Selection",
    "TemporalConfig",
    "choose_settings",
    "estimate_run",
    "find_selected",
    "make_log",
    "measure_common_weight",
    "roll_out",
    "select",
    "stack_policies",
]
