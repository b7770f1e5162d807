"""What an estimator returns for a policy, and the interface of all estimators."""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy import stats

if TYPE_CHECKING:
    from gelato.selection.evidence import Evidence

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """An estimate of one policy by one estimator, larger is better.

    `low` and `high` bound its 95% interval. `problem` says why an estimate must not be used; such
    an estimate is reported and never averaged in. `details` holds more numbers by name.
    """

    estimator: str
    estimate: float
    low: float | None = None
    high: float | None = None
    problem: str | None = None
    details: dict[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether the estimate may be used."""
        return self.problem is None and math.isfinite(self.estimate)

    def describe(self) -> dict[str, object]:
        """Return plain values for JSON; numbers that are not finite become None."""
        described = asdict(self)
        for name in ("estimate", "low", "high"):
            described[name] = _finite(described[name])
        described["details"] = {name: _finite(value) for name, value in self.details.items()}
        return described


def read_estimate(fields: dict[str, Any]) -> Estimate:
    """Read what `describe` returned."""
    values = dict(fields)
    if values["estimate"] is None:
        values["estimate"] = math.nan
    details = values["details"].items()
    values["details"] = {name: math.nan if v is None else v for name, v in details}
    return Estimate(**values)


class AbstractEstimator(ABC):
    """Estimates how good policies are from the log and from models of it, never from returns of
    the policies themselves.
    """

    name: str

    @abstractmethod
    def estimate(self, evidence: "Evidence") -> list[Estimate]:
        """Return one estimate per policy."""


def bound_mean(
    values: Float[np.ndarray, " n"], variance_of_each: float = 0.0
) -> tuple[float, float]:
    """Return the 95% t-interval of a mean. Without spread information it is unbounded."""
    count = len(values)
    if count < 2:
        return -math.inf, math.inf
    deviation = math.sqrt(float(np.var(values, ddof=1)) / count + variance_of_each)
    width = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * deviation
    return float(np.mean(values)) - width, float(np.mean(values)) + width


def bound_next(
    values: Float[np.ndarray, " n"], center: float, extra_variance: float = 0.0
) -> tuple[float, float]:
    """Return the 95% interval of one more draw from where the values come from."""
    variance = float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
    return bound_draw(center, variance, len(values), extra_variance)


def bound_draw(
    center: float, variance: float, count: int, extra_variance: float = 0.0
) -> tuple[float, float]:
    """Return the 95% interval of one more draw, given the sample variance of `count` draws."""
    if count < 2:
        return -math.inf, math.inf
    deviation = math.sqrt(variance * (1 + 1 / count) + extra_variance)
    width = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * deviation
    return center - width, center + width


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
