"""Draw a fitted model: fan charts of rollouts, recorded states, the growth of the error."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gelato.model.check import choose_sequence_starts, find_longest_horizon, rollout, rollout_errors
from gelato.model.fit import normalise_batch
from gelato.model.training import FittedModel
from gelato.report.references import shorten_reference
from gelato.report.style import BLUE, INK, ORANGE, add_legend, label_panels, save
from gelato.tasks.task import name_states

_SAMPLES = 256
_FANS = 5


def draw_rollouts(fitted: FittedModel, path: Path, *, seed_index: int = 0) -> None:
    """Draw sampled rollouts along one held-out action sequence as fans.

    One panel for each of the dimensions that move most, and one for the growth of the error.
    """
    _, held_out = fitted.parts
    model, horizon = fitted.seed(seed_index), find_longest_horizon(held_out)
    starts = choose_sequence_starts(held_out, horizon, 9)
    start = int(starts[len(starts) // 2])
    batch = normalise_batch(
        held_out[start : start + horizon], fitted.scaling, jnp.zeros((horizon, 0))
    )
    key = jax.random.key(0)
    sampled = rollout(model, batch.states[0], batch.actions, samples=_SAMPLES, key=key)
    raw = np.asarray(fitted.scaling.states.inverse(np.asarray(sampled)))
    first = np.asarray(held_out.states[start])
    truth = np.asarray(held_out.next_states[start : start + horizon])
    # Every fan starts at the initial state of the rollouts.
    raw = np.concatenate([np.broadcast_to(first, (_SAMPLES, 1, len(first))), raw], axis=1)
    truth = np.concatenate([first[None], truth])
    moving = sorted(np.argsort(-np.asarray(batch.next_states).std(axis=0))[:_FANS])
    names = name_states(fitted.dataset.environment, len(first))
    columns = min(len(moving) + 1, 3)
    rows = -(-(len(moving) + 1) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, dimension in zip(axes, moving, strict=False):
        _draw_fan(axis, raw[:, :, dimension], truth[:, dimension], names[dimension])
    _draw_growth(axes[len(moving)], rollout_errors(fitted, model, held_out))
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
