"""Distances as a user asks for them: one pair, one point to many, all pairs; chunked, checked, with a progress bar.

`distance` is pure and differentiable, to be used inside compiled programs. The others run on the host: they cut the
pairs into chunks of one compiled shape, so that a million pairs need the memory of one chunk, and refuse numbers that
are not finite. In two dimensions `Converged` is also started from the shortest path on a graph, and the shorter curve
is kept.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.errors import InputError
from gelato.geometry.converged import Converged
from gelato.geometry.curve import Curve, Legendre, Scalar
from gelato.geometry.graph import build, grid, path_curves
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.near import Near
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions
from gelato.progress import note, progress

# Pairs solved at once: on a CPU a chunk's activations stay near the cache, which saves a third of the time.
CHUNK_CPU, CHUNK = 512, 4096
Host = Array | np.ndarray
LONG = 8  # chunks from which a progress bar is worth its lines


def distance(metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None) -> Scalar:
    """`d(a, b) = inf_γ L(γ)` as the solver finds it (`Near` unless told); zero with a finite gradient if `a = b`."""
    return (solver or _near(metric))(metric, a, b).length


def connecting_geodesic(metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None) -> Geodesic:
    """The shortest curve found between two points, with length, energy and convergence (`Converged` unless told)."""
    check_dimensions(a, b)
    found = geodesics(metric, a[None], b[None], solver)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), found)


def distances(
    metric: AbstractMetric,
    a: Point,
    many: Float[Host, "many dim"],
    solver: AbstractSolver | None = None,
    chunk: int | None = None,
) -> Float[np.ndarray, " many"]:
    """Distances from one point to many (`Near` unless told)."""
    many = jnp.asarray(many)
    if many.ndim != 2 or many.shape[1] != a.size:
        raise InputError(
            f"the point has {a.size} dimensions, the others are an array {many.shape}: pass [many, {a.size}]"
        )
    return paired(metric, jnp.broadcast_to(a, many.shape), many, solver, chunk)


def pairwise(
    metric: AbstractMetric, points: Float[Host, "n dim"], solver: AbstractSolver | None = None, chunk: int | None = None
) -> Float[np.ndarray, "n n"]:
    """The symmetric matrix of distances between points (`Converged` unless told); each pair is solved once."""
    rows, columns = np.triu_indices(len(points), k=1)
    values = np.zeros((len(points), len(points)), dtype=np.asarray(points).dtype)
    if len(rows):
        starts, ends = jnp.asarray(points)[rows], jnp.asarray(points)[columns]
        values[rows, columns] = paired(metric, starts, ends, solver or Converged(), chunk)
    return values + values.T


def paired(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk: int | None = None,
) -> Float[np.ndarray, " pairs"]:
    """Distances between corresponding points (`Near` unless told); curves are not kept."""
    found = geodesics(metric, starts, ends, solver or _near(metric), chunk, keep=lambda g: (g.length, g.converged))
    lengths, converged = found
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        raise InputError(
            f"the metric is not finite between {np.asarray(starts)[bad[0]]} and {np.asarray(ends)[bad[0]]} "
            f"({len(bad)} of {len(lengths)} pairs): check the decoder and the points there"
        )
    missed = int(np.sum(~np.asarray(converged)))
    if missed:
        note(f"{missed} of {len(lengths)} geodesics did not converge; their lengths are upper bounds")
    return lengths


def geodesics(
    metric: AbstractMetric,
    starts: Float[Host, "pairs dim"],
    ends: Float[Host, "pairs dim"],
    solver: AbstractSolver | None = None,
    chunk: int | None = None,
    keep: Callable[[Geodesic], Any] = lambda geodesic: geodesic,
) -> Any:
    """The geodesic of every pair (`Converged` unless told), or what `keep` takes from it, along the first axis."""
    starts, ends = jnp.asarray(starts), jnp.asarray(ends)
    if starts.shape != ends.shape or starts.ndim != 2:
        raise InputError(f"starts {starts.shape} and ends {ends.shape} must be two equal arrays [pairs, dim]")
    solver = solver or Converged()
    shapes = None
    if isinstance(solver, Converged) and starts.shape[1] == 2 and len(starts):
        shapes = jnp.asarray(_graph_starts(metric, np.asarray(starts), np.asarray(ends), solver.modes), starts.dtype)

    @eqx.filter_jit
    def solve(metric: AbstractMetric, a: Array, b: Array, shape: Array | None) -> Any:
        return jax.vmap(lambda a, b, shape: keep(_best(solver, metric, a, b, shape)))(a, b, shape)

    return _chunked(lambda *arrays: solve(metric, *arrays), (starts, ends, shapes), chunk)


def _best(solver: AbstractSolver, metric: AbstractMetric, a: Point, b: Point, shape: Array | None) -> Geodesic:
    direct = solver(metric, a, b)
    if shape is None or not isinstance(solver, Converged):
        return direct
    around = solver.refine(metric, Curve(a, b, shape, Legendre(solver.modes)))
    return jax.tree.map(lambda x, y: jnp.where(around.length < direct.length, x, y), around, direct)


def _graph_starts(metric: AbstractMetric, starts: np.ndarray, ends: np.ndarray, modes: int) -> np.ndarray:
    nodes, where = np.unique(np.concatenate([starts, ends]), axis=0, return_inverse=True)
    where = where.reshape(2, -1).T
    if len(nodes) < 2:
        return np.zeros((len(starts), modes, starts.shape[1]))
    return path_curves(build(metric, np.concatenate([nodes, grid(nodes)])), where, modes)


def _quiet(steps: int = 1, **fields: str) -> None:
    pass


def _near(metric: AbstractMetric) -> AbstractSolver:
    return Near() if isinstance(metric, AbstractImmersed) else Converged()


def _chunked(solve: Callable[..., Any], arrays: tuple[Array | None, ...], chunk: int | None) -> Any:
    count = len(arrays[0]) if arrays[0] is not None else 0
    usual = CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK
    chunk = max(1, min(chunk or usual, count))
    pieces = []
    begins: Int[np.ndarray, " chunks"] = np.arange(0, count, chunk)
    with progress("geodesics", len(begins)) if len(begins) >= LONG else nullcontext(_quiet) as advance:
        for begin in begins:
            # The last chunk repeats its final pair up to the compiled shape.
            index = np.minimum(np.arange(begin, begin + chunk), count - 1)
            out = solve(*(None if array is None else array[index] for array in arrays))
            pieces.append(jax.tree.map(np.asarray, out))
            advance(1)
    if not pieces:
        raise InputError("there are no pairs to measure: pass at least one point")
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *pieces)
