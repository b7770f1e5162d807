"""Throughput and length error of every solver on one trained decoder, beside stochman (`gelato bench geometry`).

Records are flat: `device, solver, dimension, range, per_second, median_error, p95_error`, errors relative to the length
that a converged solver finds, and `times_stochman`, the default solver's throughput over that of stochman's fastest
setting whose median error is no greater. Near pairs are neighbours (one of the 20 nearest among 20,000), far pairs are
drawn at random. All are timed by turns, the best of several rounds counts: a machine's other work slows down all alike.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from gelato.geometry.benchmark import stochman
from gelato.geometry.benchmark.contestant import Contestant, Pairs, fastest
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
Advance = Callable[..., None]
RANGES = ("near", "far")
POINTS, GRAPH_POINTS = 20_000, 3_000
REFERENCE = Converged(modes=8, nodes=16, tolerance=1e-7)
# Pairs that errors are taken over (and stochman is timed on), and pairs that the slowest are timed on.
CHECKED, FEW = 64, 16
ROUNDS, SHORTEST = 3, 0.1


def solvers(dim: int) -> dict[str, tuple[AbstractSolver, int]]:
    """The solvers timed, each with the part of the batch that it is timed on."""
    shooting: dict[str, tuple[AbstractSolver, int]] = {"shooting": (Shooting(steps=6), FEW)}
    return {
        "straight": (Straight(), 1),
        "near": (Near(), 1),
        "near-two-rounds": (Near(rounds=2), 1),
        "paper": (PaperSGD(), 16),
        "converged-fast": (Converged(modes=4, nodes=8, tolerance=1e-4), 16),
        "converged": (Converged(), 16),
    } | (shooting if dim == 2 else {})


def steps(dimensions: tuple[int, ...], search: bool = True) -> int:
    """How often `measure` reports that it advanced."""
    return len(dimensions) * len(RANGES) * (1 + ROUNDS) + search


def measure(
    dimensions: tuple[int, ...], batch: int | None, train_steps: int, search: bool, advance: Advance
) -> list[Record]:
    """Every record; `batch` pairs are solved at once (256 on a CPU, 65,536 on an accelerator)."""
    batch = batch or (256 if jax.default_backend() == "cpu" else 65_536)
    if not stochman.available():
        note("stochman is not installed, so it is left out: pip install 'gelato-rl[bench]'")
    records: list[Record] = []
    for dim in dimensions:
        records += _of_dimension(dim, batch, train(dim, steps=train_steps), advance)
    if search:
        records += search_records()
        advance(1)
    return records


def _of_dimension(dim: int, batch: int, decoder: Decoder, advance: Advance) -> Iterator[Record]:
    metric, points = metric_of(decoder), latents(dim, POINTS, key=jr.key(5))
    # Compiled once for both ranges.
    compiled = {name: (_compile(solver), share) for name, (solver, share) in solvers(dim).items()}
    reference = _compile(REFERENCE)
    for range_ in RANGES:
        pairs = _pairs(points, batch, near=range_ == "near")
        few = pairs[0][:CHECKED], pairs[1][:CHECKED]
        contestants = [_contestant(name, run, metric, pairs, share) for name, (run, share) in compiled.items()]
        # On a CPU: stochman's figure is for the machine that has no accelerator.
        if stochman.available() and jax.default_backend() == "cpu":
            contestants += stochman.contestants(decoder, metric, few)
        truth = np.asarray(reference(metric, *few))
        yield from _compared([_record(*found, dim, range_, truth) for found in _timed(contestants, advance)])
    if dim == 2:
        yield _graph_record(metric, points, reference)


def _compile(solver: AbstractSolver) -> Callable[..., Array]:
    return eqx.filter_jit(lambda metric, a, b: jax.vmap(lambda a, b: solver(metric, a, b).length)(a, b))


def _contestant(name: str, run: Callable[..., Array], metric: AbstractMetric, pairs: Pairs, share: int) -> Contestant:
    count = max(min(FEW, len(pairs[0])), len(pairs[0]) // share)
    a, b = (x[:count] for x in pairs)

    def solve() -> Array:
        return jax.block_until_ready(run(metric, a, b))

    return Contestant(name, count, [solve], lambda: np.asarray(solve())[:CHECKED])


def _timed(contestants: list[Contestant], advance: Advance) -> list[tuple[str, float, np.ndarray]]:
    lengths = [contestant.lengths() for contestant in contestants]
    advance(1)
    best = [np.inf] * len(contestants)
    for _ in range(ROUNDS):
        for i, contestant in enumerate(contestants):
            best[i] = min(best[i], *(fastest(way, SHORTEST) for way in contestant.ways))
        advance(1)
    return [(c.name, c.pairs / seconds, found) for c, seconds, found in zip(contestants, best, lengths)]


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


def _graph_record(metric: AbstractMetric, points: Array, reference: Callable[..., Array]) -> Record:
    nodes = points[:GRAPH_POINTS]
    graph = build(metric, nodes)
    rows = np.arange(FEW)
    begin = perf_counter()
    found = graph.distances(rows)[rows, rows + FEW]
    rate = len(rows) * len(nodes) / (perf_counter() - begin)
    return _record("graph", rate, found, 2, "far", np.asarray(reference(metric, nodes[rows], nodes[rows + FEW])))


def _record(name: str, rate: float, lengths: np.ndarray, dim: int, range_: str, reference: np.ndarray) -> Record:
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


def _compared(records: list[Record]) -> list[Record]:
    near = next(record for record in records if record["solver"] == "near")
    rivals = [
        record["per_second"]
        for record in records
        if record["solver"].startswith("stochman") and record["median_error"] <= near["median_error"]
    ]
    if rivals:
        near["times_stochman"] = round(near["per_second"] / max(rivals), 1)
    return records
