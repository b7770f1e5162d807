"""A method: an immutable object with a fit, penalty, agent, penalty weight and real fraction."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass

from gelato.agents.agent import AbstractAgent
from gelato.dynamics.ensemble import EnsembleFit
from gelato.dynamics.fit import AbstractFit
from gelato.errors import InputError
from gelato.runs.description import list_recorded
from gelato.uncertainty.build import Penalty, name_penalty
from gelato.uncertainty.penalty import AbstractPenalty
from gelato.uncertainty.registry import find_penalty

# Beside a penalty of this size, a reward of 1 is less than half a step of single precision.
_LARGEST_WEIGHT = 2.0**24


@dataclass(frozen=True)
class Method:
    """A combination of fit, penalty and agent to train.

    `fit` makes the dynamics that the agent imagines steps in; None means no model. `penalty` is a
    registered name or a penalty of your own, and `penalty_weight` is λ, in units of reward for a
    penalty of 1. `real_fraction` is the fraction of logged data in each batch.
    """

    name: str
    agent: AbstractAgent
    fit: AbstractFit | None = None
    penalty: Penalty = "none"
    penalty_weight: float = 0.0
    real_fraction: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise InputError(
                f"method {self.name!r}: a method name must not be empty or contain a slash"
            )
        if not isinstance(self.agent, AbstractAgent):
            raise InputError(f"method {self.name}: agent must be an AbstractAgent")
        if self.fit is not None and not isinstance(self.fit, AbstractFit):
            raise InputError(f"method {self.name}: fit must be an AbstractFit or None")
        check_penalty_weight(self.penalty_weight)
        if not 0 <= self.real_fraction <= 1:
            raise InputError(
                f"method {self.name}: real_fraction is {self.real_fraction}; "
                "it must lie between 0 and 1"
            )
        if self.fit is None and (self.real_fraction < 1 or not self.agent.reads_log):
            raise InputError(
                f"method {self.name}: without a fit there are no imagined steps; give a fit, or "
                "an agent that learns from logged data with real_fraction=1"
            )
        if self.agent.needs_ensemble and not isinstance(self.fit, EnsembleFit):
            raise InputError(
                f"method {self.name}: {type(self.agent).__name__} compares the networks of an "
                "ensemble; give fit=EnsembleFit()"
            )
        self._check_penalty()

    def _check_penalty(self) -> None:
        """Refuse a penalty of the wrong type, and settings that would have no effect."""
        if not isinstance(self.penalty, str | AbstractPenalty) and not callable(self.penalty):
            raise InputError(
                f"method {self.name}: penalty is {self.penalty!r}; give a registered name, an "
                "AbstractPenalty or a function that builds one"
            )
        named_none = isinstance(self.penalty, str) and self.penalty == "none"
        if self.imagines and self.agent.truncation is not None and named_none:
            raise InputError(
                f"method {self.name}: truncation ends imagined episodes where the penalty is "
                "large, but the method has none. Give a penalty, or truncation=none"
            )
        if not self.penalises:
            return
        if not self.imagines:
            raise InputError(
                f"method {self.name}: the agent learns from logged steps only, so a penalty has "
                "no effect. Leave the penalty out, or give a fit and a real_fraction below 1"
            )
        if self.fit is not None and isinstance(self.penalty, str):
            find_penalty(self.penalty, self.fit.space)

    @property
    def imagines(self) -> bool:
        """Whether the agent learns from imagined steps."""
        only_logged = self.agent.reads_log and self.real_fraction == 1
        return self.fit is not None and self.agent.imagines and not only_logged

    @property
    def mixes_real_data(self) -> bool:
        """Whether batches mix logged and imagined steps."""
        return self.imagines and self.agent.reads_log

    @property
    def penalises(self) -> bool:
        """Whether imagined steps are penalised."""
        named_none = isinstance(self.penalty, str) and self.penalty == "none"
        return self.agent.penalises or not named_none

    def describe(self) -> dict[str, object]:
        """Return everything that decides the result, as plain values for `run.json`."""
        return {
            "name": self.name,
            "agent": describe_value(self.agent),
            "fit": None if self.fit is None else describe_value(self.fit),
            "penalty": name_penalty(self.penalty),
            "penalty_weight": self.penalty_weight,
            "real_fraction": self.real_fraction,
        }


def name_variant(name: str, penalty_weight: float | None, real_fraction: float | None) -> str:
    """Name a variant of a method by what varies, such as `gelato λ=3 real=50%`."""
    weight = "" if penalty_weight is None else f" λ={penalty_weight:g}"
    fraction = "" if real_fraction is None else f" real={100 * real_fraction:g}%"
    return f"{name}{weight}{fraction}"


def find_family(name: str) -> str:
    """Return the name of a method without what `name_variant` added."""
    return re.sub(r"( λ=[^ ]+)?( real=[^ ]+%)?$", "", name)


def describe_value(value: object) -> object:
    """Turn a configuration value into plain JSON: dataclasses become dictionaries with a type."""
    if is_dataclass(value):
        described: dict[str, object] = {"type": type(value).__name__}
        for name, setting in list_recorded(value).items():
            described[name] = describe_value(setting)
        return described
    if isinstance(value, tuple | list):
        return [describe_value(entry) for entry in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if callable(value):
        # The text of a function contains its address, which differs between processes.
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    return repr(value)


def check_penalty_weight(weight: float) -> None:
    """Raise an error if the penalty weight is not a finite number of at least 0."""
    if not 0 <= weight < math.inf:
        raise InputError(f"penalty_weight={weight}: must be a finite number of at least 0")
    if weight > _LARGEST_WEIGHT:
        raise InputError(
            f"penalty_weight={weight:g}: above {_LARGEST_WEIGHT:,.0f}, rounding drops the reward "
            "when it is added to the penalty. Use a smaller weight"
        )


@dataclass(frozen=True)
class Group:
    """Methods with equal fits and agents: one compiled program trains them all."""

    methods: tuple[Method, ...]

    @property
    def fit(self) -> AbstractFit | None:
        """The fit that the methods share."""
        return self.methods[0].fit

    @property
    def agent(self) -> AbstractAgent:
        """The agent that the methods share."""
        return self.methods[0].agent

    @property
    def name(self) -> str:
        """The name of the folder that holds the group's policies."""
        return find_family(self.methods[0].name)


def group_methods(methods: Sequence[Method]) -> list[Group]:
    """Group methods that one program can train."""
    found: list[list[Method]] = []
    for method in methods:
        for group in found:
            if (group[0].fit, group[0].agent) == (method.fit, method.agent):
                group.append(method)
                break
        else:
            found.append([method])
    return [Group(tuple(group)) for group in found]
