"""Measure speed and length error of every geodesic solver on one trained decoder.

    python experiments/geometry/benchmark.py --results results/geometry.json

stochman runs on the same pairs, on a CPU only, if it is installed: pip install 'gelato-rl[bench]'.

Each record holds `device, solver, dimension, range, per_second, median_error, p95_error`. Errors
are relative to the length that a converged solver finds. `times_stochman` is the speed of the
default solver divided by the speed of the fastest stochman setting with no greater median error.
Near pairs are neighbours (one of the 20 nearest among 20,000 points); far pairs are random. The
solvers run in turn and the fastest of several rounds counts, so that other programs on the machine
slow all of them equally.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry import stochman_solver
from experiments.geometry.contestant import Contestant, Pairs, measure_fastest
from experiments.geometry.decoder import Decoder, build_metric, sample_latents, train
from experiments.geometry.search import search_records
from gelato.cli.output import check_records, print_table
from gelato.errors import InputError
from gelato.geometry import (
    AbstractMetric,
    AbstractSolver,
    Converged,
    Near,
    PaperSGD,
    Shooting,
    Straight,
    nearest,
)
from gelato.geometry.graph import build
from gelato.progress import note, progress
from gelato.runs.records import merge_records

Record = dict[str, Any]
Advance = Callable[..., None]
KEYS = ("device", "dimension", "range", "solver")
RANGES = ("near", "far")
POINTS, GRAPH_POINTS = 20_000, 3_000
REFERENCE = Converged(modes=8, nodes=16, precision=1e-7)
# Errors are computed over CHECKED pairs, which are also stochman's batch. The slowest solvers are
# timed on FEW pairs.
CHECKED, FEW = 64, 16
# Each round repeats a call for at least SHORTEST seconds.
ROUNDS, SHORTEST = 3, 0.1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        check_records(options.results)
    except InputError as error:
        parser.error(str(error))
    dimensions = tuple(options.dimensions)
    with progress("measuring", count_steps(dimensions, options.search)) as advance:
        records = measure(dimensions, options.batch, options.train_steps, options.search, advance)
    if options.results is not None:
        merge_records(options.results, records, KEYS)
    if options.json:
        print(json.dumps({"records": records}, allow_nan=False))
    else:
        print_records(records)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only one JSON object")
    parser.add_argument(
        "--dimensions",
        type=parse_positive,
        nargs="+",
        default=[2, 10, 35],
        help="latent dimensions to measure (default: 2 10 35)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="also write the records to this file, replacing older records of the same device",
    )
    parser.add_argument(
        "--batch",
        type=parse_positive,
        help="pairs in one batch (default: 256 on a CPU, 65,536 on an accelerator)",
    )
    parser.add_argument(
        "--train-steps",
        type=parse_positive,
        default=600,
        help="training steps of the decoder (default: 600)",
    )
    parser.add_argument(
        "--search",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also time the exact search for nearest neighbours",
    )
    return parser


def parse_positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def choose_solvers(dim: int) -> dict[str, tuple[AbstractSolver, int]]:
    """List the solvers; each number divides the batch size on which the solver is timed."""
    solvers: dict[str, tuple[AbstractSolver, int]] = {
        "straight": (Straight(), 1),
        "near": (Near(), 1),
        "near-two-rounds": (Near(rounds=2), 1),
        "paper": (PaperSGD(), 16),
        "converged-fast": (Converged(modes=4, nodes=8, precision=1e-4), 16),
        "converged": (Converged(), 16),
    }
    if dim == 2:
        solvers["shooting"] = (Shooting(steps=6), FEW)
    return solvers


def count_steps(dimensions: tuple[int, ...], search: bool = True) -> int:
    """Count how often `measure` calls `advance`."""
    return len(dimensions) * len(RANGES) * (1 + ROUNDS) + search


def measure(
    dimensions: tuple[int, ...], batch: int | None, train_steps: int, search: bool, advance: Advance
) -> list[Record]:
    """Measure all records; `batch` is the number of pairs in one call of a solver."""
    batch = batch or (256 if jax.default_backend() == "cpu" else 65_536)
    if not stochman_solver.is_installed():
        note("stochman is not installed and is skipped: pip install 'gelato-rl[bench]'")
    records: list[Record] = []
    for dim in dimensions:
        records += _measure_dimension(dim, batch, train(dim, steps=train_steps), advance)
    if search:
        records += search_records()
        advance(1)
    return records


def print_records(records: list[Record]) -> None:
    """Print the records as a table."""
    device = records[0]["device"]
    columns = ("d", "range", "per second", "median error", "95% error", "× stochman")
    rows = []
    for record in records:
        row = (
            record["solver"],
            str(record["dimension"]),
            record["range"],
            f"{record['per_second']:,.1f}",
            f"{record['median_error']:.3%}",
            f"{record['p95_error']:.3%}",
            str(record.get("times_stochman", "")),
        )
        rows.append(row)
    print_table((f"solver ({device})", *columns), rows)


def _measure_dimension(
    dim: int, batch: int, decoder: Decoder, advance: Advance
) -> Iterator[Record]:
    metric = build_metric(decoder)
    points = sample_latents(dim, POINTS, key=jr.key(5))
    # Each solver is compiled once for both ranges.
    compiled = {}
    for name, (solver, share) in choose_solvers(dim).items():
        compiled[name] = (_compile(solver), share)
    reference = _compile(REFERENCE)
    for range_ in RANGES:
        pairs = _draw_pairs(points, batch, near=range_ == "near")
        few = pairs[0][:CHECKED], pairs[1][:CHECKED]
        contestants = []
        for name, (run, share) in compiled.items():
            contestants.append(_build_contestant(name, run, metric, pairs, share))
        # stochman is compared only on machines without an accelerator.
        if stochman_solver.is_installed() and jax.default_backend() == "cpu":
            contestants += stochman_solver.build_contestants(decoder, metric, few)
        truth = np.asarray(reference(metric, *few))
        records = []
        for name, rate, lengths in _time_all(contestants, advance):
            records.append(_build_record(name, rate, lengths, dim, range_, truth))
        yield from compare_with_stochman(records)
    if dim == 2:
        yield _measure_graph(metric, points, reference)


def _compile(solver: AbstractSolver) -> Callable[..., Array]:
    return eqx.filter_jit(
        lambda metric, a, b: jax.vmap(lambda a, b: solver(metric, a, b).length)(a, b)
    )


def _build_contestant(
    name: str, run: Callable[..., Array], metric: AbstractMetric, pairs: Pairs, share: int
) -> Contestant:
    count = max(min(FEW, len(pairs[0])), len(pairs[0]) // share)
    a, b = pairs[0][:count], pairs[1][:count]

    def solve() -> Array:
        return jax.block_until_ready(run(metric, a, b))

    return Contestant(name, count, [solve], lambda: np.asarray(solve())[:CHECKED])


def _time_all(
    contestants: list[Contestant], advance: Advance
) -> Iterator[tuple[str, float, np.ndarray]]:
    lengths = [contestant.lengths() for contestant in contestants]
    advance(1)
    best = [np.inf] * len(contestants)
    for _ in range(ROUNDS):
        for i, contestant in enumerate(contestants):
            for variant in contestant.variants:
                best[i] = min(best[i], measure_fastest(variant, SHORTEST))
        advance(1)
    for contestant, seconds, found in zip(contestants, best, lengths):
        yield contestant.name, contestant.pairs / seconds, found


def _draw_pairs(points: Float[Array, "n dim"], count: int, near: bool) -> Pairs:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(points), count)
    if near:
        distinct = rows[: min(count, 4096)]
        found = np.asarray(nearest(points, points[distinct], 20, exclude=distinct).indices)
        rows = np.resize(distinct, count)
        others = np.resize(found, (count, 20))[np.arange(count), rng.integers(0, 20, count)]
    else:
        others = (rows + rng.integers(1, len(points), count)) % len(points)
    return points[rows], points[others]


def _measure_graph(
    metric: AbstractMetric, points: Array, reference: Callable[..., Array]
) -> Record:
    nodes = points[:GRAPH_POINTS]
    graph = build(metric, nodes)
    rows = np.arange(FEW)
    begin = perf_counter()
    found = graph.distances(rows)[rows, rows + FEW]
    rate = len(rows) * len(nodes) / (perf_counter() - begin)
    truth = np.asarray(reference(metric, nodes[rows], nodes[rows + FEW]))
    return _build_record("graph", rate, found, 2, "far", truth)


def _build_record(
    name: str, rate: float, lengths: np.ndarray, dim: int, range_: str, reference: np.ndarray
) -> Record:
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


def compare_with_stochman(records: list[Record]) -> list[Record]:
    """Add `times_stochman` to the record of the default solver."""
    near = next(record for record in records if record["solver"] == "near")
    rates = []
    for record in records:
        is_stochman = record["solver"].startswith("stochman")
        if is_stochman and record["median_error"] <= near["median_error"]:
            rates.append(record["per_second"])
    if rates:
        near["times_stochman"] = round(near["per_second"] / max(rates), 1)
    return records


if __name__ == "__main__":
    main()
