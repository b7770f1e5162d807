"""The section at the top: deploy or not, and why."""

import shlex
from collections.abc import Mapping
from typing import Any

from gelato.report.page.collect.map import MapPoints, find_weak_regions
from gelato.report.page.collect.source import Source
from gelato.report.page.records import (
    DataSection,
    Interval,
    ModelSection,
    TrustSection,
    VerdictSection,
)

NO_VERDICT = "no verdict"
_BETTER = "better than the data"
_ADVICE = {
    _BETTER: "Worth a supervised test. Deploy it with its guard, and keep the "
    "present policy as the fallback.",
    "do not deploy": "Do not deploy. Keep the present policy.",
    "not shown to be better": "Do not deploy yet. The log does not show that it is better than "
    "the present policy.",
    NO_VERDICT: "No decision is possible yet.",
}
# Advice and reason if the model is poor: the guard and the imagined returns come from it.
_ADVICE_IF_POOR = (
    "Do not deploy it yet: the model is poor, and the guard depends on it. Keep the present "
    "policy, and fit a better model first."
)
_REASON_IF_POOR = (
    "the model is poor: on held-out episodes it predicts less than half of the variance of the "
    "state's change in one step, so rely neither on the estimates nor on the guard"
)
# Below this, the estimators contradict each other.
_AGREEMENT = 0.2


def collect_verdict(
    source: Source,
    data: DataSection | None,
    points: MapPoints | None,
    trust: TrustSection | None,
    model: ModelSection | None,
) -> VerdictSection:
    """Read the decision of `select`, or say what is missing for one."""
    weak = tuple(_list_weak_spots(source, data, points, trust))
    chosen = source.chosen
    measured = _find_measured(source)
    if source.selection is None:
        return VerdictSection(
            word=NO_VERDICT,
            advice=_ADVICE[NO_VERDICT],
            reasons=(),
            policy=None if chosen is None else chosen.method,
            seed=None if chosen is None else chosen.seed,
            logged=_describe_logged(data),
            true_return=measured,
            weak_spots=weak,
            missing=tuple(_list_missing(source)),
        )
    found = source.selection
    estimate, logged = found["estimate"], found["behaviour"]
    word, reasons = str(found["verdict"]), tuple(found["reasons"])
    advice = _ADVICE.get(word, "")
    if model is not None and model.is_poor:
        reasons += (_REASON_IF_POOR,)
        advice = _ADVICE_IF_POOR if word == _BETTER else advice
    return VerdictSection(
        word=word,
        advice=advice,
        reasons=reasons,
        policy=found["chosen"]["method"],
        seed=found["chosen"]["seed"],
        estimate=Interval(estimate["estimate"], estimate["low"], estimate["high"]),
        logged=Interval(logged["mean"], logged["low"], logged["high"]),
        real_episodes=found["real_episodes"],
        outside_share=found["outside_share"],
        agreement=found["agreement"],
        true_return=measured,
        weak_spots=weak,
        missing=() if source.finished else tuple(_list_missing(source)),
    )


def _describe_logged(data: DataSection | None) -> Interval | None:
    return None if data is None else Interval(data.summary["return_mean"])


def _find_measured(source: Source) -> float | None:
    chosen = source.chosen
    if chosen is None:
        return None
    for record in source.results:
        if (record["method"], record["seed"]) == (chosen.method, chosen.seed):
            value = record.get("return")
            return None if value is None else float(value)
    return None


def _list_missing(source: Source) -> list[str]:
    """Say what must be done before there is a verdict."""
    folder = shlex.quote(str(source.folder))
    if not source.is_training:
        return [
            "This folder holds a model and no policies. `gelato train` with the option "
            f"`--model {folder}` trains policies in it."
        ]
    if not source.finished:
        return [
            "The training is not finished, so there are no final policies. Repeat the training "
            "command; it continues from the last checkpoint."
        ]
    return [
        "Nobody has compared the policies yet. "
        f"`gelato select {folder}` estimates their returns from the log alone. "
        "Then write this report again."
    ]


def _list_weak_spots(
    source: Source,
    data: DataSection | None,
    points: MapPoints | None,
    trust: TrustSection | None,
) -> list[str]:
    """Say where the policy or the model is not safe, the most important first."""
    found: list[str] = []
    selection: Mapping[str, Any] = source.selection or {}
    if trust is not None and trust.policy is not None:
        found += _describe_policy(trust.policy, trust.false_alarm_rate)
    if points is not None and points.trusted is not None:
        share = float(points.trusted.mean())
        subject = "the policy's actions" if source.policy is not None else "the logged actions"
        for name, low, high, trusted in find_weak_regions(
            points.states, points.trusted, points.names
        ):
            found.append(
                f"Where {name} is between {low:.3g} and {high:.3g}, {trusted:.0%} of {subject} "
                f"are trusted ({share:.0%} in all states)."
            )
    if trust is not None and trust.foreign_trusted > 0.1:
        found.append(
            f"The guard misses {trust.foreign_trusted:.0%} of state-actions that are clearly "
            "outside the data."
        )
    agreement = selection.get("agreement")
    if agreement is not None and agreement < _AGREEMENT:
        found.append(
            "The estimators contradict each other (rank correlation "
            f"{agreement:.2f}), so the choice of the policy is uncertain."
        )
    if data is not None:
        found += data.remarks[:3]
    return found


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
