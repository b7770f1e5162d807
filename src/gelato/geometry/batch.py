"""Solve many pairs on the host, in chunks of one compiled shape.

`Adaptive` runs in rounds. Each round is one compiled program that is applied to the pairs that need
it, so that a batch does not wait for its slowest pair. Blocks of pairs pass through all rounds one
after the other, so that a million pairs need the memory of one block.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.arrays import map_in_chunks
from gelato.errors import InputError
from gelato.geometry.adaptive import Adaptive, Search
from gelato.geometry.converged import Converged
from gelato.geometry.curve import Curve, Legendre
from gelato.geometry.graph import build, fit_path_curves, place_nodes
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.solver import AbstractSolver, Geodesic
from gelato.progress import progress

# Pairs in one chunk. On a CPU a small chunk stays near the cache, which saves a third of the time.
CHUNK_CPU, CHUNK = 512, 4096
# A chunk of a round waits for its slowest pair. Few pairs use a smaller compiled shape.
ROUND_CHUNKS_CPU, ROUND_CHUNKS = (1, 16, 128), (64, 2048)
# Several smaller chunks replace one that would repeat rows up to this multiple of their number.
WASTE = 1.25
# Chunks of one block.
BLOCK = 16
# Numbers in the metric tensors of one chunk.
LARGEST_TENSORS = 2**26
# Points at which a tensor field is checked.
CHECKED = 16
# A tensor may differ from its transpose, or be negative, by this fraction of its size.
SYMMETRY = 1e-3
Host = Array | np.ndarray
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows of two sets of points."""

    starts: Float[Host, "n dim"]
    ends: Float[Host, "m dim"]
    # One of each for a pair; `Triangle` computes those of its pairs from fewer numbers.
    rows: Int[np.ndarray, " rows"]
    columns: Int[np.ndarray, " columns"]

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.rows)

    @property
    def dim(self) -> int:
        """Dimension of the points."""
        return self.starts.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the coordinates."""
        return jnp.result_type(self.starts)

    def select(self, begin: int, end: int) -> tuple[Array, Array]:
        """Take the points of some pairs."""
        starts = jnp.asarray(self.starts[self.rows[begin:end]])
        return starts, jnp.asarray(self.ends[self.columns[begin:end]])


class Triangle:
    """All pairs of different rows of one set of points, in the order of `np.triu_indices`.

    The row numbers are computed on use, because those of 10,000 points would fill 800 MB.
    """

    def __init__(self, points: Float[Host, "n dim"]):
        self.points = points
        # The number of the first pair of each row, and the number of pairs.
        self.firsts = np.concatenate([[0], np.cumsum(np.arange(len(points) - 1, -1, -1))])

    @property
    def count(self) -> int:
        """Number of pairs."""
        return int(self.firsts[-1])

    @property
    def dim(self) -> int:
        """Dimension of the points."""
        return self.points.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Type of the coordinates."""
        return jnp.result_type(self.points)

    def select(self, begin: int, end: int) -> tuple[Array, Array]:
        """Take the points of some pairs."""
        pairs = np.arange(begin, min(end, self.count))
        rows = np.searchsorted(self.firsts, pairs, side="right") - 1
        columns = pairs - self.firsts[rows] + rows + 1
        return jnp.asarray(self.points[rows]), jnp.asarray(self.points[columns])


def solve_pairs(
    metric: AbstractMetric,
    pairs: Pairs | Triangle,
    solver: AbstractSolver,
    chunk_size: int | None,
    keep: Callable[[Geodesic], Kept],
) -> Kept:
    """Solve all pairs and keep a part of each geodesic; the pair is the first axis of the result.

    `keep` must be a function of a module, because a new function object would compile again.
    """
    check_pairs(metric, pairs)
    chunk_size = chunk_size or choose_chunk_size(pairs.dim, solver)
    if isinstance(solver, Adaptive):
        solver.check(pairs.dim, pairs.dtype)
        # As an array, so that all tolerances share the compiled programs.
        tolerance = jnp.asarray(solver.tolerance, pairs.dtype)
        solver = eqx.tree_at(lambda solver: solver.tolerance, solver, tolerance)
    begins = range(0, pairs.count, BLOCK * chunk_size)
    kept = []
    with progress("geodesics", len(begins)) if len(begins) > 1 else nullcontext() as advance:
        for begin in begins:
            a, b = pairs.select(begin, begin + BLOCK * chunk_size)
            if isinstance(solver, Adaptive):
                kept.append(keep(_solve_in_rounds(metric, solver, a, b, chunk_size)))
            else:
                kept.append(_solve_at_once(metric, solver, a, b, chunk_size, keep))
            if advance is not None:
                advance(1)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)


def choose_chunk_size(dim: int, solver: AbstractSolver) -> int:
    """Choose how many pairs are solved together."""
    largest = CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK
    nodes = solver.levels[0][1] if isinstance(solver, Adaptive) else getattr(solver, "nodes", 8)
    return max(1, min(largest, LARGEST_TENSORS // (2 * nodes * dim**2)))


def _solve_at_once(
    metric: AbstractMetric,
    solver: AbstractSolver,
    starts: Array,
    ends: Array,
    chunk_size: int,
    keep: Callable[[Geodesic], Kept],
) -> Kept:
    shapes = None
    if isinstance(solver, Converged) and starts.shape[1] == 2:
        shapes = jnp.asarray(_find_graph_paths(metric, starts, ends, solver.modes))

    def solve(a: Array, b: Array, shape: Array | None) -> Kept:
        return _solve_chunk(metric, solver, keep, a, b, shape)

    return map_in_chunks(solve, (starts, ends, shapes), chunk_size)


def _solve_in_rounds(
    metric: AbstractMetric, solver: Adaptive, starts: Array, ends: Array, chunk_size: int
) -> Geodesic:
    def begin(pairs: tuple[Array, Array]) -> Search:
        return _begin(metric, solver, *pairs)

    found = _apply(begin, (starts, ends), chunk_size)
    rows = np.flatnonzero(found.bent & (solver.starts > 0))
    if len(rows):
        guesses = None
        if starts.shape[1] == 2:
            modes = solver.levels[-1][0]
            guesses = _find_graph_paths(metric, starts[rows], ends[rows], modes)

        def explore(task: tuple[Search, Host | None]) -> Search:
            return _explore(metric, solver, *jax.tree.map(jnp.asarray, task))

        explored = _apply(explore, (_take_rows(found, rows), guesses), chunk_size)
        found = _replace_rows(found, rows, explored)
    for level in range(1, len(solver.levels)):
        rows = np.flatnonzero(~found.best.converged & (found.level < level))
        if len(rows):

            def refine(search: Search, level: int = level) -> Search:
                return _refine(metric, solver, level, search)

            refined = _apply(refine, _take_rows(found, rows), chunk_size)
            found = _replace_rows(found, rows, refined)
    return found.best


def _apply(program: Callable[..., Search], tasks: Any, chunk_size: int) -> Search:
    """Apply a compiled program to all rows in chunks of one of few shapes."""
    count = len(jax.tree.leaves(tasks)[0])
    size = min(_choose_round_size(count), chunk_size)
    # The last chunk repeats its last row, so that all chunks have one shape.
    rows = np.minimum(np.arange(-(-count // size) * size), count - 1)
    results = []
    for chunk in rows.reshape(-1, size):
        results.append(jax.tree.map(np.asarray, program(_take_rows(tasks, chunk))))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *results)


def _choose_round_size(count: int) -> int:
    """Choose the smallest shape that holds all rows; on a CPU, it may be used for several chunks.

    An accelerator computes repeated rows in the same time.
    """
    is_cpu = jax.default_backend() == "cpu"
    sizes = ROUND_CHUNKS_CPU if is_cpu else ROUND_CHUNKS
    size = next((size for size in sizes if size >= count), sizes[-1])
    smaller = [other for other in sizes if 1 < other < size]
    if is_cpu and smaller and -(-count // size) * size > WASTE * count:
        return smaller[-1]
    return size


def _take_rows(tree: Kept, rows: Int[np.ndarray, " rows"]) -> Kept:
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _replace_rows(tree: Search, rows: Int[np.ndarray, " rows"], new: Search) -> Search:
    def replace(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        replaced = old.copy()
        replaced[rows] = new
        return replaced

    return jax.tree.map(replace, tree, new)


def _find_graph_paths(
    metric: AbstractMetric, starts: Array, ends: Array, modes: int
) -> Float[np.ndarray, "pairs modes dim"]:
    nodes, where = np.unique(np.concatenate([starts, ends]), axis=0, return_inverse=True)
    where = where.reshape(2, -1).T
    if len(nodes) < 2:
        return np.zeros((len(starts), modes, starts.shape[1]), starts.dtype)
    graph = build(metric, np.concatenate([nodes, place_nodes(nodes)]))
    return fit_path_curves(graph, where, modes).astype(starts.dtype)


# The following programs are compiled once for each metric, solver and shape.
@eqx.filter_jit
def _solve_chunk(
    metric: AbstractMetric,
    solver: AbstractSolver,
    keep: Callable[[Geodesic], Kept],
    starts: Float[Array, "pairs dim"],
    ends: Float[Array, "pairs dim"],
    shapes: Float[Array, "pairs modes dim"] | None,
) -> Kept:
    def solve(a: Point, b: Point, shape: Array | None) -> Geodesic:
        direct = solver(metric, a, b)
        if shape is None or not isinstance(solver, Converged):
            return direct
        around = solver.refine(metric, Curve(a, b, shape, Legendre(solver.modes)))
        shorter = around.length < direct.length
        return jax.tree.map(lambda x, y: jnp.where(shorter, x, y), around, direct)

    return keep(jax.vmap(solve)(starts, ends, shapes))


@eqx.filter_jit
def _begin(metric: AbstractMetric, solver: Adaptive, starts: Array, ends: Array) -> Search:
    return jax.vmap(lambda a, b: solver.begin(metric, a, b))(starts, ends)


@eqx.filter_jit
def _explore(
    metric: AbstractMetric, solver: Adaptive, search: Search, guess: Array | None
) -> Search:
    def explore(search: Search, guess: Array | None) -> Search:
        return solver.explore(metric, search, jnp.asarray(True), guess)

    return jax.vmap(explore)(search, guess)


@eqx.filter_jit
def _refine(metric: AbstractMetric, solver: Adaptive, level: int, search: Search) -> Search:
    def refine(search: Search) -> Search:
        return solver.refine(metric, search, level, jnp.asarray(True))

    return jax.vmap(refine)(search)


def check_pairs(metric: AbstractMetric, pairs: Pairs | Triangle) -> None:
    """Raise an error if there is nothing to measure or a tensor field is no metric."""
    if not pairs.count:
        raise InputError("There are no pairs to measure. Pass at least one point.")
    if isinstance(metric, AbstractImmersed):
        return  # A pullback is symmetric and not negative.
    points = pairs.select(0, CHECKED)[0]
    for point, G in zip(points, np.asarray(_evaluate(metric, points))):
        size = np.max(np.abs(G))
        if not np.isfinite(size):
            raise InputError(
                f"The metric is not finite at the point {point}. Check the metric there."
            )
        if np.max(np.abs(G - G.T)) > SYMMETRY * size:
            raise InputError(f"The metric is not symmetric at the point {point}.")
        if np.min(np.linalg.eigvalsh(G)) < -SYMMETRY * size:
            raise InputError(f"The metric is not positive at the point {point}.")


@eqx.filter_jit
def _evaluate(metric: AbstractMetric, points: Float[Array, "n dim"]) -> Float[Array, "n dim dim"]:
    return jax.vmap(metric)(points)
