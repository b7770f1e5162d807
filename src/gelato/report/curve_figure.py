"""Convergence of solvers to a geodesic between two states: length by iterations and modes."""

from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gelato.data.transitions import choose_evenly
from gelato.geometry import (
    AbstractMetric,
    AbstractSolver,
    Converged,
    Curve,
    PaperSGD,
    Straight,
    connecting_geodesic,
    length,
    measure_pairs,
)
from gelato.geometry.metric import Point
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.progress import progress
from gelato.report.latent_space import build_decoder_metric, draw_volume, encode_states
from gelato.report.style import BLUE, INK, ORANGE, add_legend, label_panels, save

ITERATIONS = (2, 5, 10, 20, 50)
MODES = (1, 2, 4, 8)
# Many nodes: with the default number, a narrow wall of high metric between two nodes would be
# missed.
REFERENCE = Converged(modes=16, nodes=64, iterations=300)
# All curves are measured with the same fine quadrature.
NODES = 256
CANDIDATES = 64

Curves = list[Curve]


def draw_curve(fitted: FittedModel, path: Path) -> None:
    """Draw the length of each solver's curve and, if the latent space is a plane, the curves."""
    model = fitted.seed(0)
    metric, codes = build_decoder_metric(model), encode_held_out(fitted, model)
    a, b = choose_distant_pair(metric, codes)
    reference = connecting_geodesic(metric, a, b, REFERENCE).curve
    by_iterations, by_modes, by_paper, [line] = _solve_all(metric, a, b)
    plane = model.latent_size == 2
    figure = Figure(figsize=(9.0 if plane else 6.4, 3.5), layout="constrained")
    *first, iterations, modes = figure.subplots(1, 3 if plane else 2, squeeze=False)[0]
    if plane:
        shown = {
            "reference": reference,
            "converged": by_modes[-1],
            "paper": by_paper[-1],
            "straight": line,
        }
        _draw_curves(first[0], metric, np.asarray(codes), shown)
    for curve, style, label in ((line, "--", "straight line"), (reference, ":", "reference")):
        value = float(_measure(metric, curve))
        for axis in (iterations, modes):
            axis.axhline(value, color=INK, linewidth=1, linestyle=style, label=label)
    _draw_lengths(iterations, metric, ITERATIONS, by_paper, ORANGE, "s", "the paper's SGD")
    _draw_lengths(iterations, metric, ITERATIONS, by_iterations, BLUE, "o", "L-BFGS, 8 modes")
    _draw_lengths(modes, metric, MODES, by_modes, BLUE, "o", "L-BFGS, converged")
    iterations.set(xlabel="iterations", ylabel="length of the curve")
    modes.set(xlabel="modes of the curve", ylabel="length of the curve")
    panels = [*first, iterations, modes]
    label_panels(panels)
    add_legend(figure, panels, width=1.4)
    figure.suptitle(
        "a geodesic between the two held-out states with the longest straight line; "
        f"model seed {fitted.seeds[0]}",
        fontsize=8,
    )
    save(figure, path)


def encode_held_out(fitted: FittedModel, model: LatentModel) -> jax.Array:
    """Encode held-out states, evenly spaced over the data."""
    held_out = fitted.parts[1]
    chosen = held_out[choose_evenly(held_out, CANDIDATES)]
    return jnp.asarray(encode_states(fitted, model, chosen.inputs))


def choose_distant_pair(metric: AbstractMetric, codes: jax.Array) -> tuple[Point, Point]:
    """Choose the two codes with the longest straight line between them.

    There a solver can improve the straight line most.
    """
    rows, columns = np.triu_indices(len(codes), k=1)
    lengths = measure_pairs(metric, codes[rows], codes[columns], Straight(nodes=16))
    longest = int(np.argmax(lengths))
    return codes[rows[longest]], codes[columns[longest]]


def _solve_all(metric: AbstractMetric, a: Point, b: Point) -> list[Curves]:
    families: list[list[AbstractSolver]] = [
        [Converged(iterations=count, nodes=REFERENCE.nodes) for count in ITERATIONS],
        [Converged(modes=count, nodes=REFERENCE.nodes) for count in MODES],
        [PaperSGD(steps=count) for count in ITERATIONS],
        [Straight()],
    ]
    with progress("solving", sum(map(len, families))) as advance:

        def solve(solver: AbstractSolver) -> Curve:
            found = connecting_geodesic(metric, a, b, solver).curve
            advance(1)
            return found

        return [[solve(solver) for solver in family] for family in families]


@eqx.filter_jit
def _measure(metric: AbstractMetric, curve: Curve) -> Float[Array, ""]:
    return length(metric, curve, NODES)


def _draw_lengths(
    axes: Axes,
    metric: AbstractMetric,
    counts: Sequence[int],
    curves: Curves,
    color: str,
    marker: str,
    label: str,
) -> None:
    values = [float(_measure(metric, curve)) for curve in curves]
    axes.plot(counts, values, color=color, marker=marker, markersize=4, linewidth=1.2, label=label)
    axes.set_xscale("log", base=2 if counts == MODES else 10)
    axes.set_xticks(counts, [str(count) for count in counts], minor=False)
    axes.minorticks_off()


def _draw_curves(
    axes: Axes, metric: AbstractMetric, codes: np.ndarray, curves: dict[str, Curve]
) -> None:
    draw_volume(axes, metric, codes)
    t = np.linspace(0, 1, NODES)
    looks = {
        "straight": (INK, "--"),
        "paper": (ORANGE, "-"),
        "converged": (BLUE, "-"),
        "reference": (INK, ":"),
    }
    for name, curve in curves.items():
        color, style = looks[name]
        points = np.asarray(curve.at(t)[0])
        axes.plot(*points.T, color="white", linewidth=2.6, linestyle="-", alpha=0.6)
        axes.plot(*points.T, color=color, linewidth=1.4, linestyle=style)
    axes.plot(
        *np.stack([points[0], points[-1]]).T,
        linestyle="none",
        marker="o",
        color="white",
        markeredgecolor=INK,
        label="the two states",
    )
