"""Algorithm 1: methods as values, presets, the training program. Start with `gelato.train`."""

from gelato.training.method import Group, Method, group_methods
from gelato.training.plan import Plan, make_plan
from gelato.training.policies import TrainedPolicy, evaluate_run, trained_policies
from gelato.training.policy_trust import judge_policies
from gelato.training.presets import (
    Parts,
    TrainSettings,
    change_method,
    choose_parts,
    list_methods,
    make_grid,
    make_method,
    register_method,
    vary_method,
)
from gelato.training.program import Population, init_policies, train_block

__all__ = [
    "Group",
    "Method",
    "Parts",
    "Plan",
    "Population",
    "TrainSettings",
    "TrainedPolicy",
    "change_method",
    "choose_parts",
    "evaluate_run",
    "group_methods",
    "init_policies",
    "judge_policies",
    "list_methods",
    "make_grid",
    "make_method",
    "make_plan",
    "register_method",
    "train_block",
    "trained_policies",
    "vary_method",
]
