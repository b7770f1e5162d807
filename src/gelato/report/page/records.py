"""The records of a report. They hold plain values, so `report.json` has the same content."""

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

# The name of measured returns among the estimators.
MEASURED = "measured return"
# Digits that a figure can show. They keep the page small.
_DIGITS = 4
# A model with a smaller R² is poor.
_POOR = 0.5


@dataclass(frozen=True)
class Interval:
    """A number and its 95% interval; a missing bound is None."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class VerdictSection:
    """The decision about the selected policy and the numbers that it rests on."""

    word: str
    """The verdict of `select`, or `no verdict`."""
    advice: str
    reasons: tuple[str, ...]
    policy: str | None = None
    seed: int | None = None
    estimate: Interval | None = None
    logged: Interval | None = None
    real_episodes: int = 0
    outside_share: float | None = None
    agreement: float | None = None
    true_return: float | None = None
    """The return measured in the environment after training; it did not decide anything."""
    weak_spots: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """One column of the states or actions."""

    name: str
    low: float
    high: float
    median: float
    histogram: tuple[int, ...]
    """Number of steps in equal bins from `low` to `high`."""
    coverage: float
    """Share of these bins that hold data."""
    remark: str | None = None
    """Why the column is suspicious."""


@dataclass(frozen=True)
class DataSection:
    """The logged data."""

    summary: dict[str, Any]
    returns: dict[str, list[float]]
    """A histogram of the returns of episodes: `edges` and `counts`."""
    lengths: dict[str, list[float]]
    states: tuple[Column, ...]
    actions: tuple[Column, ...]
    columns: int
    """All columns of the states; `states` lists at most a few dozen."""
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class ModelSection:
    """Accuracy of the latent model on held-out episodes."""

    check: dict[str, Any]
    """What `gelato model check` reports, for every seed."""
    seed: int
    names: tuple[str, ...]
    latent_size: int
    decoders: int
    fans: tuple[dict[str, Any], ...]
    """Quantiles of sampled rollouts along one held-out action sequence, with the truth."""

    @property
    def change_r2(self) -> float | None:
        """R² of the predicted change of the state in one step, for the shown seed."""
        shown = next(each for each in self.check["seeds"] if each["seed"] == self.seed)
        value: float | None = shown["delta_r2"]
        return value

    @property
    def is_poor(self) -> bool:
        """Whether the model predicts too badly to rely on it."""
        return self.change_r2 is None or not self.change_r2 >= _POOR


@dataclass(frozen=True)
class MapSection:
    """Sampled steps of the data in two dimensions. All lists have one entry for each point."""

    title: str
    axes: tuple[str, str]
    variance: float | None
    """Share of the variance of the latent states that the projection shows; None if all."""
    total: int
    limit: float | None
    state_names: tuple[str, ...]
    state_columns: int
    action_names: tuple[str, ...]
    points: dict[str, Any]
    neighbours: list[list[int]]
    distances: list[list[float]]
    overlay: dict[str, Any] | None = None
    overlay_name: str | None = None


@dataclass(frozen=True)
class PathsSection:
    """Episodes of the selected policy in the real environment, on the map."""

    environment: str
    paths: tuple[dict[str, Any], ...]
    state_names: tuple[str, ...] = ()
    comparable: bool = True
    """Whether they are about as long as the logged episodes, so that returns can be compared."""


@dataclass(frozen=True)
class TrustSection:
    """Where the model can be trusted, and what the threshold on U costs."""

    seed: int
    penalty: str
    limit: float
    false_alarm_rate: float
    coverage: float
    calibration_episodes: int
    foreign_trusted: float
    thresholds: list[float]
    false_alarms: list[float]
    misses: list[float]
    histogram: dict[str, list[float]]
    episodes: tuple[dict[str, Any], ...]
    policy: dict[str, Any] | None = None
    new_log: dict[str, Any] | None = None


@dataclass(frozen=True)
class PolicySection:
    """All policies of the run: learning curves, estimates and measured returns."""

    metrics: tuple[str, ...]
    curves: tuple[dict[str, Any], ...]
    policies: tuple[dict[str, Any], ...]
    estimators: tuple[str, ...]
    correlations: list[list[float | None]]
    """Rank correlations between the estimators; with measured returns as the last row."""
    compared: tuple[str, ...]
    data_return: float | None
    finished: bool


@dataclass(frozen=True)
class Reproduction:
    """How to make this run again."""

    commands: tuple[str, ...]
    folder: str
    fingerprint: str
    versions: dict[str, str]
    settings: dict[str, str]
    problem: str | None = None
    """Why the commands do not make the same run."""


@dataclass(frozen=True)
class RunReport:
    """Everything about one run. A section that cannot be made is None, and `missing` says why."""

    name: str
    kind: str
    dataset: str
    environment: str | None
    verdict: VerdictSection
    data: DataSection | None
    policies: PolicySection | None
    reproduce: Reproduction
    missing: dict[str, str]
    model: ModelSection | None = None
    map: MapSection | None = None
    paths: PathsSection | None = None
    trust: TrustSection | None = None


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    runs: tuple[RunReport, ...]
    settings: tuple[tuple[str, ...], ...]
    """Settings that differ: the name, and one value for each run."""
    same_data: bool


def to_plain(value: Any, digits: int = _DIGITS) -> Any:
    """Turn records into values for JSON: rounded, and None for numbers that are not finite."""
    if is_dataclass(value):
        return {each.name: to_plain(getattr(value, each.name), digits) for each in fields(value)}
    if isinstance(value, dict):
        return {str(name): to_plain(each, digits) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist(), digits)
    if isinstance(value, list | tuple):
        return [to_plain(each, digits) for each in value]
    if isinstance(value, np.generic):
        return to_plain(value.item(), digits)
    if isinstance(value, float):
        return _round(value, digits)
    return value


def _round(value: float, digits: int) -> float | int | None:
    """Round to significant digits; whole numbers lose their `.0`."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
