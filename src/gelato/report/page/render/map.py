"""The map section."""

import numpy as np

from gelato.report.page.records import MapSection, RunReport
from gelato.report.page.render.html import (
    Html,
    element,
    figure,
    paragraph,
    section,
    select_box,
)
from gelato.report.page.render.numbers import count_noun, write_number, write_share
from gelato.report.page.render.verdict import render_missing

_LEAD = "The data in two dimensions. Click a point, or select a region."
# Points in the list that the keyboard reaches first.
_LISTED = 12


def render_map(run: RunReport) -> Html:
    """Write the frame of the map; the page's program draws it."""
    found = run.map
    if found is None:
        missing = render_missing(run.missing, "model", "A map needs a latent model.")
        return section("map", "Map", _LEAD, missing)
    children = [
        paragraph(_explain_sample(found), class_="sample"),
        element("div", _map_figure(run, found), _side_panel(found), class_="map-grid"),
    ]
    return section("map", "Map", _LEAD, *children)


def _explain_sample(found: MapSection) -> str:
    shown = len(found.points["x"])
    text = f"The plane is {found.title}. "
    if shown < found.total:
        text += (
            f"{shown:,} of {found.total:,} steps are shown, spread evenly over the log; "
            "the same run always shows the same points."
        )
    else:
        text += f"All {count_noun(shown, 'step')} are shown."
    if found.overlay is not None:
        text += f" Crosses are {len(found.overlay['x']):,} steps of {found.overlay_name}."
    return text


def _map_figure(run: RunReport, found: MapSection) -> Html:
    colours = [("return", "return of the episode"), ("step", "time (step)")]
    if "penalty" in found.points:
        colours.insert(0, ("penalty", "penalty U of the logged action"))
    if "policy_penalty" in found.points:
        colours.insert(1, ("policy_penalty", "penalty U of the policy’s action"))
    colours += [("error", "error of the model"), ("reward", "reward")]
    views = [("plane", "latent space"), ("columns", "state columns")]
    columns = [(str(place), name) for place, name in enumerate(found.state_names)]
    second = "1" if len(columns) > 1 else "0"
    controls = [
        select_box("map-colour", "Colour", colours),
        select_box("map-view", "View", views),
        element(
            "span",
            select_box("map-x", "x", columns, "0"),
            select_box("map-y", "y", columns, second),
            data_control="map-columns",
            hidden=True,
        ),
    ]
    if run.paths is not None:
        controls.append(
            element(
                "label",
                element("input", type="checkbox", data_control="map-paths"),
                " paths of the policy",
            )
        )
    for name, text in (("map-lasso", "Select a region"), ("map-reset", "Reset")):
        controls.append(element("button", text, type="button", data_control=name))
    return figure(
        "map",
        "Map of the data",
        "Each point is a logged step. Circles are trusted, triangles are not. Lightness shows the "
        "chosen number; the scale is on the right. Where many steps share a place, the mark shows "
        "the one with the largest number. Double click to zoom out to everything.",
        "Far from all points the model guesses; a policy that walks there is not safe.",
        _describe_in_words(found),
        *controls,
    )


def _describe_in_words(found: MapSection) -> str:
    points = found.points
    text = f"{count_noun(len(points['x']), 'step')}. "
    if "trusted" in points:
        text += f"{write_share(float(np.mean(points['trusted'])))} of them are trusted. "
    errors = np.asarray(points["error"], float)
    if np.isfinite(errors).any():
        text += f"Median error of the model {write_number(float(np.nanmedian(errors)))}. "
    return text + "The list next to the map reaches points by keyboard."


def _side_panel(found: MapSection) -> Html:
    order = np.argsort(-np.asarray(found.points.get("penalty", found.points["error"]), float))
    listed = []
    for place in order[:_LISTED].tolist():
        episode, step = int(found.points["episode"][place]), int(found.points["step"][place])
        label = f"episode {episode}, step {step}"
        listed.append(
            element("li", element("button", label, type="button", data_point=place, class_="link"))
        )
    what = "least known" if "penalty" in found.points else "worst predicted"
    return element(
        "aside",
        element(
            "div",
            element("h3", "One step", id="point-title"),
            paragraph(
                "Click a point of the map, or choose one here. Arrow keys on the map go to the "
                "steps before and after.",
                class_="hint",
            ),
            data_control="point-panel",
            aria_live="polite",
        ),
        element("div", data_control="region-panel", aria_live="polite"),
        element(
            "details", element("summary", f"The {what} steps"), element("ol", *listed), open=True
        ),
        class_="panel",
        aria_label="Details of the map",
    )
