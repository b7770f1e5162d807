"""Means and clusters of points under a metric. These functions run on the host."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.errors import InputError
from gelato.geometry.batch import Host
from gelato.geometry.distance import geodesics, measure_pairs
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.solver import AbstractSolver
from gelato.geometry.transport import compute_logarithms


class Clusters(NamedTuple):
    """Centres, the cluster of each point, and the sum of squared distances to the centres."""

    centres: Float[Host, "k dim"]
    labels: Int[np.ndarray, " n"]
    inertia: float


def frechet_mean(
    metric: AbstractMetric,
    points: Float[Host, "n dim"],
    solver: AbstractSolver | None = None,
    start: Point | None = None,
    iterations: int = 20,
    tolerance: float = 1e-4,
) -> Point:
    """Find the point with the smallest mean squared distance to the others.

    Its gradient is minus twice the mean logarithm, so each iteration moves by this mean. It stops
    when the step is shorter than `tolerance` times the typical distance. The start is the mean of
    the coordinates by default.
    """
    points = jnp.asarray(points)
    if points.ndim != 2 or not len(points):
        raise InputError(f"The points have shape {points.shape}. Pass an array [points, dim].")
    mean = jnp.mean(points, axis=0) if start is None else start
    for _ in range(iterations):
        found = geodesics(metric, jnp.broadcast_to(mean, points.shape), points, solver)
        mean, step, spread = _step(metric, mean, compute_logarithms(metric, found.curve))
        if step <= tolerance * spread:
            break
    return mean


def cluster(
    metric: AbstractMetric,
    points: Float[Host, "n dim"],
    k: int,
    solver: AbstractSolver | None = None,
    iterations: int = 10,
    seed: int = 0,
) -> Clusters:
    """Find `k` clusters by k-means: the centres are Fréchet means.

    The first centres are drawn as in k-means++, with probability proportional to the squared
    distance to the nearest centre.
    """
    points = jnp.asarray(points)
    if not 1 <= k <= len(points):
        raise InputError(f"k={k} must be between 1 and the number of points, {len(points)}.")
    rng = np.random.default_rng(seed)
    centres = points[rng.integers(len(points))][None]
    while len(centres) < k:
        squares = _measure_all(metric, points, centres, solver).min(axis=1) ** 2
        total = squares.sum()
        chances = squares / total if total > 0 else None
        centres = jnp.concatenate([centres, points[rng.choice(len(points), p=chances)][None]])
    labels = np.full(len(points), -1)
    for _ in range(iterations):
        lengths = _measure_all(metric, points, centres, solver)
        previous, labels = labels, np.argmin(lengths, axis=1)
        if np.array_equal(previous, labels):
            break
        for i in range(k):
            # One iteration is enough, because the next round continues from this centre.
            if np.any(labels == i):
                mean = frechet_mean(metric, points[labels == i], solver, centres[i], iterations=1)
                centres = centres.at[i].set(mean)
    return Clusters(np.asarray(centres), labels, float(np.sum(lengths.min(axis=1) ** 2)))


def _measure_all(
    metric: AbstractMetric,
    points: Float[Array, "n dim"],
    centres: Float[Array, "k dim"],
    solver: AbstractSolver | None,
) -> Float[np.ndarray, "n k"]:
    starts = jnp.repeat(points, len(centres), axis=0)
    ends = jnp.tile(centres, (len(points), 1))
    return measure_pairs(metric, starts, ends, solver).reshape(len(points), len(centres))


@eqx.filter_jit
def _step(
    metric: AbstractMetric, mean: Point, logarithms: Float[Array, "n dim"]
) -> tuple[Point, Array, Array]:
    step = jnp.mean(logarithms, axis=0)
    squares = jax.vmap(lambda v: metric.quadratic(mean, v))(logarithms)
    return mean + step, jnp.sqrt(metric.quadratic(mean, step)), jnp.sqrt(jnp.mean(squares))
