"""Throughput and length error of every solver on one trained decoder, beside stochman (`gelato bench geometry`).

Records are flat: `device, solver, dimension, range, per_second, median_error, p95_error`, errors relative to the length
that a converged solver finds. Near pairs are neighbours (one of the 20 nearest among 20,000), far pairs are drawn at
random.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from gelato.geometry.benchmark import stochman
from gelato.geometry.benchmark.decoder import Decoder, latents, metric_of, train
from gelato.geometry.benchmark.search import search_records
from gelato.geometry.converged import Converged
from gelato.geometry.graph import build
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.near import Near
from gelato.geometry.neighbours import nearest
from gelato.geometry.ode import Shooting
from gelato.geometry.paper import PaperSGD
from gelato.geometry.solver import AbstractSolver, Straight
from gelato.progress import note

Record = dict[str, Any]
Pairs = tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"]]
DIMENSIONS = (2, 10, 35)
POINTS, GRAPH_POINTS = 20_000, 3_000
REFERENCE = Converged(modes=8, nodes=16, tolerance=1e-7)
# Pairs that errors are taken over, and pairs that stochman and the slow solvers are timed on.
CHECKED, FEW = 64, 16


def solvers() -> dict[str, tuple[AbstractSolver, int]]:
    """The solvers timed, each with the largest batch it is timed on, as a share of the fastest's."""
    return {
        "straight": (Straight(), 1),
        "near": (Near(), 1),
        "near-two-rounds": (Near(rounds=2), 1),
        "paper": (PaperSGD(), 16),
        "converged-fast": (Converged(modes=4, nodes=8, tolerance=1e-4), 16),
        "converged": (Converged(), 16),
    }


def records(
    dimensions: tuple[int, ...] = DIMENSIONS, batch: int | None = None, train_steps: int = 600, search: bool = True
) -> Iterator[Record]:
    """Every record, as it is measured; `batch` pairs are solved at once (256 on a CPU, 65,536 on an accelerator)."""
    on_cpu = jax.default_backend() == "cpu"
    batch = batch or (256 if on_cpu else 65_536)
    if not stochman.available():
        note("stochman is not installed, so it is left out: pip install 'gelato-rl[bench]'")
    for dim in dimensions:
        decoder = train(dim, steps=train_steps)
        metric = metric_of(decoder)
        points = latents(dim, POINTS, key=jr.key(5))
        for distance_range in ("near", "far"):
            pairs = _pairs(points, batch, near=distance_range == "near")
            reference = _reference(metric, pairs)
            for name, rate, lengths in _measurements(decoder, metric, pairs):
                yield _record(name, dim, distance_range, rate, lengths, reference)
        if dim == 2:
            yield _graph_record(metric, points, dim)
    if search:
        yield from search_records()


def _measurements(decoder: Decoder, metric: AbstractMetric, pairs: Pairs) -> Iterator[tuple[str, float, np.ndarray]]:
    for name, (solver, share) in solvers().items():
        count = max(CHECKED, len(pairs[0]) // share)
        run = jax.jit(jax.vmap(lambda a, b, solver=solver: solver(metric, a, b).length))
        lengths, rate = _timed(run, *(x[:count] for x in pairs))
        yield name, rate, lengths[:CHECKED]
    if pairs[0].shape[1] == 2:
        run = jax.jit(jax.vmap(lambda a, b: Shooting(steps=6)(metric, a, b).length))
        lengths, rate = _timed(run, *(x[:FEW] for x in pairs))
        yield "shooting", rate, lengths
    # On a CPU: stochman's figure is for the machine that has no accelerator.
    if stochman.available() and jax.default_backend() == "cpu":
        for name, rate, lengths in stochman.lengths(decoder, metric, *(x[:CHECKED] for x in pairs)):
            yield f"stochman-{name}", rate, lengths


def _timed(run: Callable[..., Array], *arrays: Array, seconds: float = 0.5) -> tuple[np.ndarray, float]:
    out = np.asarray(run(*arrays))
    best, begin = np.inf, perf_counter()
    while perf_counter() - begin < seconds or best == np.inf:
        start = perf_counter()
        jax.block_until_ready(run(*arrays))
        best = min(best, perf_counter() - start)
    return out, len(arrays[0]) / best


def _pairs(points: Float[Array, "n dim"], count: int, near: bool) -> Pairs:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(points), count)
    if near:
        distinct = rows[: min(count, 4096)]
        found = np.asarray(nearest(points, points[distinct], 20, leave_out=distinct).indices)
        rows = np.resize(distinct, count)
        others = np.resize(found, (count, 20))[np.arange(count), rng.integers(0, 20, count)]
    else:
        others = (rows + rng.integers(1, len(points), count)) % len(points)
    return points[rows], points[others]


def _reference(metric: AbstractMetric, pairs: Pairs) -> np.ndarray:
    run = jax.jit(jax.vmap(lambda a, b: REFERENCE(metric, a, b).length))
    return np.asarray(run(*(x[:CHECKED] for x in pairs)))


def _graph_record(metric: AbstractMetric, points: Array, dim: int) -> Record:
    nodes = points[:GRAPH_POINTS]
    graph = build(metric, nodes)
    rows = np.arange(FEW)
    begin = perf_counter()
    found = graph.distances(rows)[rows, rows + FEW]
    rate = len(rows) * len(nodes) / (perf_counter() - begin)
    reference = _reference(metric, (nodes[rows], nodes[rows + FEW]))
    return _record("graph", dim, "far", rate, found, reference)


def _record(name: str, dim: int, range_: str, rate: float, lengths: np.ndarray, reference: np.ndarray) -> Record:
    errors = np.abs(lengths / reference[: len(lengths)] - 1)
    return {
        "device": jax.devices()[0].device_kind,
        "solver": name,
        "dimension": dim,
        "range": range_,
        "per_second": round(float(rate), 2),
        "median_error": float(np.median(errors)),
        "p95_error": float(np.quantile(errors, 0.95)),
    }


def run(dimensions: tuple[int, ...] = DIMENSIONS, batch: int | None = None) -> list[Record]:
    """Measure everything, print the table on standard output as it grows complete, and return the records."""
    measured = list(records(dimensions, batch))
    table = Table("solver", "d", "range", "per second", "median error", "95% error", title=measured[0]["device"])
    for record in measured:
        errors = (f"{record[name]:.3%}" for name in ("median_error", "p95_error"))
        table.add_row(
            record["solver"], str(record["dimension"]), record["range"], f"{record['per_second']:,.1f}", *errors
        )
    Console().print(table)
    return measured
