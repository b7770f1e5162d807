"""Measure speed and error of solvers on many pairs, and a distance matrix of 10,000 points.

    python experiments/geometry/throughput.py --results results/geometry_throughput.json

It uses the trained decoder of the benchmark with d = 35 (`decoder.py`) and runs on the default
device. Far pairs are random, near pairs are neighbours. `per_second` is measured on the host: it
includes the transfer of the points and of the results. Errors are relative to the length that
`Converged` with 16 modes finds, for the first pairs.

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

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.contestant import Pairs
from experiments.geometry.decoder import build_metric, sample_latents, train
from gelato.geometry import (
    AbstractMetric,
    AbstractSolver,
    Adaptive,
    Converged,
    Near,
    geodesics,
    measure_pairs,
    nearest,
    pairwise,
)
from gelato.progress import note
from gelato.runs.records import merge_records

Record = dict[str, Any]
KEYS = ("device", "dimension", "range", "solver")
POINTS, MATRIX_POINTS = 20_000, 10_000
REFERENCE = Converged(modes=16, nodes=40, precision=1e-7, iterations=60)
GIB = 2**30


def list_solvers() -> dict[str, tuple[AbstractSolver, int, int | None]]:
    """List the solvers, each with its number of pairs and its chunk size; quick ones first."""
    return {
        "near": (Near(), 2**20, 2**16),
        "near-two-rounds": (Near(rounds=2), 2**20, 2**16),
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

    checked, truth = {}, {}
    for range_ in options.ranges:
        checked[range_] = draw_pairs(points, options.checked, range_)
        found = geodesics(metric, *checked[range_], REFERENCE)
        truth[range_] = np.asarray(found.length, float)
        note(f"{range_}: the reference has an estimated error of {np.max(found.error):.1e}")
    for name, (solver, count, chunk_size) in solvers.items():
        for range_ in options.ranges:
            if perf_counter() - begin > options.seconds:
                note(f"no time left for {name}, {range_}")
                continue
            pairs = draw_pairs(points, max(options.checked, count // options.shrink), range_)
            first = tuple(end[: options.checked] for end in checked[range_])
            record = measure(metric, solver, pairs, first, truth[range_], chunk_size)
            write({"dimension": options.dimension, "range": range_, "solver": name, **record})
        if name == "near" and options.matrix:
            write(measure_matrix(metric, points[: MATRIX_POINTS // options.shrink]))


def measure(
    metric: AbstractMetric,
    solver: AbstractSolver,
    pairs: Pairs,
    checked: Pairs,
    truth: np.ndarray,
    chunk_size: int | None,
) -> Record:
    """Measure speed on all pairs, and errors on the checked ones."""
    found = geodesics(metric, *checked, solver)
    errors = np.abs(np.asarray(found.length, float) / truth - 1)
    start = perf_counter()
    measure_pairs(metric, *pairs, solver, chunk_size)
    first = perf_counter() - start
    start = perf_counter()
    measure_pairs(metric, *pairs, solver, chunk_size)
    seconds = perf_counter() - start
    whole = MATRIX_POINTS * (MATRIX_POINTS - 1) // 2
    return {
        "pairs": len(pairs[0]),
        "per_second": round(len(pairs[0]) / seconds, 1),
        "seconds_with_compilation": round(first, 1),
        "seconds_matrix": round(whole * seconds / len(pairs[0]), 1),
        "median_error": float(np.median(errors)),
        "p95_error": float(np.quantile(errors, 0.95)),
        "largest_error": float(np.max(errors)),
        "converged": float(np.mean(found.converged)),
        "below_the_estimate": float(np.mean(errors <= np.maximum(found.error, 5e-7))),
        "median_estimate": float(np.median(found.error)),
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
    return points[rows], points[others]


if __name__ == "__main__":
    main()
