"""Nearest neighbours: exact and in XLA, approximate by FAISS, and *under the metric* from a shortlist.

The data is split into groups of `SIZE` rows. The `k` nearest rows lie in the `k` groups with the smallest minima, since
otherwise `k` groups would each hold a nearer row; so only minima are kept of the products with all rows, and distances
are measured, by differences, inside few groups. The minima are of `½‖x‖² − qx` about the data's mean, half the squared
distance up to a constant. This expansion cancels where neighbours are close, which is what the spare groups are for.
"""

from functools import reduce
from typing import NamedTuple

import faiss
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.errors import InputError
from gelato.geometry.distance import paired
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.solver import AbstractSolver

SIZE = 8
# Groups kept beyond k, so that rounding in the expansion cannot push a neighbour's group out; ranks likewise for FAISS.
SPARE = 8
# Queries searched at once: on a CPU their products with one row of every group stay in the cache.
CHUNK_CPU, CHUNK = 128, 1024
Host = Array | np.ndarray


class Neighbours(NamedTuple):
    """Rows of the data and distances, nearest first."""

    indices: Int[np.ndarray, "queries k"]
    distances: Float[np.ndarray, "queries k"]


class Index(NamedTuple):
    """Data prepared for exact search, to be used again and again: `blocks[s, g]` is row `s·groups + g`, centred."""

    data: Float[Array, "n dim"]
    centre: Float[Array, " dim"]
    blocks: Float[Array, "size groups parts"]
    half_squares: Float[Array, "size groups"]

    def __len__(self) -> int:
        return self.data.shape[0]


@jax.jit
def prepare(data: Float[Array, "n dim"]) -> Index:
    """The index of a set of rows: pure, and cheap beside one search of many queries."""
    centre = jnp.mean(data, axis=0)
    groups = -(-len(data) // SIZE)
    padding = groups * SIZE - len(data)
    # Strided groups, so that neighbouring rows (one trajectory) do not crowd one group; padding never wins.
    rows = jnp.pad(data - centre, ((0, padding), (0, 0))).reshape(SIZE, groups, -1)
    half_squares = jnp.pad(jnp.sum((data - centre) ** 2, axis=-1) / 2, (0, padding), constant_values=jnp.inf)
    if _shortened(data):
        high, low = _split(rows)
        rows = _joined(high, high, low)
    return Index(data, centre, rows, half_squares.reshape(SIZE, groups))


def grouped(
    data: Float[Array, "n dim"] | Index, query: Float[Array, " dim"], k: int, exclude: Int[Array, ""] | int = -1
) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """The `k` nearest rows to one query and their distances: exact, pure, for use inside compiled programs.

    `exclude` is the query's own row where it is one of the data (leave one out; at infinite distance), `-1` where not.
    """
    index = data if isinstance(data, Index) else prepare(data)
    _check(k, len(index))
    groups = index.half_squares.shape[1]
    # One group more, since the row left out may be the minimum of one.
    best = _smallest(_minima(index, query), min(k + 1 + SPARE, groups))
    # In the order of rows, so that ties go to the lower one.
    rows = jnp.ravel(jnp.arange(SIZE)[:, None] * groups + jnp.sort(best))
    squares = jnp.sum((index.data.at[rows].get(mode="clip") - query) ** 2, axis=-1)
    squares = jnp.where((rows == exclude) | (rows >= len(index)), jnp.inf, squares)
    ordered, nearest = jax.lax.top_k(-squares, k)
    return rows[nearest], jnp.sqrt(-ordered)


def _minima(index: Index, query: Float[Array, " dim"]) -> Float[Array, " groups"]:
    q = query - index.centre
    if _shortened(index.data):
        high, low = _split(q)
        products = jnp.tensordot(_joined(high, low, high), index.blocks, axes=(0, 2), precision="default")
        # A minimum of few long rows, and kept: XLA's own reduction reads them at half the speed, or reads them twice.
        rows = zip(index.half_squares, products, strict=True)
        return jax.lax.optimization_barrier(reduce(jnp.minimum, [half - product for half, product in rows]))

    def smaller(minima: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        rows, half_squares = block
        return jnp.minimum(minima, half_squares - jnp.matmul(q, rows.T, precision="highest")), None

    # A row of every group at a time, which stays in a CPU's cache.
    start = jnp.full(index.half_squares.shape[1], jnp.inf, index.half_squares.dtype)
    return jax.lax.scan(smaller, start, (index.blocks, index.half_squares))[0]


def _shortened(data: Float[Array, "n dim"]) -> bool:
    return jax.default_backend() != "cpu" and data.dtype == jnp.float32


def _split(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """`x = high + low`, `high` with the ten digits that an accelerator's fast products keep.

    Three such products, `x_high y_high + x_high y_low + x_low y_high`, miss 2⁻²² of the exact one, as single precision
    does, at a fraction of its time.
    """
    kept = jnp.uint32(0xFFFFE000)
    high = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.uint32) & kept, jnp.float32)
    return high, x - high


def _joined(*parts: Float[Array, "*shape dim"]) -> Float[Array, "*shape parts"]:
    # Fast products want rows of a multiple of eight.
    joined = jnp.concatenate(parts, axis=-1)
    return jnp.pad(joined, [(0, 0)] * (joined.ndim - 1) + [(0, -joined.shape[-1] % 8)])


def _smallest(values: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    # The same reasoning again, until few are left: top-k is slow on long rows.
    if len(values) <= SIZE * k:
        return jax.lax.top_k(-values, k)[1]
    groups = -(-len(values) // SIZE)
    padded = jnp.pad(values, (0, groups * SIZE - len(values)), constant_values=jnp.inf).reshape(SIZE, groups)
    best = _smallest(jnp.min(padded, axis=0), min(k, groups))
    flat = jax.lax.top_k(-jnp.ravel(padded[:, best]), k)[1]
    return (flat // best.size) * groups + best[flat % best.size]


def nearest(
    data: Float[Host, "n dim"] | Index,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    leave_out: Int[Host, " queries"] | None = None,
) -> Neighbours:
    """The exact `k` nearest rows to each query; pass `prepare(data)` to search the same data again and again.

    `leave_out[i]` is the row that query `i` itself is, to be skipped by its index, so that duplicates of it still
    count.
    """
    _check_search(data.data if isinstance(data, Index) else data, queries, k, leave_out)
    index = data if isinstance(data, Index) else prepare(jnp.asarray(data))
    own = np.full(len(queries), -1) if leave_out is None else np.asarray(leave_out)
    chunk = min(at_once(), len(queries))
    # Only the last chunk is padded, by its own last query, to the compiled shape.
    rows = [np.minimum(np.arange(begin, begin + chunk), len(queries) - 1) for begin in range(0, len(queries), chunk)]
    pieces = [search(index, queries[row], own[row], k) for row in rows]
    found = (np.concatenate([np.asarray(part) for part in parts])[: len(queries)] for parts in zip(*pieces))
    return Neighbours(*found)


def at_once() -> int:
    """How many queries to search for at once."""
    return CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK


@jax.jit(static_argnums=3)
def search(
    index: Index, queries: Float[Array, "queries dim"], own: Int[Array, " queries"], k: int
) -> tuple[Int[Array, "queries k"], Float[Array, "queries k"]]:
    """`grouped` for many queries at once, as one compiled program; `own` holds the rows to exclude, `-1` for none."""
    return jax.vmap(lambda query, exclude: grouped(index, query, k, exclude))(queries, own)


def nearest_approximate(
    data: Float[Host, "n dim"],
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    leave_out: Int[Host, " queries"] | None = None,
    probes: int = 32,
) -> Neighbours:
    """The `k` nearest rows by a FAISS inverted file, for sets too large for exact search (above some million rows)."""
    _check_search(data, queries, k, leave_out)
    rows, dim = _as_rows(data), np.shape(data)[1]
    cells = max(1, int(4 * np.sqrt(len(data))))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, min(cells, len(data)))
    index.train(rows[:: max(1, len(data) // (64 * cells))])
    index.nprobe = min(probes, index.nlist)
    index.add(rows)
    candidates = index.search(_as_rows(queries), min(k + SPARE + 1, len(rows)))[1]
    return _ranked(np.asarray(data), np.asarray(queries), candidates, k, leave_out)


def _ranked(data: np.ndarray, queries: np.ndarray, candidates: np.ndarray, k: int, own: Host | None) -> Neighbours:
    gaps = data[candidates] - queries[:, None]
    squares = np.einsum("qkd,qkd->qk", gaps, gaps)
    hidden = candidates < 0 if own is None else (candidates < 0) | (candidates == np.asarray(own)[:, None])
    squares = np.where(hidden, np.inf, squares)
    order = np.lexsort((candidates, squares), axis=-1)[:, :k]
    found = np.take_along_axis(candidates, order, axis=1)
    return Neighbours(found, np.sqrt(np.take_along_axis(squares, order, axis=1)))


def nearest_under_metric(
    metric: AbstractMetric,
    data: Float[Host, "n dim"] | Index,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    shortlist: int = 64,
    solver: AbstractSolver | None = None,
    leave_out: Int[Host, " queries"] | None = None,
) -> Neighbours:
    """The `k` nearest rows by geodesic distance among a Euclidean shortlist, which bounds the recall (see `recall`)."""
    if shortlist < k:
        raise InputError(f"a shortlist of {shortlist} cannot hold {k} neighbours: make it at least {k}")
    shortlist = min(shortlist, len(data) - (leave_out is not None))
    candidates = np.asarray(nearest(data, queries, max(k, shortlist), leave_out=leave_out).indices)
    rows = jnp.asarray(data.data if isinstance(data, Index) else data)
    starts = jnp.repeat(jnp.asarray(queries), candidates.shape[1], axis=0)
    lengths = paired(metric, starts, rows[candidates.ravel()], solver).reshape(candidates.shape)
    order = np.argsort(lengths, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(candidates, order, axis=1), np.take_along_axis(lengths, order, axis=1))


def recall(
    metric: AbstractMetric,
    data: Float[Host, "n dim"] | Index,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    shortlist: int = 64,
    larger: int = 512,
    solver: AbstractSolver | None = None,
    leave_out: Int[Host, " queries"] | None = None,
) -> float:
    """The share of the `k` nearest under the metric, from the `larger` shortlist, that the `shortlist` finds too."""
    few, many = (
        np.asarray(
            nearest_under_metric(metric, data, queries, k, shortlist=size, solver=solver, leave_out=leave_out).indices
        )
        for size in (shortlist, larger)
    )
    return float(np.mean([np.isin(row, other).mean() for row, other in zip(many, few)]))


def _as_rows(array: Float[Host, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _check(k: int, available: int) -> None:
    if k < 1:
        raise InputError(f"k is {k}: ask for at least one neighbour")
    if k > available:
        raise InputError(f"{k} neighbours were asked for, but only {available} rows can be one: lower k or add data")


def _check_search(data: Host, queries: Host, k: int, leave_out: Host | None) -> None:
    if np.ndim(data) != 2 or np.ndim(queries) != 2 or np.shape(data)[1] != np.shape(queries)[1]:
        raise InputError(
            f"data {np.shape(data)} and queries {np.shape(queries)} must be arrays [rows, dim] of one dimension"
        )
    if len(queries) == 0:
        raise InputError("there are no queries: pass at least one row")
    if leave_out is not None and len(leave_out) != len(queries):
        raise InputError(f"leave_out names {len(leave_out)} rows for {len(queries)} queries: pass one for each")
    _check(k, len(data) - (leave_out is not None))
