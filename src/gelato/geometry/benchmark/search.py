"""Timing of exact nearest neighbours: the grouped search on an accelerator, FAISS flat and ours on the CPU."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import faiss
import jax
import jax.numpy as jnp
import numpy as np

from gelato.geometry.neighbours import nearest, search

DIM, QUERIES, K = 38, 1024, 20


def search_records(rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Queries per second for the 20 nearest of 1,024 queries in a million rows (100,000 on a CPU)."""
    on_cpu = jax.default_backend() == "cpu"
    rows = rows or (100_000 if on_cpu else 1_000_000)
    rng = np.random.default_rng(0)
    data, queries = (rng.normal(size=(n, DIM)).astype(np.float32) for n in (rows, QUERIES))
    if on_cpu:
        flat = faiss.IndexFlatL2(DIM)
        flat.add(data)
        truth = flat.search(queries, K)[1]
        yield _record("knn-faiss-flat", rows, lambda: flat.search(queries, K)[1], truth)
        yield _record("knn-nearest", rows, lambda: nearest(data, queries, K).indices, truth)
        return
    run = jax.jit(lambda data, queries: search(data, queries, jnp.full(QUERIES, -1), K)[0])
    on_device = jax.device_put((data, queries))
    truth = np.asarray(run(*on_device))
    yield _record("knn-grouped", rows, lambda: jax.block_until_ready(run(*on_device)), truth)


def _record(name: str, rows: int, call: Callable[[], Any], truth: np.ndarray) -> dict[str, Any]:
    found = np.asarray(call())
    times = []
    for _ in range(5):
        begin = perf_counter()
        call()
        times.append(perf_counter() - begin)
    missed = float(np.mean([1 - np.isin(row, other).mean() for row, other in zip(truth, found)]))
    return {
        "device": jax.devices()[0].device_kind,
        "solver": f"{name}-{rows}",
        "dimension": DIM,
        "range": "near",
        "per_second": round(QUERIES / min(times), 1),
        "median_error": missed,
        "p95_error": missed,
        "milliseconds": round(1000 * min(times), 2),
    }
