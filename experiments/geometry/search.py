"""Time the exact search for nearest neighbours; on a CPU, compare it with FAISS flat.

Both search a prepared index, and run in turn. The error is the fraction of true
neighbours that were missed.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.errors import import_extra
from gelato.geometry import NO_EXCLUSION, prepare
from gelato.geometry.neighbours import search

DIM, QUERIES, K = 38, 1024, 20
REPEATS, CHECKED = 10, 32


def search_records(rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Time searches for the 20 nearest rows of 1,024 queries in a million rows (CPU: 100,000)."""
    on_cpu = jax.default_backend() == "cpu"
    rows = rows or (100_000 if on_cpu else 1_000_000)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(rows, DIM)).astype(np.float32)
    queries = rng.normal(size=(QUERIES, DIM)).astype(np.float32)
    truth = np.asarray(_brute_force(data, queries[:CHECKED]))
    searches: dict[str, Callable[[], Any]] = {"knn-nearest": _prepare_ours(data, queries)}
    if on_cpu:
        searches["knn-faiss-flat"] = _prepare_faiss(data, queries)
    found = {name: np.asarray(call())[:CHECKED] for name, call in searches.items()}
    times: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(REPEATS):
        for name, call in searches.items():
            begin = perf_counter()
            call()
            times[name].append(perf_counter() - begin)
    for name in searches:
        missed = [1 - np.isin(row, other).mean() for row, other in zip(truth, found[name])]
        yield _build_record(f"{name}-{rows}", min(times[name]), np.array(missed))


def _prepare_ours(data: np.ndarray, queries: np.ndarray) -> Callable[[], Array]:
    index, on_device = prepare(jnp.asarray(data)), jnp.asarray(queries)
    exclude = jnp.full(len(queries), NO_EXCLUSION)
    return lambda: jax.block_until_ready(search(index, on_device, exclude, K)[0])


def _prepare_faiss(data: np.ndarray, queries: np.ndarray) -> Callable[[], np.ndarray]:
    flat = import_extra("faiss", "search").IndexFlatL2(data.shape[1])
    flat.add(data)
    return lambda: flat.search(queries, K)[1]


@jax.jit
def _brute_force(
    data: Float[Array, "n dim"], queries: Float[Array, "queries dim"]
) -> Int[Array, "queries k"]:
    return jax.lax.map(
        lambda query: jax.lax.top_k(-jnp.sum((data - query) ** 2, axis=-1), K)[1], queries
    )


def _build_record(
    name: str, seconds: float, missed: Float[np.ndarray, " queries"]
) -> dict[str, Any]:
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
