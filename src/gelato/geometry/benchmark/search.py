"""Timing of exact nearest neighbours: ours beside FAISS flat on a CPU, ours alone on an accelerator.

Both search data that was prepared before, by turns; the error is the share of true neighbours that was missed.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import faiss
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.geometry.neighbours import prepare, search

DIM, QUERIES, K = 38, 1024, 20
REPEATS, CHECKED = 10, 32


def search_records(rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Queries per second for the 20 nearest of 1,024 queries in a million rows (100,000 on a CPU)."""
    on_cpu = jax.default_backend() == "cpu"
    rows = rows or (100_000 if on_cpu else 1_000_000)
    rng = np.random.default_rng(0)
    data, queries = (rng.normal(size=(n, DIM)).astype(np.float32) for n in (rows, QUERIES))
    truth = np.asarray(_brute_force(data, queries[:CHECKED]))
    ways = {"knn-nearest": _ours(data, queries)} | ({"knn-faiss-flat": _faiss(data, queries)} if on_cpu else {})
    found = {name: np.asarray(way())[:CHECKED] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            begin = perf_counter()
            way()
            times[name].append(perf_counter() - begin)
    for name in ways:
        missed = [1 - np.isin(row, other).mean() for row, other in zip(truth, found[name])]
        yield _record(f"{name}-{rows}", min(times[name]), np.array(missed))


def _ours(data: np.ndarray, queries: np.ndarray) -> Callable[[], Array]:
    index, on_device, none = prepare(jnp.asarray(data)), jnp.asarray(queries), jnp.full(len(queries), -1)
    return lambda: jax.block_until_ready(search(index, on_device, none, K)[0])


def _faiss(data: np.ndarray, queries: np.ndarray) -> Callable[[], np.ndarray]:
    flat = faiss.IndexFlatL2(data.shape[1])
    flat.add(data)
    return lambda: flat.search(queries, K)[1]


@jax.jit
def _brute_force(data: Float[Array, "n dim"], queries: Float[Array, "queries dim"]) -> Int[Array, "queries k"]:
    return jax.lax.map(lambda query: jax.lax.top_k(-jnp.sum((data - query) ** 2, axis=-1), K)[1], queries)


def _record(name: str, seconds: float, missed: Float[np.ndarray, " queries"]) -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "solver": name,
        "dimension": DIM,
        "range": "near",
        "per_second": round(QUERIES / seconds, 1),
        "median_error": float(np.median(missed)),
        "p95_error": float(np.quantile(missed, 0.95)),
        "milliseconds": round(1000 * seconds, 2),
    }
