"""Draw a fitted model: fan charts of rollouts, recorded states, the growth of the error."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gelato.model.check import measure_rollouts
from gelato.model.fans import sample_fan
from gelato.model.training import FittedModel
from gelato.report.references import shorten_reference
from gelato.report.style import BLUE, INK, ORANGE, add_legend, label_panels, save


def draw_rollouts(fitted: FittedModel, path: Path, *, seed_index: int = 0) -> None:
    """Draw sampled rollouts along one held-out action sequence as fans.

    One panel for each of the dimensions that move most, and one for the growth of the error.
    """
    fan = sample_fan(fitted, seed_index=seed_index)
    moving, names = fan.moving, fitted.dataset.list_state_names()
    columns = min(len(moving) + 1, 3)
    rows = -(-(len(moving) + 1) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, dimension in zip(axes, moving, strict=False):
        _draw_fan(axis, fan.sampled[:, :, dimension], fan.truth[:, dimension], names[dimension])
    errors = measure_rollouts(fitted, fitted.seed(seed_index), fitted.parts[1])
    _draw_growth(axes[len(moving)], errors)
    for axis in axes[len(moving) + 1 :]:
        axis.set_axis_off()
    label_panels(list(axes[: len(moving) + 1]))
    add_legend(figure, list(axes[: len(moving) + 1]), width=1.55)
    name = shorten_reference(fitted.dataset.reference)
    title = f"{name}: open-loop rollouts along a held-out action sequence\n"
    title += f"model seed {fitted.seeds[seed_index]}; the sequence is in the middle of the data"
    figure.suptitle(title, fontsize=9)
    save(figure, path)


def _draw_fan(axes: Axes, sampled: np.ndarray, truth: np.ndarray, label: str) -> None:
    steps = np.arange(len(truth))
    for level, shade in ((0.9, 0.25), (0.5, 0.45)):
        low, high = np.quantile(sampled, (0.5 - level / 2, 0.5 + level / 2), axis=0)
        axes.fill_between(
            steps, low, high, color=BLUE, alpha=shade, linewidth=0, label=f"{level:.0%} of rollouts"
        )
    axes.plot(steps, np.median(sampled, axis=0), color=BLUE, linewidth=1, label="median rollout")
    axes.plot(steps, truth, color=INK, linewidth=1, linestyle="--", label="recorded states")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="steps ahead", ylabel=label)


def _draw_growth(axes: Axes, errors: dict[str, Any]) -> None:
    steps = np.arange(len(errors["rmse"]) + 1)
    for name, label, style in (
        ("rmse", "error of the model", "-"),
        ("rmse_of_no_change", "error without change", "-."),
    ):
        axes.plot(
            steps,
            [0, *errors[name]],
            color=ORANGE if style == "-" else INK,
            linestyle=style,
            label=label,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="steps ahead", ylabel="RMSE\n(standard deviations)", ylim=(0, None))
