"""Distances and geodesics: between two points, from one point to many, between all pairs.

`distance` is pure and differentiable, for use inside compiled programs. The other functions run on
the host. They process pairs in chunks of one compiled shape, so that a million pairs need the
memory of one chunk, and they raise an error if a result is not finite. In two dimensions
`Converged` runs a second time from the shortest path on a graph, and the shorter of the two curves
is returned.
"""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gelato.arrays import map_in_chunks
from gelato.errors import InputError
from gelato.geometry.converged import Converged
from gelato.geometry.curve import Curve, Legendre, Scalar
from gelato.geometry.graph import build, fit_path_curves, place_nodes
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.near import Near
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions
from gelato.progress import note

# Pairs in one chunk. On a CPU a small chunk stays near the cache, which saves a third of the time.
CHUNK_CPU, CHUNK = 512, 4096
Host = Array | np.ndarray
Kept = TypeVar("Kept")


def distance(
    metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None
) -> Scalar:
    """Compute `d(a, b) = inf_γ L(γ)` as the solver finds it.

    Default solver: `Near`, or `Converged` if the metric has no immersion. If `a = b` the distance
    is zero and its gradient finite.
    """
    solver = solver or _choose_near(metric)
    return solver(metric, a, b).length


def connecting_geodesic(
    metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None
) -> Geodesic:
    """Find the shortest curve between two points (default solver: `Converged`)."""
    check_dimensions(a, b)
    found = geodesics(metric, a[None], b[None], solver)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), found)


def distances(
    metric: AbstractMetric,
    a: Point,
    many: Float[Host, "many dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Float[np.ndarray, " many"]:
    """Compute the distances from one point to many (default solver as in `distance`)."""
    many = jnp.asarray(many)
    if many.ndim != 2 or many.shape[1] != a.size:
        raise InputError(
            f"The point has {a.size} dimensions, but the others have shape {many.shape}. "
            f"Pass an array [many, {a.size}]."
        )
    return measure_pairs(metric, jnp.broadcast_to(a, many.shape), many, solver, chunk_size)


def pairwise(
    metric: AbstractMetric,
    points: Float[Host, "n dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Float[np.ndarray, "n n"]:
    """Compute the symmetric matrix of distances between points (default solver: `Converged`).

    Each pair is solved once.
    """
    rows, columns = np.triu_indices(len(points), k=1)
    values = np.zeros((len(points), len(points)), dtype=np.asarray(points).dtype)
    if len(rows):
        starts, ends = jnp.asarray(points)[rows], jnp.asarray(points)[columns]
        lengths = measure_pairs(metric, starts, ends, solver or Converged(), chunk_size)
        values[rows, columns] = lengths
    return values + values.T


def measure_pairs(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Float[np.ndarray, " pairs"]:
    """Compute the distance of each pair (default solver as in `distance`) without its curve."""
    solver = solver or _choose_near(metric)
    found = _solve_pairs(metric, starts, ends, solver, chunk_size, _get_length_and_converged)
    lengths, converged = np.asarray(found[0]), np.asarray(found[1])
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        start, end = np.asarray(starts)[bad[0]], np.asarray(ends)[bad[0]]
        raise InputError(
            f"The metric is not finite between {start} and {end} "
            f"({len(bad)} of {len(lengths)} pairs). Check the decoder and the points there."
        )
    missed = int(np.sum(~converged))
    if missed:
        note(
            f"{missed} of {len(lengths)} geodesics did not converge; their lengths are upper bounds"
        )
    return lengths


def geodesics(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Geodesic:
    """Find the geodesic of each pair (default solver: `Converged`).

    The pair is the first axis of all arrays.
    """
    return _solve_pairs(metric, starts, ends, solver or Converged(), chunk_size, _keep_all)


def _solve_pairs(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver,
    chunk_size: int | None,
    keep: Callable[[Geodesic], Kept],
) -> Kept:
    starts, ends = jnp.asarray(starts), jnp.asarray(ends)
    if starts.shape != ends.shape or starts.ndim != 2:
        raise InputError(
            f"starts {starts.shape} and ends {ends.shape} must have one shape [pairs, dim]."
        )
    if not len(starts):
        raise InputError("There are no pairs to measure. Pass at least one point.")
    shapes = None
    if isinstance(solver, Converged) and starts.shape[1] == 2:
        found = _graph_starts(metric, np.asarray(starts), np.asarray(ends), solver.modes)
        shapes = jnp.asarray(found, starts.dtype)
    if chunk_size is None:
        chunk_size = CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK

    def solve(a: Array, b: Array, shape: Array | None) -> Kept:
        return _solve_chunk(metric, solver, keep, a, b, shape)

    return map_in_chunks(solve, (starts, ends, shapes), chunk_size, "geodesics")


# This is compiled once for each metric, solver and shape. `keep` must be a function of this module,
# because a new function object would compile again.
@eqx.filter_jit
def _solve_chunk(
    metric: AbstractMetric,
    solver: AbstractSolver,
    keep: Callable[[Geodesic], Kept],
    starts: Float[Array, "pairs dim"],
    ends: Float[Array, "pairs dim"],
    shapes: Float[Array, "pairs modes dim"] | None,
) -> Kept:
    def solve(a: Point, b: Point, shape: Array | None) -> Kept:
        return keep(_solve_pair(solver, metric, a, b, shape))

    return jax.vmap(solve)(starts, ends, shapes)


def _keep_all(geodesic: Geodesic) -> Geodesic:
    return geodesic


def _get_length_and_converged(geodesic: Geodesic) -> tuple[Scalar, Bool[Array, ""]]:
    return geodesic.length, geodesic.converged


def _solve_pair(
    solver: AbstractSolver, metric: AbstractMetric, a: Point, b: Point, shape: Array | None
) -> Geodesic:
    direct = solver(metric, a, b)
    if shape is None or not isinstance(solver, Converged):
        return direct
    around = solver.refine(metric, Curve(a, b, shape, Legendre(solver.modes)))
    return jax.tree.map(lambda x, y: jnp.where(around.length < direct.length, x, y), around, direct)


def _graph_starts(
    metric: AbstractMetric, starts: np.ndarray, ends: np.ndarray, modes: int
) -> Float[np.ndarray, "pairs modes dim"]:
    nodes, where = np.unique(np.concatenate([starts, ends]), axis=0, return_inverse=True)
    where = where.reshape(2, -1).T
    if len(nodes) < 2:
        return np.zeros((len(starts), modes, starts.shape[1]))
    return fit_path_curves(build(metric, np.concatenate([nodes, place_nodes(nodes)])), where, modes)


def _choose_near(metric: AbstractMetric) -> AbstractSolver:
    return Near() if isinstance(metric, AbstractImmersed) else Converged()
