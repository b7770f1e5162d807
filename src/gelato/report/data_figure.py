"""A dataset at a glance: returns, lengths, rewards, and the distribution of its states."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gelato.data.summary import episode_lengths, episode_returns
from gelato.data.transitions import Dataset, Transitions, choose_evenly
from gelato.report.references import shorten_reference
from gelato.report.style import BLUE, GREY, INK, label_panels, save
from gelato.tasks.task import name_states

# More state dimensions than this are numbered, because their names would overlap.
_MOST_NAMES = 30


def draw_dataset(dataset: Dataset, path: Path) -> None:
    """Draw histograms of returns, lengths and rewards, and the states.

    A histogram of equal values is not drawn. States are a map if they have two dimensions, else
    the range of each dimension.
    """
    data = dataset.transitions
    histograms = [
        (episode_returns(data), "return of an episode", "episodes"),
        (episode_lengths(data), "length of an episode (steps)", "episodes"),
        (np.asarray(data.rewards, np.float64), "reward of a step", "steps"),
    ]
    varying = [panel for panel in histograms if panel[0].min() < panel[0].max()]
    named = 2 < data.states.shape[1] <= _MOST_NAMES
    height = max(2.9, 1.2 + 0.14 * data.states.shape[1]) if named else 2.9
    figure = Figure(figsize=(2.5 * len(varying) + 3.6, height), layout="constrained")
    *axes, states = figure.subplots(
        1, len(varying) + 1, width_ratios=[1] * len(varying) + [1.3], squeeze=False
    )[0]
    for axis, panel in zip(axes, varying, strict=True):
        _draw_histogram(axis, *panel)
    names = name_states(dataset.environment, data.states.shape[1])
    if data.states.shape[1] == 2:
        _draw_map(states, data, names)
    else:
        _draw_ranges(states, data, names)
    label_panels([*axes, states])
    counts = f"{len(data):,} transitions, {len(data.episode_slices):,} episodes"
    separator = ": " if varying else "\n"
    title = shorten_reference(dataset.reference) + separator + counts
    figure.suptitle(title, fontsize=9)
    save(figure, path)


def _draw_histogram(axes: Axes, values: np.ndarray, label: str, unit: str) -> None:
    axes.hist(values, bins=40, color=BLUE)
    axes.axvline(
        values.mean(), color=INK, linewidth=1, linestyle="--", label=f"mean {values.mean():.4g}"
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=7)
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    axes.set(xlabel=label, ylabel=unit)


def _draw_map(axes: Axes, data: Transitions, names: list[str]) -> None:
    x, y = np.asarray(data.states).T
    grid = len(np.unique(x)), len(np.unique(y))
    bins = grid if max(grid) <= 60 else (60, 60)
    counts, *edges = np.histogram2d(x, y, bins=bins)
    shown = np.ma.masked_equal(counts.T, 0)
    # The colour map has no black, because black marks cells that were never visited.
    image = axes.pcolormesh(
        *edges, shown, cmap="Blues", vmin=0, vmax=1.25 * counts.max(), rasterized=True
    )
    axes.set(xlabel=names[0], ylabel=names[1], aspect="equal", facecolor=INK)
    axes.figure.colorbar(image, ax=axes, label="visits (black: none)")


def _draw_ranges(axes: Axes, data: Transitions, names: list[str]) -> None:
    """Draw the 5th to 95th percentile of each dimension in units of its standard deviation.

    This shows skew and outliers in any units. Few dimensions are shown by name.
    """
    rows = choose_evenly(data, 100_000)
    states = np.asarray(data.states)[rows]
    spread = np.where(states.std(axis=0) > 0, states.std(axis=0), 1)
    low, middle, high = np.percentile((states - states.mean(axis=0)) / spread, (5, 50, 95), axis=0)
    dimensions = np.arange(states.shape[1])
    axes.hlines(dimensions, low, high, color=BLUE, linewidth=3)
    axes.plot(middle, dimensions, "|", color=INK, markersize=7)
    axes.axvline(0, color=GREY, linewidth=0.6, zorder=0)
    if len(names) <= _MOST_NAMES:
        axes.set_yticks(dimensions, names, fontsize=7)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("state dimension")
    axes.invert_yaxis()
    marks = "bar: 5th to 95th percentile, tick: median"
    axes.set_xlabel(f"(s − mean) / standard deviation\n{marks}", fontsize=8)
