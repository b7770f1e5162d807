"""Nearest neighbours: exact in XLA, approximate with FAISS, or under a metric from a shortlist.

The exact search splits the data into groups of `SIZE` rows. The `k` nearest rows lie in the `k`
groups with the smallest minimum distances. (Proof: if one of these rows were in another group, each
of the `k` groups would contain a nearer row.) So the search first computes one minimum per group,
and then exact distances only in the best groups. The minima are those of `½‖x‖² − qx` for centred
data, which is half the squared distance up to a constant. This form loses precision when neighbours
are close. The spare groups (`SPARE`) compensate for it.
"""

from functools import reduce
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.arrays import map_in_chunks
from gelato.errors import InputError, import_extra
from gelato.geometry.distance import measure_pairs
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.solver import AbstractSolver

SIZE = 8
# Groups kept beyond k, so that rounding in the expansion cannot lose the group of a neighbour.
# FAISS returns as many candidates beyond k.
SPARE = 8
# Queries in one chunk. On a CPU their products with one row of every group stay in the cache.
CHUNK_CPU, CHUNK = 128, 1024
NO_EXCLUSION = -1
"""The value of `exclude` for a query that is not a row of the data."""
Host = Array | np.ndarray
# For codes: cells of the inverted file at most, rows for each when it is trained, rows that are
# added together, and candidates for each neighbour.
_MOST_CELLS, _ROWS_PER_CELL, _ADDED_ROWS, _CODED_CANDIDATES = 4096, 40, 2**18, 8


@runtime_checkable
class RowsOnDisk(Protocol):
    """Rows of numbers that are read by slices and by row numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Any: ...


class Neighbours(NamedTuple):
    """Row numbers of the nearest data points and their distances, nearest first."""

    indices: Int[np.ndarray, "queries k"]
    distances: Float[np.ndarray, "queries k"]


class Index(NamedTuple):
    """Data prepared for exact search (see `prepare`); can be searched many times.

    `blocks[s, g]` is row `s·groups + g`, centred.
    """

    data: Float[Array, "n dim"]
    centre: Float[Array, " dim"]
    blocks: Float[Array, "size groups parts"]
    half_squares: Float[Array, "size groups"]

    def __len__(self) -> int:
        return self.data.shape[0]


@jax.jit
def prepare(data: Float[Array, "n dim"]) -> Index:
    """Prepare rows for exact search.

    This function is pure, and cheap compared with the search for many queries.
    """
    centre = jnp.mean(data, axis=0)
    groups = -(-len(data) // SIZE)
    padding = groups * SIZE - len(data)
    # Groups are strided, so that consecutive rows (of one trajectory) fall into different groups.
    # Padding is infinitely far away and is never found.
    rows = jnp.pad(data - centre, ((0, padding), (0, 0))).reshape(SIZE, groups, -1)
    half_squares = jnp.pad(
        jnp.sum((data - centre) ** 2, axis=-1) / 2, (0, padding), constant_values=jnp.inf
    )
    if _uses_fast_products(data):
        high, low = _split(rows)
        rows = _join(high, high, low)
    return Index(data, centre, rows, half_squares.reshape(SIZE, groups))


def find_neighbours(
    data: Float[Array, "n dim"] | Index,
    query: Float[Array, " dim"],
    k: int,
    exclude: Int[Array, ""] | int = NO_EXCLUSION,
) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """Find the `k` nearest rows to one query, exactly: row numbers and distances.

    Pure, for use inside compiled programs. If the query is itself a row of the data, `exclude` is
    its number; that row is treated as infinitely far away.
    """
    index = data if isinstance(data, Index) else prepare(data)
    _check_count(k, len(index))
    groups = index.half_squares.shape[1]
    # Keep one more group, because the excluded row may be the minimum of a group.
    best = _find_smallest(_compute_minima(index, query), min(k + 1 + SPARE, groups))
    # Rows are in ascending order, so that the lower row wins if distances are equal.
    rows = jnp.ravel(jnp.arange(SIZE)[:, None] * groups + jnp.sort(best))
    squares = jnp.sum((index.data.at[rows].get(mode="clip") - query) ** 2, axis=-1)
    squares = jnp.where((rows == exclude) | (rows >= len(index)), jnp.inf, squares)
    ordered, nearest = jax.lax.top_k(-squares, k)
    return rows[nearest], jnp.sqrt(-ordered)


def _compute_minima(index: Index, query: Float[Array, " dim"]) -> Float[Array, " groups"]:
    q = query - index.centre
    if _uses_fast_products(index.data):
        high, low = _split(q)
        products = jnp.tensordot(
            _join(high, low, high), index.blocks, axes=(0, 2), precision="default"
        )
        # An explicit minimum over few long rows, and a barrier that keeps it: XLA's reduction
        # runs at half the speed or reads the rows twice.
        rows = zip(index.half_squares, products, strict=True)
        return jax.lax.optimization_barrier(
            reduce(jnp.minimum, [half - product for half, product in rows])
        )

    def smaller(minima: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        rows, half_squares = block
        return jnp.minimum(minima, half_squares - jnp.matmul(q, rows.T, precision="highest")), None

    # Each step uses one row of every group, which fits into a CPU's cache.
    start = jnp.full(index.half_squares.shape[1], jnp.inf, index.half_squares.dtype)
    return jax.lax.scan(smaller, start, (index.blocks, index.half_squares))[0]


def _uses_fast_products(data: Float[Array, "n dim"]) -> bool:
    return jax.default_backend() != "cpu" and data.dtype == jnp.float32


def _split(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Split `x = high + low`; `high` has the ten bits that an accelerator's fast products keep.

    Three fast products, `x_high y_high + x_high y_low + x_low y_high`, differ from the exact one by
    2⁻²², as single precision does, in a fraction of its time.
    """
    kept = jnp.uint32(0xFFFFE000)
    high = jax.lax.bitcast_convert_type(
        jax.lax.bitcast_convert_type(x, jnp.uint32) & kept, jnp.float32
    )
    return high, x - high


def _join(*parts: Float[Array, "*shape dim"]) -> Float[Array, "*shape parts"]:
    # Fast products need rows whose size is a multiple of eight.
    joined = jnp.concatenate(parts, axis=-1)
    return jnp.pad(joined, [(0, 0)] * (joined.ndim - 1) + [(0, -joined.shape[-1] % 8)])


def _find_smallest(values: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    # Reduce to group minima again, until few values are left: top-k is slow on long rows.
    if len(values) <= SIZE * k:
        return jax.lax.top_k(-values, k)[1]
    groups = -(-len(values) // SIZE)
    padding = groups * SIZE - len(values)
    padded = jnp.pad(values, (0, padding), constant_values=jnp.inf).reshape(SIZE, groups)
    best = _find_smallest(jnp.min(padded, axis=0), min(k, groups))
    flat = jax.lax.top_k(-jnp.ravel(padded[:, best]), k)[1]
    return (flat // best.size) * groups + best[flat % best.size]


def nearest(
    data: Float[Host, "n dim"] | Index,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    exclude: Int[Host, " queries"] | None = None,
) -> Neighbours:
    """Find the exact `k` nearest rows to each query.

    To search the same data several times, pass `prepare(data)`. If query `i` is itself a row of the
    data, `exclude[i]` is its number: that row is skipped, but duplicates of it are not.
    """
    _check_search(data.data if isinstance(data, Index) else data, queries, k, exclude)
    index = data if isinstance(data, Index) else prepare(jnp.asarray(data))
    if exclude is None:
        exclude = np.full(len(queries), NO_EXCLUSION)

    def search_chunk(queries: Host, exclude: Host) -> tuple[Array, Array]:
        return search(index, queries, exclude, k)

    found = map_in_chunks(search_chunk, (queries, np.asarray(exclude)), chunk_size())
    return Neighbours(np.asarray(found[0]), np.asarray(found[1]))


def chunk_size() -> int:
    """Return the number of queries to search in one chunk on this machine."""
    return CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK


@jax.jit(static_argnums=3)
def search(
    index: Index, queries: Float[Array, "queries dim"], exclude: Int[Array, " queries"], k: int
) -> tuple[Int[Array, "queries k"], Float[Array, "queries k"]]:
    """Call `find_neighbours` for many queries in one compiled program."""
    return jax.vmap(lambda query, row: find_neighbours(index, query, k, row))(queries, exclude)


def nearest_approximate(
    data: Float[Host, "n dim"] | RowsOnDisk,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    exclude: Int[Host, " queries"] | None = None,
    probes: int = 32,
    code_bytes: int | None = None,
) -> Neighbours:
    """Find most of the `k` nearest rows with an inverted file of FAISS (extra `search`).

    Use it for data that is too large for exact search, above a few million rows. With `code_bytes`,
    FAISS keeps only so many bytes of each row (product quantisation). Then `data` may be a column
    on the disk: it is read once in blocks, and candidates again for their exact distances.
    """
    faiss = import_extra("faiss", "search")
    _check_search(data, queries, k, exclude)
    if code_bytes is not None:
        return _search_codes(faiss, data, np.asarray(queries), k, exclude, probes, code_bytes)
    data = np.asarray(data)
    rows, dim = _as_rows(data), data.shape[1]
    cells = max(1, int(4 * np.sqrt(len(data))))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, min(cells, len(data)))
    index.train(rows[:: max(1, len(data) // (64 * cells))])
    index.nprobe = min(probes, index.nlist)
    index.add(rows)
    candidates = index.search(_as_rows(queries), min(k + SPARE + 1, len(rows)))[1]
    return _rank(data, np.asarray(queries), candidates, k, exclude)


def _search_codes(
    faiss: ModuleType,
    data: Host | RowsOnDisk,
    queries: np.ndarray,
    k: int,
    exclude: Host | None,
    probes: int,
    code_bytes: int,
) -> Neighbours:
    if code_bytes < 1:
        raise InputError(f"code_bytes={code_bytes}: must be at least 1")
    count, dim = data.shape
    # Each byte codes an equal number of columns, so columns of zeros are added.
    padding = -dim % code_bytes

    def pad(rows: Host) -> np.ndarray:
        return np.pad(_as_rows(rows), ((0, 0), (0, padding)))

    cells = max(1, min(int(4 * np.sqrt(count)), _MOST_CELLS, count // _ROWS_PER_CELL))
    quantiser = faiss.IndexFlatL2(dim + padding)
    # A byte has 256 values; fewer rows cannot be divided so finely.
    bits = max(1, min(8, int(np.log2(max(count // _ROWS_PER_CELL, 2)))))
    index = faiss.IndexIVFPQ(quantiser, dim + padding, cells, code_bytes, bits)
    sample = np.linspace(0, count - 1, min(count, 64 * max(cells, 256))).astype(int)
    index.train(pad(data[sample]))
    index.nprobe = min(probes, cells)
    for start in range(0, count, _ADDED_ROWS):
        index.add(pad(np.asarray(data[start : start + _ADDED_ROWS])))
    # Codes order candidates roughly, so more of them are ranked by their exact distances.
    candidates = index.search(pad(queries), min(_CODED_CANDIDATES * k + SPARE + 1, count))[1]
    if exclude is not None:
        candidates = np.where(candidates == np.asarray(exclude)[:, None], -1, candidates)
    found, places = np.unique(np.maximum(candidates, 0), return_inverse=True)
    rows = np.where(candidates < 0, -1, places.reshape(candidates.shape))
    near = _rank(np.asarray(data[found]), queries, rows, k, None)
    return Neighbours(found[near.indices], near.distances)


def _rank(
    data: np.ndarray, queries: np.ndarray, candidates: np.ndarray, k: int, exclude: Host | None
) -> Neighbours:
    gaps = data[candidates] - queries[:, None]
    squares = np.einsum("qkd,qkd->qk", gaps, gaps)
    hidden = candidates < 0
    if exclude is not None:
        hidden |= candidates == np.asarray(exclude)[:, None]
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
    exclude: Int[Host, " queries"] | None = None,
) -> Neighbours:
    """Find the `k` nearest rows by geodesic distance among the Euclidean nearest `shortlist` rows.

    Neighbours outside the shortlist are missed; `recall` measures how many.
    """
    if shortlist < k:
        raise InputError(
            f"A shortlist of {shortlist} rows cannot hold {k} neighbours. Use at least {k}."
        )
    shortlist = min(shortlist, len(data) - (exclude is not None))
    candidates = np.asarray(nearest(data, queries, max(k, shortlist), exclude=exclude).indices)
    rows = jnp.asarray(data.data if isinstance(data, Index) else data)
    starts = jnp.repeat(jnp.asarray(queries), candidates.shape[1], axis=0)
    lengths = measure_pairs(metric, starts, rows[candidates.ravel()], solver)
    lengths = lengths.reshape(candidates.shape)
    order = np.argsort(lengths, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(candidates, order, axis=1)
    return Neighbours(found, np.take_along_axis(lengths, order, axis=1))


def recall(
    metric: AbstractMetric,
    data: Float[Host, "n dim"] | Index,
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    shortlist: int = 64,
    larger: int = 512,
    solver: AbstractSolver | None = None,
    exclude: Int[Host, " queries"] | None = None,
) -> float:
    """Measure how good a shortlist is.

    The result is the fraction of the `k` nearest under the metric, found with a `larger` shortlist,
    that the `shortlist` finds too.
    """

    def find(size: int) -> np.ndarray:
        found = nearest_under_metric(
            metric, data, queries, k, shortlist=size, solver=solver, exclude=exclude
        )
        return np.asarray(found.indices)

    few, many = find(shortlist), find(larger)
    return float(np.mean([np.isin(row, other).mean() for row, other in zip(many, few)]))


def _as_rows(array: Float[Host, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _check_count(k: int, available: int) -> None:
    if k < 1:
        raise InputError(f"k={k}: must be at least 1")
    if k > available:
        raise InputError(
            f"{k} neighbours are needed, but there are only {available} data points. Use more data "
            "or a smaller k."
        )


def _check_search(data: Host | RowsOnDisk, queries: Host, k: int, exclude: Host | None) -> None:
    shape = tuple(data.shape)
    if len(shape) != 2 or np.ndim(queries) != 2 or shape[1] != np.shape(queries)[1]:
        raise InputError(
            f"data {shape} and queries {np.shape(queries)} must be arrays [rows, dim] "
            "with the same dim."
        )
    if len(queries) == 0:
        raise InputError("There are no queries. Pass at least one row.")
    if exclude is not None and len(exclude) != len(queries):
        raise InputError(
            f"exclude has {len(exclude)} rows for {len(queries)} queries. Pass one for each query."
        )
    _check_count(k, len(data) - (exclude is not None))
