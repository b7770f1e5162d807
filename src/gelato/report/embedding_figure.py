"""The paper's t-SNE figures: states of a few trajectories, laid out by Euclidean and by geodesic distance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure, SubFigure
from scipy.spatial.distance import cdist
from sklearn.manifold import TSNE

from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.geometry import Near, pairwise
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.progress import working
from gelato.report.one_turn import one_turn
from gelato.report.rooms import decoder_metric, geodesic_distances
from gelato.report.style import GREY, INK, MARK, save

EPISODES = 3
_POINTS = 500


def draw_embedding(fitted: FittedModel, path: Path, points: int | None = None) -> None:
    """Draw both layouts side by side, coloured by the time in the trajectory; of driving data with pictures."""
    data = fitted.dataset.transitions
    rows = choose_rows(data, points or min(_POINTS, len(data)))
    model = fitted.seed(0)
    states = jnp.asarray(fitted.scaling.states(np.asarray(data.states)[rows]))
    codes = np.asarray(jax.vmap(lambda state: model.encode(state).mean)(states))
    measured = {"Euclidean distance": cdist(codes, codes), "geodesic distance": _geodesic(model, codes)}
    turn = one_turn(fitted.dataset)
    figure = Figure(figsize=(6.6, 3.2 if turn is None else 4.9), layout="constrained")
    above: Any = figure
    if turn is not None:
        above, below = figure.subfigures(2, 1, height_ratios=(3.2, 1.7))  # type: ignore[misc]
        _pictures(below, turn.frames)
    axes = above.subplots(1, 2)
    for axis, label, (title, distances) in zip(axes, "ab", measured.items(), strict=True):
        with working(f"t-SNE by {title}"):
            layout = TSNE(metric="precomputed", init="random", random_state=0, perplexity=_perplexity(distances))
            places = layout.fit_transform(distances)
        shown = _trajectories(axis, places, data, rows)
        axis.set_title(f"({label}) t-SNE by {title}")
        if turn is not None:
            _number(axis, places[np.searchsorted(rows, turn.rows)])
    above.colorbar(shown, ax=axes, label="time in the trajectory (steps)")
    save(figure, path)


def _number(axes: Axes, places: Float[np.ndarray, "n 2"]) -> None:
    """Numbers beside the places of one trajectory's states."""
    for number, place in enumerate(places, start=1):
        axes.annotate(
            str(number),
            place,
            xytext=(7, 5),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold",
            color=INK,
            bbox={"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": MARK, "linewidth": 0.9},
            zorder=4,
        )


def _pictures(figure: SubFigure, frames: Sequence[np.ndarray]) -> None:
    for number, (axes, frame) in enumerate(zip(figure.subplots(1, len(frames)), frames, strict=True), start=1):
        axes.imshow(frame)
        axes.set(xticks=[], yticks=[])
        axes.set_title(str(number), fontsize=8)


def _geodesic(model: LatentModel, codes: Float[np.ndarray, "n latent"]) -> Float[np.ndarray, "n n"]:
    if codes.shape[1] == 2:
        return geodesic_distances(decoder_metric(model), codes)
    return pairwise(decoder_metric(model), codes, Near())


def _perplexity(distances: Float[np.ndarray, "n n"]) -> float:
    """scikit-learn's own 30, or what fewer points allow."""
    return min(30.0, (len(distances) - 1) / 3)


def _trajectories(axes: Axes, layout: np.ndarray, data: Transitions, rows: Int[np.ndarray, " n"]) -> PathCollection:
    times = np.zeros(len(rows))
    for episode in data.episode_slices:
        inside = (rows >= episode.start) & (rows < episode.stop)
        times[inside] = rows[inside] - episode.start
        axes.plot(*layout[inside].T, color=GREY, linewidth=0.4, alpha=0.5, zorder=1)
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    return axes.scatter(layout[:, 0], layout[:, 1], c=times, s=7, linewidths=0.2, edgecolors=INK, zorder=2)


def choose_rows(data: Transitions, points: int) -> Int[np.ndarray, " points"]:
    """The first steps of the first episodes, one after the other: a third of the points of each, or all it has."""
    if points > len(data):
        raise InputError(f"--points {points}: the data has only {len(data)} transitions")
    share = -(-points // EPISODES)
    while True:
        chosen = [np.arange(episode.start, min(episode.stop, episode.start + share)) for episode in data.episode_slices]
        kept = np.concatenate(chosen)[:points]
        if len(kept) == points:
            return kept
        share *= 2
