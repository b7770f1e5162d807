"""The section about trust: the threshold on U, the least known episodes, and the policy."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset, Transitions, choose_evenly
from gelato.policy.policy import DeployedPolicy
from gelato.progress import working
from gelato.report.page.collect.map import MapPoints
from gelato.report.page.collect.source import Source
from gelato.report.page.records import TrustSection
from gelato.training.policy_trust import HORIZON, ROLLOUTS, imagine
from gelato.uncertainty.conformal import measure_coverage
from gelato.uncertainty.trust import Trust, measure_bound

_THRESHOLDS = 200
_BINS = 40
_EPISODES, _STEPS = 5, 400
_NEW_ROWS = 5_000


def collect_trust(
    source: Source, points: MapPoints | None, new_log: Dataset | None = None
) -> TrustSection | None:
    """Describe where the model can be trusted."""
    trust = source.trust
    if trust is None:
        return None
    inside, outside = trust.calibration_penalties, trust.foreign_penalties
    numbers = trust.calibration_numbers
    thresholds = _choose_thresholds(inside, outside, trust.limit)
    alarms = [1 - measure_coverage(inside, numbers, each) for each in thresholds]
    with working("judging episodes and the policy"):
        episodes = _follow_least_known(source, trust, inside, numbers)
        policy = None
        if source.policy is not None:
            policy = _judge_policy(source.policy, trust, points)
        judged = None if new_log is None else _judge_new_log(trust, new_log)
    return TrustSection(
        seed=trust.seed,
        penalty=trust.penalty,
        limit=trust.limit,
        false_alarm_rate=trust.false_alarm_rate,
        coverage=trust.bounds.coverage,
        calibration_episodes=trust.episodes,
        foreign_trusted=trust.foreign_trusted,
        thresholds=thresholds.tolist(),
        false_alarms=alarms,
        misses=[float(np.mean(outside <= each)) for each in thresholds],
        histogram=_count(inside, outside, float(thresholds[-1])),
        episodes=episodes,
        policy=policy,
        new_log=judged,
    )


def _choose_thresholds(
    inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"], limit: float
) -> Float[np.ndarray, " k"]:
    """Return thresholds from 0 to where both errors are settled; the limit is one of them."""
    most = max(float(np.quantile(outside, 0.95)), float(np.quantile(inside, 0.999)), 1.25 * limit)
    return np.sort(np.append(np.linspace(0, most, _THRESHOLDS), limit))


def _count(
    inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"], most: float
) -> dict[str, list[float]]:
    """Return histograms of U on held-out steps and out of distribution, as shares."""
    edges = np.linspace(0, most, _BINS + 1)
    shares = {"edges": edges.tolist()}
    for name, values in (("inside", inside), ("outside", outside)):
        counts, _ = np.histogram(np.minimum(values, most), edges)
        shares[name] = (counts / max(1, len(values))).tolist()
    return shares


def _follow_least_known(
    source: Source,
    trust: Trust,
    penalties: Float[np.ndarray, " n"],
    numbers: Int[np.ndarray, " n"],
) -> tuple[dict[str, Any], ...]:
    """Follow the held-out episodes with the largest mean U over time."""
    held_out = trust.fitted.parts[1]
    starts = np.array([rows.start for rows in trust.fitted.dataset.transitions.episode_slices])
    first_rows = source.rows_of_parts[1]
    followed = []
    for number in _find_least_known(penalties, numbers):
        rows = held_out.episode_slices[number]
        place = np.searchsorted(starts, first_rows[rows.start], side="right") - 1
        followed.append(_follow(trust, held_out, rows, int(place)))
    return tuple(followed)


def _find_least_known(
    penalties: Float[np.ndarray, " n"], numbers: Int[np.ndarray, " n"]
) -> list[int]:
    """Return the episodes with the largest mean penalty."""
    counts = np.bincount(numbers)
    sums = np.bincount(numbers, penalties)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    order = np.argsort(-means, kind="stable")
    return [int(number) for number in order[:_EPISODES] if counts[number]]


def _follow(trust: Trust, data: Transitions, rows: slice, number: int) -> dict[str, Any]:
    """Judge the steps of one episode, at most a few hundred of them."""
    steps = choose_evenly(range(rows.start, rows.stop), _STEPS)
    chosen = rows.start + steps
    verdict = trust(data[chosen].inputs, np.asarray(data.actions)[chosen])
    return {
        "episode": number,
        "length": rows.stop - rows.start,
        "return": float(np.asarray(data.rewards)[rows].sum(dtype=np.float64)),
        "step": steps,
        "penalty": verdict.penalty,
        "mean_penalty": float(verdict.penalty.mean()),
        "trusted_share": float(verdict.trusted.mean()),
        "worst_step": int(steps[verdict.penalty.argmax()]),
    }


def _judge_policy(policy: DeployedPolicy, trust: Trust, points: MapPoints | None) -> dict[str, Any]:
    """Judge the policy's actions at the points of the map, and its imagined rollouts."""
    held_out = trust.fitted.parts[1]
    starts = np.array([episode.start for episode in held_out.episode_slices])
    starts = starts[choose_evenly(starts, ROLLOUTS)]
    found = imagine(trust, policy, held_out[starts].inputs, HORIZON)
    inside = (found.penalty <= trust.limit) | ~found.happened
    ordinary = np.where(found.happened, found.penalty, np.nan)
    described: dict[str, Any] = {
        "rollouts": len(starts),
        "horizon": HORIZON,
        "still_inside": np.cumprod(inside, axis=0).mean(axis=1),
        "trusted_steps": found.measure_trusted_share(trust.limit, 1, HORIZON),
        "steps_inside": float(np.median(found.count_steps_inside(trust.limit))),
        "median_penalty": [_quantile(row, 0.5) for row in ordinary],
        "high_penalty": [_quantile(row, 0.9) for row in ordinary],
    }
    if points is not None and points.trusted is not None:
        logged = np.asarray(points.section.points["trusted"])
        described["trusted_at_data"] = float(points.trusted.mean())
        described["logged_trusted"] = float(logged.mean())
        described["points"] = len(logged)
    return described


def _quantile(values: np.ndarray, level: float) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, level)) if len(known) else None


def _judge_new_log(trust: Trust, new_log: Dataset) -> dict[str, Any]:
    """Judge another log: how much of it is trusted, and its least known episodes."""
    judged = trust.of_data(new_log, _NEW_ROWS)
    data = new_log.transitions
    penalties = np.array([row["penalty"] for row in judged], float)
    numbers = np.array([row["episode"] for row in judged], int)
    slices = data.episode_slices
    followed = []
    for number in _find_least_known(penalties, numbers):
        followed.append(_follow(trust, data, slices[number], number))
    return {
        "name": new_log.reference,
        "transitions": len(data),
        "episodes_count": len(slices),
        "rows": len(judged),
        "trusted_share": float(np.mean([bool(row["trusted"]) for row in judged])),
        "median_penalty": float(np.median(penalties)),
        "high_penalty": float(np.quantile(penalties, 0.95)),
        "error_covered": measure_bound(judged),
        "return_mean": float(episode_returns(data).mean()),
        "episodes": tuple(followed),
    }
