"""t-SNE of a few trajectories by Euclidean and by geodesic latent distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure, SubFigure
from scipy.spatial.distance import cdist

from gelato.data.transitions import Transitions
from gelato.errors import InputError, import_extra
from gelato.geometry import Near, pairwise
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.progress import working
from gelato.report.latent_space import build_decoder_metric, encode_states, measure_plane
from gelato.report.style import GREY, INK, MARK, save

EPISODES = 3
_POINTS = 500


@dataclass(frozen=True)
class Pictures:
    """Pictures of some rows of the data, drawn below the embedding and numbered in it."""

    rows: Int[np.ndarray, " pictures"]
    frames: list[np.ndarray]


def draw_embedding(
    fitted: FittedModel,
    path: Path,
    points: int | None = None,
    pictures: Pictures | None = None,
) -> None:
    """Draw both layouts next to each other, coloured by the time in the trajectory."""
    manifold = import_extra("sklearn.manifold", "figures")
    data = fitted.dataset.transitions
    rows = choose_rows(data, points or min(_POINTS, len(data)))
    model = fitted.seed(0)
    codes = encode_states(fitted, model, data[rows].inputs)
    measured = {
        "Euclidean distance": cdist(codes, codes),
        "geodesic distance": _measure_geodesics(model, codes),
    }
    figure = Figure(figsize=(6.6, 3.2 if pictures is None else 4.9), layout="constrained")
    above: Any = figure
    if pictures is not None:
        above, below = figure.subfigures(2, 1, height_ratios=(3.2, 1.7))  # type: ignore[misc]
        _draw_pictures(below, pictures.frames)
    axes = above.subplots(1, 2)
    for axis, label, (title, distances) in zip(axes, "ab", measured.items(), strict=True):
        # scikit-learn's default perplexity of 30, or what fewer points allow.
        perplexity = min(30.0, (len(distances) - 1) / 3)
        layout = manifold.TSNE(
            metric="precomputed", init="random", random_state=0, perplexity=perplexity
        )
        with working(f"t-SNE by {title}"):
            places = layout.fit_transform(distances)
        shown = _draw_trajectories(axis, places, data, rows)
        axis.set_title(f"({label}) t-SNE by {title}")
        if pictures is not None:
            _draw_numbers(axis, places[np.searchsorted(rows, pictures.rows)])
    figure.suptitle(f"dots: states, lines: trajectories; model seed {fitted.seeds[0]}", fontsize=8)
    above.colorbar(shown, ax=axes, label="time in the trajectory (steps)")
    save(figure, path)


def _draw_numbers(axes: Axes, places: Float[np.ndarray, "n 2"]) -> None:
    """Number the places of the pictures."""
    for number, place in enumerate(places, start=1):
        axes.annotate(
            str(number),
            place,
            xytext=(7, 5),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold",
            color=INK,
            bbox={
                "boxstyle": "circle,pad=0.12",
                "facecolor": "white",
                "edgecolor": MARK,
                "linewidth": 0.9,
            },
            zorder=4,
        )


def _draw_pictures(figure: SubFigure, frames: Sequence[np.ndarray]) -> None:
    panels = zip(figure.subplots(1, len(frames)), frames, strict=True)
    for number, (axes, frame) in enumerate(panels, start=1):
        axes.imshow(frame)
        axes.set(xticks=[], yticks=[])
        axes.set_title(str(number), fontsize=8)


def _measure_geodesics(
    model: LatentModel, codes: Float[np.ndarray, "n latent"]
) -> Float[np.ndarray, "n n"]:
    metric = build_decoder_metric(model)
    if codes.shape[1] == 2:
        return measure_plane(metric, codes)
    return pairwise(metric, codes, Near())


def _draw_trajectories(
    axes: Axes, layout: np.ndarray, data: Transitions, rows: Int[np.ndarray, " n"]
) -> PathCollection:
    times = np.zeros(len(rows))
    for episode in data.episode_slices:
        inside = (rows >= episode.start) & (rows < episode.stop)
        times[inside] = rows[inside] - episode.start
        axes.plot(*layout[inside].T, color=GREY, linewidth=0.4, alpha=0.5, zorder=1)
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    return axes.scatter(
        layout[:, 0],
        layout[:, 1],
        c=times,
        vmin=0,
        vmax=max(1.0, times.max()),
        s=7,
        linewidths=0.2,
        edgecolors=INK,
        zorder=2,
    )


def choose_rows(data: Transitions, points: int) -> Int[np.ndarray, " points"]:
    """Choose the first steps of the first episodes, at most a third of the points from each."""
    if points > len(data):
        raise InputError(
            f"--points {points}: the data has only {len(data)} transitions; use fewer points"
        )
    share = -(-points // EPISODES)
    while True:
        chosen = [
            np.arange(episode.start, min(episode.stop, episode.start + share))
            for episode in data.episode_slices
        ]
        kept = np.concatenate(chosen)[:points]
        if len(kept) == points:
            return kept
        share *= 2
