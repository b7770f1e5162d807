"""The trust section."""

from collections.abc import Mapping, Sequence
from typing import Any

from gelato.report.page.records import RunReport, TrustSection
from gelato.report.page.render.html import (
    Html,
    element,
    figure,
    paragraph,
    section,
    select_box,
    table,
    tile,
    tiles,
)
from gelato.report.page.render.numbers import count_noun, write_number, write_share
from gelato.report.page.render.verdict import render_missing

_LEAD = "Where the model may be believed, and what the guard of the policy catches."


def render_trust(run: RunReport) -> Html:
    """Write the threshold, the least known episodes and the policy's own steps."""
    trust = run.trust
    if trust is None:
        missing = render_missing(run.missing, "trust", "Trust needs a latent model.")
        return section("trust", "Trust", _LEAD, missing)
    children: list[object] = [_render_tiles(trust)]
    if trust.new_log is not None:
        children.append(_render_new_log(trust.new_log))
    children += [
        _threshold_figure(trust),
        element("div", _episodes_figure(trust), _survival_figure(trust), class_="two"),
        _episodes_table("Least known held-out episodes", trust.episodes),
    ]
    if trust.new_log is not None:
        name = f"Least known episodes of {trust.new_log['name']}"
        children.append(_episodes_table(name, trust.new_log["episodes"]))
    return section("trust", "Trust", _LEAD, *children)


def _render_tiles(trust: TrustSection) -> Html:
    shown = [
        tile(
            "False alarms",
            f"≤ {write_share(trust.false_alarm_rate)}",
            "of the steps of a new episode; measured on "
            f"{count_noun(trust.calibration_episodes, 'held-out episode')}",
        ),
        tile("Misses", write_share(trust.foreign_trusted), "of made-up steps far from the data"),
        tile(
            "Bound of the model’s error holds",
            f"≥ {write_share(trust.coverage)}",
            "of the steps of a new episode",
        ),
    ]
    if trust.policy is not None:
        shown.append(
            tile(
                "Trusted imagined steps",
                write_share(trust.policy["trusted_steps"]),
                f"in {trust.policy['rollouts']} rollouts of {trust.policy['horizon']} steps; "
                f"{write_share(1 - trust.false_alarm_rate)} is expected on the data",
            )
        )
    return tiles(*shown)


def _render_new_log(new_log: Mapping[str, Any]) -> Html:
    share = new_log["trusted_share"]
    held = new_log["error_covered"]
    text = (
        f"The model can be trusted on {write_share(share)} of {new_log['rows']:,} steps of "
        f"{new_log['name']} ({count_noun(new_log['episodes_count'], 'episode')}). Their median U "
        f"is {write_number(new_log['median_penalty'])}, and 95% lie below "
        f"{write_number(new_log['high_penalty'])}."
    )
    if held is not None:
        text += f" The error bound holds for {write_share(held)} of them."
    return element("div", element("h3", "The new log"), paragraph(text), class_="new-log")


def _threshold_figure(trust: TrustSection) -> Html:
    place = min(
        range(len(trust.thresholds)), key=lambda index: abs(trust.thresholds[index] - trust.limit)
    )
    slider = element(
        "label",
        "Threshold on U ",
        element(
            "input",
            type="range",
            data_control="threshold",
            min=0,
            max=len(trust.thresholds) - 1,
            value=place,
            step=1,
            data_limit=place,
        ),
    )
    output = element("output", "", data_control="threshold-result", aria_live="polite")
    reset = element("button", "Back to the limit", type="button", data_control="threshold-reset")
    return figure(
        "threshold",
        "What a threshold on U costs",
        "Above the axis: known steps, held out from the fit. Hatched, below it: steps far from "
        "the data. The line is the threshold, and the last bars hold all larger values.",
        "A good threshold has almost everything known on its left, and everything foreign on its "
        "right.",
        f"At the limit {write_number(trust.limit)}, {write_share(trust.false_alarms[place])} of "
        f"the held-out steps are false alarms and {write_share(trust.misses[place])} of the "
        "out-of-distribution pairs are missed.",
        slider,
        reset,
        output,
    )


def _episodes_figure(trust: TrustSection) -> Html:
    options = []
    for place, episode in enumerate(trust.episodes):
        options.append((str(place), f"episode {episode['episode']}"))
    if trust.new_log is not None:
        for place, episode in enumerate(trust.new_log["episodes"]):
            options.append((f"new-{place}", f"new log, episode {episode['episode']}"))
    numbers = "There is no held-out episode."
    if trust.episodes:
        worst = trust.episodes[0]
        numbers = (
            f"Episode {worst['episode']} has mean U {write_number(worst['mean_penalty'])} and "
            f"{write_share(worst['trusted_share'])} trusted steps."
        )
    return figure(
        "episodes",
        "The least known episodes over time",
        "The line is U at each step. Triangles lie above the limit (dashed): they are not trusted.",
        "Look at these steps first: they are rare in the data, or recorded wrongly.",
        numbers,
        select_box("episode", "Episode", options),
    )


def _survival_figure(trust: TrustSection) -> Html:
    if trust.policy is None:
        return element("div", "No policy is trained, so none is judged here.", class_="missing")
    policy = trust.policy
    last = float(policy["still_inside"][-1])
    return figure(
        "survival",
        "How long the policy stays inside the data",
        "Share of imagined rollouts without any step above the limit so far. The dashed line is "
        "what independent false alarms alone would give.",
        "A policy that falls far below the dashed line walks out of the data; its estimated return "
        "is a guess.",
        f"Half of the rollouts stay inside for {policy['steps_inside']:.0f} steps or more. After "
        f"{policy['horizon']} steps {write_share(last)} of the rollouts never left the data.",
    )


def _episodes_table(caption: str, episodes: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for episode in episodes:
        rows.append(
            (
                f"episode {episode['episode']}",
                f"{episode['length']:,}",
                write_number(episode["return"]),
                write_number(episode["mean_penalty"]),
                write_share(episode["trusted_share"]),
                f"step {episode['worst_step']}",
            )
        )
    heads = ("episode", "steps", "return", "mean U", "trusted", "largest U at")
    return table(caption, heads, rows, class_="numbers")
