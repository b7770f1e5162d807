"""The model section."""

from collections.abc import Mapping, Sequence
from typing import Any

from gelato.report.page.records import ModelSection, RunReport
from gelato.report.page.render.html import (
    Html,
    element,
    figure,
    list_items,
    section,
    select_box,
    table,
    tile,
    tiles,
)
from gelato.report.page.render.numbers import MISSING, write_count, write_number, write_share
from gelato.report.page.render.verdict import render_missing

_LEAD = "How well the learned model predicts episodes that it never saw."


def render_model(run: RunReport) -> Html:
    """Write the accuracy of the latent model."""
    model = run.model
    if model is None:
        missing = render_missing(run.missing, "model", "This run has no latent model.")
        return section("model", "Model", _LEAD, missing)
    shown = next(each for each in model.check["seeds"] if each["seed"] == model.seed)
    children = [
        _render_tiles(model, shown),
        list_items(model.check["warnings"], class_="warnings"),
        element("div", _accuracy_figure(model, shown), _growth_figure(shown), class_="two"),
        _fans_figure(model, shown),
        _seeds_table(model.check["seeds"]),
    ]
    return section("model", "Model", _LEAD, *children)


def _render_tiles(model: ModelSection, shown: Mapping[str, Any]) -> Html:
    check = model.check
    return tiles(
        tile(
            "R² of the state change", write_number(shown["delta_r2"]), "1 is perfect, 0 is useless"
        ),
        tile("R² of the reward", write_number(shown["reward_r2"]), "on held-out steps"),
        tile("90% intervals hold", write_share(shown["coverage_90"]), "of held-out steps"),
        tile(
            "Held-out steps",
            write_count(check["held_out_transitions"]),
            f"{check['held_out_episodes']:,} episodes",
        ),
        tile(
            "Latent dimensions",
            str(model.latent_size),
            f"{shown['active_latents']} active; {model.decoders} decoders",
        ),
    )


def _accuracy_figure(model: ModelSection, shown: Mapping[str, Any]) -> Html:
    known = []
    for name, value in zip(model.names, shown["delta_r2_per_dimension"]):
        if value is not None:
            known.append((value, name))
    known.sort()
    numbers = "No dimension changes."
    if known:
        numbers = (
            f"Worst: {known[0][1]} with {write_number(known[0][0])}. "
            f"Best: {known[-1][1]} with {write_number(known[-1][0])}."
        )
    return figure(
        "accuracy",
        f"Accuracy of each state column (seed {model.seed})",
        "R² of the predicted change on held-out steps, worst first. Hatched: below 0.5.",
        "A low bar marks a column that the model cannot predict; do not rely on it.",
        numbers,
    )


def _growth_figure(shown: Mapping[str, Any]) -> Html:
    rollouts = shown["rollouts"]
    return figure(
        "growth",
        "Error of rollouts",
        "Solid: the model. Dashed: predicting no change. Both in standard deviations.",
        "Where the lines meet, the model is no better than predicting no change.",
        f"After {rollouts['horizon']} steps the model’s error is "
        f"{write_number(rollouts['rmse'][-1])}, that of no change "
        f"{write_number(rollouts['rmse_of_no_change'][-1])}.",
    )


def _fans_figure(model: ModelSection, shown: Mapping[str, Any]) -> Html:
    names = [(str(place), fan["name"]) for place, fan in enumerate(model.fans)]
    covered = shown["rollouts"]["coverage_90"][-1]
    return figure(
        "fans",
        f"Imagined futures (seed {model.seed})",
        "Sampled rollouts along one held-out action sequence. Bands hold 50% and 90% of them; "
        "the dashed line with dots is what happened.",
        "A good model keeps the dots inside of the wide band, and the band narrow.",
        f"At the last step, 90% bands hold the truth in {write_share(covered)} of the sequences.",
        select_box("fan-column", "Column", names),
    )


def _seeds_table(seeds: Sequence[Mapping[str, Any]]) -> Html:
    labels = (
        ("R² of the state change", "delta_r2", write_number),
        ("negative log-likelihood", "negative_log_likelihood", write_number),
        ("50% intervals hold", "coverage_50", write_share),
        ("90% intervals hold", "coverage_90", write_share),
        ("99% intervals hold", "coverage_99", write_share),
        ("R² of the reward", "reward_r2", write_number),
        ("terminations in held-out data", "terminations", write_number),
        ("termination precision", "termination_precision", write_share),
        ("termination recall", "termination_recall", write_share),
        ("active latent dimensions", "active_latents", write_number),
    )
    rows = []
    for label, key, write in labels:
        rows.append((label, *[write(each.get(key)) or MISSING for each in seeds]))
    heads = ("measure", *[f"seed {each['seed']}" for each in seeds])
    return table("All seeds of the model, on held-out episodes", heads, rows, class_="numbers")
