"""Where the policy or the model is not safe, in sentences."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from gelato.report.page.collect.data import choose_shown_columns
from gelato.report.page.collect.map import MapPoints
from gelato.report.page.collect.source import Source
from gelato.report.page.records import DataSection, PathsSection, TrustSection

# Below this, the estimators contradict each other.
_AGREEMENT = 0.2
# A region is at least this share of its column's range.
_NARROW = 1e-6
# At most so many different states with so many columns are a small world, whose states have names.
_FEW_STATES, _FEW_COLUMNS = 600, 4
_FEW_STEPS = 20
# Standard deviations between two medians that are worth a sentence.
_APART = 0.5


def list_weak_spots(
    source: Source,
    data: DataSection | None,
    points: MapPoints | None,
    trust: TrustSection | None,
    paths: PathsSection | None,
) -> list[str]:
    """Say where the policy or the model is not safe, the most important first."""
    found: list[str] = []
    if trust is not None and trust.policy is not None:
        found += _describe_policy(trust.policy, trust.false_alarm_rate)
    if paths is not None and trust is not None:
        found += describe_paths(paths, trust.false_alarm_rate)
    if points is not None and points.trusted is not None:
        subject = "the policy's action" if source.policy is not None else "the logged action"
        found += describe_states(points.states, points.trusted, points.names, subject)
    if trust is not None and trust.foreign_trusted > 0.1:
        found.append(
            f"The guard misses {trust.foreign_trusted:.0%} of state-actions that are clearly "
            "outside the data."
        )
    selection: Mapping[str, Any] = source.selection or {}
    agreement = selection.get("agreement")
    if agreement is not None and agreement < _AGREEMENT:
        found.append(
            "The estimators contradict each other (rank correlation "
            f"{agreement:.2f}), so the choice of the policy is uncertain."
        )
    if data is not None:
        found += data.remarks[:3]
    return found


def describe_states(
    states: Float[np.ndarray, "n state"],
    trusted: Bool[np.ndarray, " n"],
    names: Sequence[str],
    subject: str,
) -> list[str]:
    """Say in which states an action is not trusted."""
    if len(states) < _FEW_STEPS or trusted.all():
        return []
    varied = np.flatnonzero(np.ptp(states, axis=0) > 0).tolist()
    if len(varied) <= _FEW_COLUMNS:
        distinct, place, counts = np.unique(
            states[:, varied], axis=0, return_inverse=True, return_counts=True
        )
        if len(distinct) <= _FEW_STATES:
            shares = np.bincount(place.reshape(-1), trusted) / counts
            weak = np.flatnonzero(shares < 0.5)
            if not len(weak):
                return []
            worst = distinct[weak[np.argmax(counts[weak])]]
            return [
                f"In {len(weak)} of {len(distinct)} logged states, {subject} is mostly not "
                f"trusted, for example at {_name_place(worst, [names[each] for each in varied])}."
            ]
    share = float(trusted.mean())
    found = [
        f"Where {name} is between {low:.3g} and {high:.3g}, {subject} is trusted in "
        f"{inside:.0%} of the steps ({share:.0%} in all states)."
        for name, low, high, inside in find_weak_regions(states, trusted, names)
    ]
    return found or _compare_columns(states, trusted, names, subject)


def _compare_columns(
    states: Float[np.ndarray, "n state"],
    trusted: Bool[np.ndarray, " n"],
    names: Sequence[str],
    subject: str,
) -> list[str]:
    """Name the column in which the states without trust differ most from the others."""
    if min(trusted.sum(), (~trusted).sum()) < _FEW_STEPS:
        return []
    spread = states.std(axis=0)
    inside, outside = (np.median(states[chosen], axis=0) for chosen in (trusted, ~trusted))
    gaps = np.divide(outside - inside, spread, out=np.zeros(len(spread)), where=spread > 0)
    column = int(np.argmax(np.abs(gaps)))
    if abs(gaps[column]) < _APART:
        return []
    size = "large" if gaps[column] > 0 else "small"
    return [
        f"The states in which {subject} is not trusted have a {size} {names[column]}: the median "
        f"is {outside[column]:.3g}, and {inside[column]:.3g} in all others."
    ]


def find_weak_regions(
    states: Float[np.ndarray, "n state"],
    trusted: Bool[np.ndarray, " n"],
    names: Sequence[str],
    most: int = 3,
) -> list[tuple[str, float, float, float]]:
    """Find the fifths of a state column where trust is lowest, at most one for each column.

    Returns the column, its lower and upper bound there, and the share of trusted steps; only
    regions with a tenth less trust than all steps have.
    """
    found = []
    for column in choose_shown_columns(states):
        values = states[:, column]
        edges = np.unique(np.quantile(values, np.linspace(0, 1, 6)))
        for low, high in pairwise(edges):
            inside = (values >= low) & (values <= high)
            if high - low < _NARROW * np.ptp(values):
                continue  # rounding errors, not a region
            if inside.sum() < max(_FEW_STEPS, len(values) // 50):
                continue
            share = float(trusted[inside].mean())
            if share < trusted.mean() - 0.1:
                found.append((names[column], float(low), float(high), share))
    found.sort(key=lambda region: region[3])
    weakest: dict[str, tuple[str, float, float, float]] = {}
    for region in found:
        weakest.setdefault(region[0], region)
    return list(weakest.values())[:most]


def describe_paths(paths: PathsSection, false_alarm_rate: float) -> list[str]:
    """Say when and where the policy takes its first step without trust in its environment."""
    left = [path for path in paths.paths if path.get("first_outside") is not None]
    if not left:
        return []
    steps = [path["first_outside"] for path in left]
    when = (
        f"step {min(steps)}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
    )
    text = (
        f"In {len(left)} of {len(paths.paths)} episodes in {paths.environment}, the policy takes a "
        f"step that is not trusted, first at {when}"
    )
    names = paths.state_names
    places = np.array([path["first_place"] for path in left])
    if len(names) <= _FEW_COLUMNS and (places == places[0]).all():
        return [f"{text}, always at {_name_place(places[0], names)}."]
    shares = [path["trusted_share"] for path in paths.paths]
    # Long episodes have false alarms, which need no sentence.
    return [f"{text}."] if np.mean(shares) < 1 - false_alarm_rate - 0.02 else []


def _name_place(values: Float[np.ndarray, " state"], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in zip(names, values, strict=True))


def _describe_policy(policy: Mapping[str, Any], false_alarm_rate: float) -> list[str]:
    found = []
    at_data, logged = policy.get("trusted_at_data"), policy.get("logged_trusted")
    if at_data is not None and logged is not None and at_data < logged - 0.02:
        found.append(
            f"At logged states, {1 - at_data:.0%} of the policy's actions are unlike the data "
            f"({1 - logged:.0%} of the logged actions)."
        )
    trusted = policy["trusted_steps"]
    if trusted is not None and trusted < 1 - false_alarm_rate - 0.02:
        found.append(
            f"In imagined rollouts of {policy['horizon']} steps, {1 - trusted:.0%} of the policy's "
            f"steps are not trusted ({false_alarm_rate:.0%} would be false alarms)."
        )
    return found
