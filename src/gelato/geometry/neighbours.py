"""Nearest neighbours: exact in XLA on an accelerator, FAISS on the CPU, and *under the metric* from a shortlist.

`grouped` splits the set into groups, keeps the `k` groups with the smallest minima and ranks inside them: every one of
the `k` nearest is in such a group, since otherwise `k` groups would each hold a nearer point. Selecting this way costs
two small top-k instead of one over the whole set. Squared distances are expanded as `‖x‖² − 2qx` about the data's mean
and the survivors measured again by differences, because the expansion cancels where neighbours are close.
"""

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

GROUPS = 1024
QUERY_CHUNK = 1024
# Ranks kept beyond k before distances are measured exactly, so that rounding in the expansion cannot push a neighbour
# out.
SPARE = 8
Host = Array | np.ndarray


class Neighbours(NamedTuple):
    """Rows of the data and distances, nearest first."""

    indices: Int[np.ndarray, "queries k"]
    distances: Float[np.ndarray, "queries k"]


def grouped(
    data: Float[Array, "n dim"], query: Float[Array, " dim"], k: int, exclude: Int[Array, ""] | int = -1
) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """The `k` nearest rows to one query and their distances: exact, pure, for use inside compiled programs.

    `exclude` is the query's own row where it is one of the data (leave one out; at infinite distance), `-1` where not.
    """
    _check(k, len(data))
    centre = jnp.mean(data, axis=0)
    wide = min(k + SPARE, len(data))
    squares = (
        _expanded(data - centre, query - centre).at[exclude].set(jnp.inf, mode="drop", wrap_negative_indices=False)
    )
    candidates = _grouped_smallest(squares, wide)
    exact = jnp.sum((data[candidates] - query) ** 2, axis=-1)
    exact = jnp.where(candidates == exclude, jnp.inf, exact)
    nearest = jnp.lexsort((candidates, exact))[:k]
    return candidates[nearest], jnp.sqrt(exact[nearest])


def _expanded(data: Float[Array, "n dim"], query: Float[Array, " dim"]) -> Float[Array, " n"]:
    products = jnp.matmul(data, query, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(data**2, axis=-1) - 2 * products


def _grouped_smallest(values: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    # Strided groups, so that neighbouring rows (one trajectory) do not crowd one group; padding never wins.
    groups = min(GROUPS, len(values))
    size = -(-len(values) // groups)
    padded = jnp.pad(values, (0, groups * size - len(values)), constant_values=jnp.inf).reshape(size, groups)
    _, best = jax.lax.top_k(-jnp.min(padded, axis=0), min(k, groups))
    inside = padded[:, best]
    _, flat = jax.lax.top_k(-jnp.ravel(inside), k)
    return (flat // best.size) * groups + best[flat % best.size]


def nearest(
    data: Float[Host, "n dim"],
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    leave_out: Int[Host, " queries"] | None = None,
) -> Neighbours:
    """The exact `k` nearest rows to each query, by the fastest way of the machine at hand.

    `leave_out[i]` is the row that query `i` itself is, to be skipped by its index, so that duplicates of it still
    count.
    """
    _check_queries(data, queries)
    _check(k, len(data) - (leave_out is not None))
    if jax.default_backend() != "cpu":
        return _on_accelerator(data, queries, k, leave_out)
    index = faiss.IndexFlatL2(np.shape(data)[1])
    return _by_faiss(index, data, queries, k, leave_out)


def nearest_approximate(
    data: Float[Host, "n dim"],
    queries: Float[Host, "queries dim"],
    k: int,
    *,
    leave_out: Int[Host, " queries"] | None = None,
    probes: int = 32,
) -> Neighbours:
    """The `k` nearest rows by a FAISS inverted file, for sets too large for exact search (above some million rows)."""
    _check_queries(data, queries)
    _check(k, len(data) - (leave_out is not None))
    dim = np.shape(data)[1]
    cells = max(1, int(4 * np.sqrt(len(data))))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, min(cells, len(data)))
    index.train(_as_rows(data)[:: max(1, len(data) // (64 * cells))])
    index.nprobe = min(probes, index.nlist)
    return _by_faiss(index, data, queries, k, leave_out)


def nearest_under_metric(
    metric: AbstractMetric,
    data: Float[Host, "n dim"],
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
    starts = jnp.repeat(jnp.asarray(queries), candidates.shape[1], axis=0)
    lengths = paired(metric, starts, jnp.asarray(data)[candidates.ravel()], solver).reshape(candidates.shape)
    order = np.argsort(lengths, axis=1, kind="stable")[:, :k]
    return Neighbours(np.take_along_axis(candidates, order, axis=1), np.take_along_axis(lengths, order, axis=1))


def recall(
    metric: AbstractMetric,
    data: Float[Host, "n dim"],
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


def _on_accelerator(data: Host, queries: Host, k: int, leave_out: Host | None) -> Neighbours:
    own = jnp.full(len(queries), -1) if leave_out is None else jnp.asarray(leave_out)
    chunk = min(QUERY_CHUNK, len(queries))
    begins = range(0, len(queries), chunk)
    pieces = [_search(jnp.asarray(data), *_padded(queries, own, begin, chunk), k) for begin in begins]
    indices, distances = (
        np.concatenate([np.asarray(part) for part in parts])[: len(queries)] for parts in zip(*pieces)
    )
    return Neighbours(indices, distances)


@jax.jit
def _padded_take(array: Array, index: Array) -> Array:
    return array[index]


def _padded(queries: Host, own: Array, begin: int, chunk: int) -> tuple[Array, Array]:
    index = jnp.minimum(jnp.arange(begin, begin + chunk), len(queries) - 1)
    return _padded_take(jnp.asarray(queries), index), _padded_take(own, index)


def search(
    data: Float[Array, "n dim"], queries: Float[Array, "queries dim"], own: Int[Array, " queries"], k: int
) -> tuple[Int[Array, "queries k"], Float[Array, "queries k"]]:
    """`grouped` for a chunk of queries at once, as one compiled program."""
    return jax.vmap(lambda query, exclude: grouped(data, query, k, exclude))(queries, own)


_search = jax.jit(search, static_argnums=3)


def _by_faiss(
    index: faiss.Index, data: Host, queries: Host, k: int, leave_out: Int[Host, " queries"] | None
) -> Neighbours:
    rows = _as_rows(data)
    index.add(rows)
    wide = min(k + SPARE + (leave_out is not None), len(rows))
    candidates = index.search(_as_rows(queries), wide)[1]
    gaps = np.asarray(data)[candidates] - np.asarray(queries)[:, None]
    exact = np.einsum("qkd,qkd->qk", gaps, gaps)
    hidden = candidates < 0
    if leave_out is not None:
        hidden |= candidates == np.asarray(leave_out)[:, None]
    exact = np.where(hidden, np.inf, exact)
    order = np.lexsort((candidates, exact), axis=-1)[:, :k]
    found = np.take_along_axis(candidates, order, axis=1)
    return Neighbours(found, np.sqrt(np.take_along_axis(exact, order, axis=1)))


def _as_rows(array: Float[Host, "n dim"]) -> Float[np.ndarray, "n dim"]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _check(k: int, available: int) -> None:
    if k < 1:
        raise InputError(f"k is {k}: ask for at least one neighbour")
    if k > available:
        raise InputError(f"{k} neighbours were asked for, but only {available} rows can be one: lower k or add data")


def _check_queries(data: Host, queries: Host) -> None:
    if np.ndim(data) != 2 or np.ndim(queries) != 2 or np.shape(data)[1] != np.shape(queries)[1]:
        raise InputError(
            f"data {np.shape(data)} and queries {np.shape(queries)} must be arrays [rows, dim] of one dimension"
        )
    if len(queries) == 0:
        raise InputError("there are no queries: pass at least one row")
