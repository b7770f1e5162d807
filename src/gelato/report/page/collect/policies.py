"""The section about policies: learning curves, estimates, and measured returns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from gelato.report.page.collect.source import Source
from gelato.report.page.records import MEASURED, PolicySection
from gelato.runs.folder import Run
from gelato.selection.estimate import bound_mean

# Metrics that the page draws, if the run has them.
_METRICS = (
    "return",
    "crash_rate",
    "initial_value",
    "penalty",
    "imagined_reward",
    "critic_loss",
    "value_loss",
    "loss",
)
_STEPS = 100
_FEWEST = 3


def collect_policies(source: Source) -> PolicySection | None:
    """Gather what is known about all policies of a training."""
    if not source.is_training:
        return None
    curves = [curve for run in source.groups for curve in _read_curves(source, run)]
    policies = _list_policies(source)
    estimators = tuple(
        dict.fromkeys(each["estimator"] for policy in policies for each in policy["estimates"])
    )
    compared = [name for name in estimators if _count_usable(policies, name) >= _FEWEST]
    if sum(policy["return"] is not None for policy in policies) >= _FEWEST:
        compared.append(MEASURED)
    data_returns = [record.get("data_return") for record in source.results]
    known = [float(value) for value in data_returns if value is not None]
    return PolicySection(
        metrics=tuple(dict.fromkeys(curve["metric"] for curve in curves)),
        curves=tuple(curves),
        policies=tuple(policies),
        estimators=estimators,
        correlations=correlate(policies, compared),
        compared=tuple(compared),
        data_return=known[0] if known else None,
        finished=source.finished,
    )


def _read_curves(source: Source, run: Run) -> list[dict[str, Any]]:
    """Read the metrics of one group of policies."""
    rows = source.try_to("metrics", lambda: run.metrics) or []
    methods = list(dict.fromkeys(row["method"] for row in rows))
    curves = []
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        for metric in _METRICS:
            curve = average_seeds(own, metric)
            if curve is not None:
                curves.append({"method": method, "metric": metric, **curve})
    return curves


def average_seeds(rows: Sequence[Mapping[str, str]], metric: str) -> dict[str, Any] | None:
    """Average a metric over seeds at every step, with 95% intervals; None if it has no values.

    A step counts if at least one seed has a finite value there.
    """
    values: dict[int, list[float]] = {}
    broken = 0
    for row in rows:
        text = row.get(metric, "")
        if text == "":
            continue
        value = _read_number(text)
        if math.isfinite(value):
            values.setdefault(int(row["step"]), []).append(value)
        elif metric not in ("return", "crash_rate"):
            # These two are NaN in blocks without an evaluation.
            broken += 1
    if not values:
        return None
    steps = np.array(sorted(values))
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _STEPS)).astype(int))]
    found = [np.array(values[step]) for step in steps.tolist()]
    bounds = [bound_mean(each) for each in found]
    return {
        "steps": steps.tolist(),
        "mean": [float(each.mean()) for each in found],
        "low": [low for low, _ in bounds],
        "high": [high for _, high in bounds],
        "seeds": max(map(len, found)),
        "not_finite": broken,
    }


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _list_policies(source: Source) -> list[dict[str, Any]]:
    """List all policies, best first if `select` ranked them."""
    measured = {(record["method"], record["seed"]): record for record in source.results}
    chosen = (source.selection or {}).get("chosen") or {}
    ranked = (source.selection or {}).get("policies") or []
    listed = []
    for candidate in ranked:
        label = candidate["method"], candidate["seed"]
        own_run = candidate.get("run") in (None, chosen.get("run"))
        record = measured.pop(label, {}) if own_run else {}
        is_chosen = own_run and label == (chosen.get("method"), chosen.get("seed"))
        listed.append(_describe(candidate, record, is_chosen=is_chosen))
    for record in measured.values():
        listed.append(_describe({**record, "estimates": [], "rank": None}, record))
    return listed


def _describe(
    candidate: Mapping[str, Any], record: Mapping[str, Any], *, is_chosen: bool = False
) -> dict[str, Any]:
    return {
        "method": candidate["method"],
        "seed": candidate["seed"],
        "run": candidate.get("run"),
        "penalty_weight": candidate.get("penalty_weight"),
        "real_fraction": candidate.get("real_fraction"),
        "rank": candidate["rank"],
        "chosen": is_chosen,
        "estimates": candidate["estimates"],
        "return": record.get("return"),
        "return_std": record.get("return_std"),
        "score": record.get("score"),
        "crash_rate": record.get("crash_rate"),
        "initial_value": record.get("initial_value"),
        "mean_penalty": record.get("mean_penalty"),
        "episodes": record.get("episodes"),
    }


def find_value(policy: Mapping[str, Any], name: str) -> float | None:
    """Return the usable estimate of one estimator, or the measured return."""
    if name == MEASURED:
        value = policy["return"]
        return None if value is None else float(value)
    for estimate in policy["estimates"]:
        if estimate["estimator"] == name and not estimate["problem"]:
            value = estimate["estimate"]
            return None if value is None else float(value)
    return None


def _count_usable(policies: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(find_value(policy, name) is not None for policy in policies)


def correlate(
    policies: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[list[float | None]]:
    """Return the rank correlation of every pair of estimators; None where it is undefined."""
    columns = []
    for name in names:
        values = [find_value(policy, name) for policy in policies]
        columns.append(np.array([np.nan if value is None else value for value in values]))
    table: list[list[float | None]] = []
    for first in columns:
        row: list[float | None] = []
        for second in columns:
            both = np.isfinite(first) & np.isfinite(second)
            pair = np.array([first[both], second[both]])
            usable = both.sum() >= _FEWEST and np.ptp(pair, axis=1).min() > 0
            row.append(float(stats.spearmanr(*pair).statistic) if usable else None)
        table.append(row)
    return table
