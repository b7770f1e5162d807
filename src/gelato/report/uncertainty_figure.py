"""Penalties against the true error: risk–coverage curves, and error by calibrated penalty."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gelato.report.references import shorten_reference
from gelato.report.style import BLUE, GREY, INK, ORANGE, add_legend, label_panels, save
from gelato.uncertainty.judge import Report, ShiftResult
from gelato.uncertainty.scores import compute_risk_coverage

# Colour and dash for each penalty, so that they differ in grey.
_LINE_STYLES = {
    "transport": (ORANGE, "-"),
    "geodesic": (BLUE, "-"),
    "euclidean": (BLUE, ":"),
    "ensemble": (GREY, "-"),
    "aleatoric": (INK, "--"),
    "forward": (INK, "-."),
    "ambient": (GREY, "--"),
    "guard": (ORANGE, "--"),
    "unusual-action": (ORANGE, "-."),
    "none": (GREY, ":"),
}
_OTHER = (ORANGE, ":")
_BINS = 8


def draw_uncertainty(report: Report, path: Path) -> None:
    """Draw, for every shift, risk–coverage curves above and error by penalty below."""
    columns = len(report.judged)
    figure = Figure(figsize=(2.3 * columns + 0.4, 4.6), layout="constrained")
    axes = figure.subplots(2, columns, squeeze=False)
    for column, judged in enumerate(report.judged):
        _draw_risk(axes[0, column], judged)
        _draw_reliability(axes[1, column], judged, report)
        axes[0, column].set_title(judged.shift)
    label_panels(list(axes.ravel()))
    axes[0, 0].set_ylabel("mean error of rows kept\n(normalised states)")
    axes[1, 0].set_ylabel("mean true error\n(normalised states)")
    add_legend(figure, list(axes.ravel()), width=1.2)
    name = shorten_reference(report.dataset)
    title = f"{name}, model seed {report.model_seed}; truth: {report.truth}"
    figure.suptitle(title, fontsize=9)
    save(figure, path)


def _draw_risk(axes: Axes, judged: ShiftResult) -> None:
    coverage = np.arange(1, len(judged.errors) + 1) / len(judged.errors)
    shown = coverage >= 0.05
    for name, values in judged.penalties.items():
        colour, dash = _LINE_STYLES.get(name, _OTHER)
        axes.plot(
            coverage[shown],
            compute_risk_coverage(values, judged.errors)[shown],
            dash,
            color=colour,
            label=name,
            lw=1.2,
        )
    axes.plot(
        coverage[shown],
        compute_risk_coverage(judged.errors, judged.errors)[shown],
        color=INK,
        lw=0.6,
        label="oracle (the true error)",
    )
    axes.set(xlabel="fraction of rows kept", xlim=(0, 1), yscale="log")


def _draw_reliability(axes: Axes, judged: ShiftResult, report: Report) -> None:
    """Draw the mean error in bins of the calibrated penalty that hold equally many rows."""
    for name, values in judged.penalties.items():
        colour, dash = _LINE_STYLES.get(name, _OTHER)
        calibrated = np.asarray(report.scales[name](jnp.asarray(values)))
        order = np.array_split(np.argsort(values), _BINS)
        means = [
            (calibrated[rows].mean(), judged.errors[rows].mean()) for rows in order if len(rows)
        ]
        axes.plot(*np.array(means).T, dash, color=colour, marker=".", ms=4, lw=1)
    axes.set(xlabel="calibrated penalty", yscale="log")
    axes.set_xscale("symlog", linthresh=1.0)
