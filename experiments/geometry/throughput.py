"""Measure speed and error of solvers on many pairs, and a distance matrix of 10,000 points.

    python experiments/geometry/throughput.py --results results/geometry_throughput.json

It uses the trained decoder of the benchmark with d = 35 (`decoder.py`) and runs on the default
device. Far pairs are random, near pairs are neighbours. `per_second` is measured on the host: it
includes the transfer of the points and of the results. Errors are relative to the length that
`GaussNewton` finds with 24 segments, 14 rounds of 24 iterations and full precision, for some pairs.

The matrix is measured with `Near` in full. `gib_host` is how much the memory of the process grew
and `gib_device` the peak on an accelerator. For the default solver its time is extrapolated from
random pairs (`seconds_matrix`). Every record is written as soon as it is measured; with `--seconds`
no new measurement starts after that time.
"""

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.decoder import build_metric, sample_latents, train
from gelato.geometry import (
    AbstractMetric,
    AbstractSolver,
    Adaptive,
    Converged,
    GaussNewton,
    Geodesic,
    Near,
    nearest,
    pairwise,
)
from gelato.geometry.batch import Pairs, solve_pairs
from gelato.progress import note
from gelato.runs.records import merge_records

Record = dict[str, Any]
KEYS = ("device", "dimension", "range", "solver")
POINTS, MATRIX_POINTS = 20_000, 10_000
REFERENCE = GaussNewton(segments=24, rounds=14, iterations=24, products="float32")
GIB = 2**30
# Errors below this many units of rounding count as rounding.
ROUNDING = 4 * float(np.finfo(np.float32).eps)


def list_solvers() -> dict[str, tuple[AbstractSolver, int, int | None]]:
    """List the solvers, each with its number of pairs and its chunk size; quick ones first."""
    return {
        "near": (Near(), 2**20, 2**16),
        "near-two-rounds": (Near(rounds=2), 2**20, 2**16),
        "gauss-newton": (GaussNewton(), 2**18, 2**14),
        "gauss-newton-10": (GaussNewton(iterations=10), 2**18, 2**14),
        "gauss-newton-float32": (GaussNewton(products="float32"), 2**18, 2**14),
        "gauss-newton-16": (GaussNewton(iterations=16), 2**18, 2**14),
        "converged-fast": (Converged(modes=4, nodes=8, precision=1e-4), 2**16, 2**14),
        "adaptive-0.01": (Adaptive(1e-2), 2**15, None),
        "adaptive-0.001": (Adaptive(1e-3), 2**15, None),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimension", type=int, default=35)
    parser.add_argument("--only", nargs="+", choices=list(list_solvers()), help="some solvers")
    parser.add_argument("--ranges", nargs="+", default=["far", "near"], choices=["far", "near"])
    parser.add_argument("--checked", type=int, default=512, help="pairs with a reference")
    parser.add_argument("--shrink", type=int, default=1, help="divide all numbers of pairs")
    parser.add_argument("--matrix", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seconds", type=float, default=np.inf, help="start nothing after this")
    parser.add_argument("--results", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    begin = perf_counter()
    metric = build_metric(train(options.dimension))
    points = sample_latents(options.dimension, POINTS, key=jr.key(5))
    solvers = {name: list_solvers()[name] for name in options.only or list_solvers()}

    def write(record: Record) -> None:
        record = {"device": jax.devices()[0].device_kind, **record}
        print(json.dumps(record), flush=True)
        if options.results is not None:
            merge_records(options.results, [record], KEYS)

    largest = max(count for _, count, _ in solvers.values())
    drawn, truth = {}, {}
    for range_ in options.ranges:
        drawn[range_] = draw_pairs(points, max(options.checked, largest // options.shrink), range_)
        few = take_first(drawn[range_], options.checked)
        lengths, errors, _ = solve_pairs(metric, few, REFERENCE, 2**9, keep_numbers)
        truth[range_] = np.asarray(lengths, float)
        note(f"{range_}: the reference has a median estimated error of {np.median(errors):.1e}")
    for name, (solver, count, chunk_size) in solvers.items():
        for range_ in options.ranges:
            if perf_counter() - begin > options.seconds:
                note(f"no time left for {name}, {range_}")
                continue
            pairs = take_first(drawn[range_], max(options.checked, count // options.shrink))
            record = measure(metric, solver, pairs, truth[range_], chunk_size)
            write({"dimension": options.dimension, "range": range_, "solver": name, **record})
    if options.matrix and perf_counter() - begin < options.seconds:
        write(measure_matrix(metric, np.asarray(points[: MATRIX_POINTS // options.shrink])))


def measure(
    metric: AbstractMetric,
    solver: AbstractSolver,
    pairs: Pairs,
    truth: Float[np.ndarray, " checked"],
    chunk_size: int | None,
) -> Record:
    """Measure speed on all pairs, and errors on the first ones."""
    start = perf_counter()
    lengths, estimates, converged = solve_pairs(metric, pairs, solver, chunk_size, keep_numbers)
    first = perf_counter() - start
    start = perf_counter()
    solve_pairs(metric, pairs, solver, chunk_size, keep_numbers)
    seconds = perf_counter() - start
    errors = np.abs(np.asarray(lengths[: len(truth)], float) / truth - 1)
    few = np.asarray(estimates[: len(truth)], float)
    whole = MATRIX_POINTS * (MATRIX_POINTS - 1) // 2
    return {
        "pairs": pairs.count,
        "per_second": round(pairs.count / seconds, 1),
        "seconds_with_compilation": round(first, 1),
        "seconds_matrix": round(whole * seconds / pairs.count, 1),
        "median_error": float(np.median(errors)),
        "p95_error": float(np.quantile(errors, 0.95)),
        "largest_error": float(np.max(errors)),
        "converged": float(np.mean(converged)),
        "below_the_estimate": float(np.mean(errors <= np.maximum(few, ROUNDING))),
        "median_estimate": float(np.median(few)),
    }


def measure_matrix(metric: AbstractMetric, points: np.ndarray) -> Record:
    """Measure time and memory of all distances with `Near`."""
    pairwise(metric, points[:300], Near(), 2**16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = perf_counter()
    pairwise(metric, points, Near(), 2**16)
    seconds = perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = jax.devices()[0].memory_stats() or {}
    peak = memory.get("peak_bytes_in_use")
    return {
        "dimension": points.shape[1],
        "range": "matrix",
        "solver": "near",
        "points": len(points),
        "seconds_matrix": round(seconds, 1),
        "gib_host": round((after - before) * 1024 / GIB, 3),
        "gib_device": None if peak is None else round(peak / GIB, 3),
    }


def draw_pairs(points: Any, count: int, range_: str) -> Pairs:
    """Draw random pairs, or pairs of neighbours."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(points), count)
    if range_ == "far":
        others = (rows + rng.integers(1, len(points), count)) % len(points)
    else:
        distinct = rows[:4096]
        found = np.asarray(nearest(points, points[distinct], 20, exclude=distinct).indices)
        rows = np.resize(distinct, count)
        others = np.resize(found, (count, 20))[np.arange(count), rng.integers(0, 20, count)]
    points = np.asarray(points)
    return Pairs(points[rows], points[others], np.arange(count), np.arange(count))


def take_first(pairs: Pairs, count: int) -> Pairs:
    """Keep the first pairs."""
    return Pairs(pairs.starts, pairs.ends, pairs.rows[:count], pairs.columns[:count])


def keep_numbers(geodesic: Geodesic) -> tuple[Array, Array, Array]:
    """Keep what is measured."""
    return geodesic.length, geodesic.error, geodesic.converged


if __name__ == "__main__":
    main()
