"""The section at the top: deploy or not, and why."""

import shlex

from gelato.report.page.collect.map import MapPoints
from gelato.report.page.collect.source import Source
from gelato.report.page.collect.weak_spots import list_weak_spots
from gelato.report.page.records import (
    DataSection,
    Interval,
    ModelSection,
    PathsSection,
    TrustSection,
    VerdictSection,
)

NO_VERDICT = "no verdict"
_BETTER = "better than the data"
_ADVICE = {
    _BETTER: "Worth a supervised test. Deploy it with its guard, and keep the "
    "present policy as the fallback.",
    "do not deploy": "Do not deploy. Keep the present policy.",
    "not shown to be better": "Do not deploy yet. This log cannot tell whether it beats the policy "
    "that recorded the log. Record more or longer episodes, or test it under supervision.",
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


def collect_verdict(
    source: Source,
    data: DataSection | None,
    points: MapPoints | None,
    trust: TrustSection | None,
    model: ModelSection | None,
    paths: PathsSection | None,
) -> VerdictSection:
    """Read the decision of `select`, or say what is missing for one."""
    weak = tuple(list_weak_spots(source, data, points, trust, paths))
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
