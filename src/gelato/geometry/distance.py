"""Distances and geodesics: between two points, from one point to many, between all pairs.

`distance` is pure and differentiable, for use inside compiled programs. The other functions run on
the host (see `batch.py`). They raise an error if a result is not finite. The default solver of all
functions is `Adaptive()`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gelato.errors import InputError
from gelato.geometry.adaptive import Adaptive
from gelato.geometry.batch import Host, Pairs, Triangle, solve_pairs
from gelato.geometry.curve import Scalar
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions
from gelato.progress import note


def distance(
    metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None
) -> Scalar:
    """Compute `d(a, b) = inf_γ L(γ)` as the solver finds it.

    If `a = b` the distance is zero and its gradient finite.
    """
    return (solver or Adaptive())(metric, a, b).length


def connecting_geodesic(
    metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None
) -> Geodesic:
    """Find the shortest curve between two points."""
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
    """Compute the distances from one point to many."""
    many = jnp.asarray(many)
    if many.ndim != 2 or many.shape[1] != a.size:
        raise InputError(
            f"The point has {a.size} dimensions, but the others have shape {many.shape}. "
            f"Pass an array [many, {a.size}]."
        )
    rows = np.arange(len(many))
    return _measure(metric, Pairs(a[None], many, np.zeros_like(rows), rows), solver, chunk_size)


def pairwise(
    metric: AbstractMetric,
    points: Float[Host, "n dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Float[np.ndarray, "n n"]:
    """Compute the symmetric matrix of distances between points.

    Each pair is solved once. Besides the matrix, memory is needed for two numbers of each pair.
    """
    points = np.asarray(points)
    values = np.zeros((len(points), len(points)), dtype=points.dtype)
    if len(points) > 1:
        lengths = _measure(metric, Triangle(points), solver, chunk_size)
        begin = 0
        for i in range(len(points) - 1):
            row = lengths[begin : begin + len(points) - 1 - i]
            values[i, i + 1 :] = values[i + 1 :, i] = row
            begin += len(row)
    return values


def measure_pairs(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Float[np.ndarray, " pairs"]:
    """Compute the distance of each pair without its curve."""
    return _measure(metric, _pair_rows(starts, ends), solver, chunk_size)


def geodesics(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk_size: int | None = None,
) -> Geodesic:
    """Find the geodesic of each pair.

    The pair is the first axis of all arrays.
    """
    pairs = _pair_rows(starts, ends)
    return solve_pairs(metric, pairs, solver or Adaptive(), chunk_size, _keep_all)


def _pair_rows(starts: Float[Host, "pairs dim"], ends: Float[Host, "pairs dim"]) -> Pairs:
    if np.shape(starts) != np.shape(ends) or np.ndim(starts) != 2:
        raise InputError(
            f"starts {np.shape(starts)} and ends {np.shape(ends)} must have one shape [pairs, dim]."
        )
    rows = np.arange(len(starts))
    return Pairs(starts, ends, rows, rows)


def _measure(
    metric: AbstractMetric, pairs: Pairs, solver: AbstractSolver | None, chunk_size: int | None
) -> Float[np.ndarray, " pairs"]:
    found = solve_pairs(metric, pairs, solver or Adaptive(), chunk_size, _keep_numbers)
    lengths, errors, converged = (np.asarray(part) for part in found)
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        start, end = pairs.select(int(bad[0]), int(bad[0]) + 1)
        raise InputError(
            f"The metric is not finite between {start[0]} and {end[0]} "
            f"({len(bad)} of {len(lengths)} pairs). Check the decoder and the points there."
        )
    missed = int(np.sum(~converged))
    if missed:
        note(
            f"{missed} of {len(lengths)} distances did not reach the tolerance; the largest "
            f"estimated error is {np.max(errors):.1%}"
        )
    return lengths


def _keep_all(geodesic: Geodesic) -> Geodesic:
    return geodesic


def _keep_numbers(geodesic: Geodesic) -> tuple[Host, Host, Host]:
    return geodesic.length, geodesic.error, geodesic.converged
