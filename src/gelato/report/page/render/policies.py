"""The policies section."""

from collections.abc import Mapping
from typing import Any

from gelato.report.page.records import MEASURED, PathsSection, PolicySection, RunReport
from gelato.report.page.render.html import (
    Html,
    element,
    figure,
    section,
    select_box,
    table,
)
from gelato.report.page.render.numbers import (
    MISSING,
    count_noun,
    write_estimate,
    write_number,
    write_share,
)
from gelato.report.page.render.verdict import render_missing

_LEAD = "All policies that were trained, how they learned, and what each estimator says."
METRIC_NAMES = {
    "return": "return in the simulator",
    "crash_rate": "crashes in the simulator",
    "initial_value": "value at the first states",
    "penalty": "mean penalty U of imagined steps",
    "imagined_reward": "mean penalised reward",
    "critic_loss": "loss of the critic",
    "value_loss": "loss of the value",
    "loss": "loss",
}


def render_policies(run: RunReport) -> Html:
    """Write curves, the grid of λ, the estimators and a table."""
    found = run.policies
    if found is None:
        why = "This folder holds a model and no policies."
        return section("policies", "Policies", _LEAD, render_missing(run.missing, "", why))
    children: list[object] = []
    if not found.finished:
        children.append(
            element(
                "div",
                element("strong", "Unfinished. "),
                "The training is not complete. The curves end where it stopped.",
                class_="missing",
            )
        )
    if found.curves:
        children.append(render_curves(found))
    else:
        children.append(render_missing(run.missing, "metrics", "No metrics are written yet."))
    if found.policies:
        children.append(
            element("div", _grid_figure(found), _estimators_figure(found), class_="two")
        )
    if run.paths is not None:
        children.append(_paths_table(run.paths))
    elif "paths" in run.missing:
        children.append(render_missing(run.missing, "paths", ""))
    if found.policies:
        children.append(_policies_table(found))
    return section("policies", "Policies", _LEAD, *children)


def render_curves(found: PolicySection, run: int = 0) -> Html:
    """Write the frame of the learning curves."""
    options = [(name, METRIC_NAMES.get(name, name)) for name in found.metrics]
    first = found.metrics[0]
    numbers = []
    for curve in found.curves:
        if curve["metric"] == first:
            numbers.append(f"{curve['method']} ends at {write_number(curve['mean'][-1])}")
    broken = sum(curve["not_finite"] for curve in found.curves)
    meaning = "A value that rises while the return falls means that the policy exploits the model."
    if broken:
        meaning += f" Not finite and left out: {count_noun(broken, 'value')}."
    return figure(
        "curves",
        "Learning curves",
        "Lines are means over seeds, bands are 95% intervals; with one seed there is no band. "
        "With few seeds a band can reach beyond the figure. "
        "Each method has its own line style and mark. A method without a penalty has U 0.",
        meaning,
        f"{METRIC_NAMES.get(first, first)}: {'; '.join(numbers)}.",
        select_box("curve-metric", "Metric", options, run=run),
        run=run,
    )


def _grid_figure(found: PolicySection) -> Html:
    numbers = f"{len(found.policies)} policies."
    for policy in found.policies:
        if policy["chosen"]:
            numbers += f" Selected: {policy['method']}, seed {policy['seed']}."
    options = [(name, name) for name in (found.compared or (MEASURED,))]
    return figure(
        "grid",
        "Returns over the penalty weight λ",
        "One mark per policy: circles are estimates with their intervals, diamonds are measured "
        "returns, and the star is the selected policy. Only cross-model estimates have the units "
        "of measured returns.",
        "A good λ is a plateau. A lonely peak is luck.",
        numbers,
        select_box("grid-estimator", "Estimator", options),
    )


def _estimators_figure(found: PolicySection) -> Html:
    names = list(found.compared)
    numbers = "There are too few policies or estimates to compare."
    if len(names) > 1:
        parts = []
        for place, name in enumerate(names[1:], start=1):
            value = found.correlations[0][place]
            parts.append(f"with {name} {write_number(value, 2)}")
        numbers = f"Rank correlations of {names[0]}: {'; '.join(parts)}."
    options = [(name, name) for name in names]
    last = names[-1] if names else ""
    return figure(
        "estimators",
        "Estimators against each other",
        "One mark per policy; shapes are methods.",
        "Points along a rising line agree. If they do not, the choice of the policy is uncertain.",
        numbers,
        select_box("estimator-x", "x", options, names[0] if names else ""),
        select_box("estimator-y", "y", options, last),
    )


def _paths_table(paths: PathsSection) -> Html:
    rows = []
    for number, path in enumerate(paths.paths, start=1):
        outside = path.get("first_outside")
        rows.append(
            (
                f"episode {number}",
                write_number(path["return"]),
                f"{path['length']:,}",
                "crash"
                if path["crashed"]
                else "terminated"
                if path["terminated"]
                else "time limit",
                write_share(path.get("trusted_share")),
                "never" if outside is None else f"step {outside}",
            )
        )
    heads = ("path", "return", "steps", "end", "trusted steps", "first step not trusted")
    caption = (
        f"Episodes of the policy in {paths.environment}. The map draws them if you tick "
        "“paths of the policy”."
    )
    return table(caption, heads, rows, class_="numbers")


def _policies_table(found: PolicySection) -> Html:
    rows = []
    for policy in found.policies:
        rows.append(_policy_row(found, policy))
    heads = ("policy", "seed", "λ", "real data", "rank", "measured return", *found.estimators)
    caption = "All policies, best first if they were ranked. ★ marks the selected one."
    return table(caption, heads, rows, class_="numbers")


def _policy_row(found: PolicySection, policy: Mapping[str, Any]) -> list[object]:
    by_name = {estimate["estimator"]: estimate for estimate in policy["estimates"]}
    measured = write_number(policy["return"])
    if policy["return"] is not None and policy["return_std"] is not None:
        measured += f" ± {write_number(policy['return_std'])}"
    estimates = []
    for name in found.estimators:
        estimate = by_name.get(name)
        title = estimate["problem"] if estimate and estimate["problem"] else None
        estimates.append(element("span", write_estimate(estimate), title=title))
    name = f"★ {policy['method']}" if policy["chosen"] else policy["method"]
    fraction = policy["real_fraction"]
    return [
        name,
        policy["seed"],
        write_number(policy["penalty_weight"]),
        MISSING if fraction is None else write_share(float(fraction)),
        write_number(policy["rank"]),
        measured,
        *estimates,
    ]
