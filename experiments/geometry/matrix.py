"""Measure time and memory of a distance matrix of 10,000 points.

    python experiments/geometry/matrix.py --results results/geometry_matrix.json

Memory is the peak of the process during `pairwise` of all 10,000 points with the straight line in
flat space; it does not depend on the solver. Times are computing times of samples of pairs under
the metric of a trained decoder, extrapolated to all 49,995,000 pairs.
"""

import argparse
import json
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import jax
import jax.random as jr
import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.decoder import build_metric, sample_latents, train
from gelato.geometry import Adaptive, Euclidean, Near, Straight, geodesics, pairwise
from gelato.runs.records import merge_records

Record = dict[str, Any]
KEYS = ("device", "solver", "dimension")
POINTS = 10_000
# Pairs of one sample.
SAMPLES = {"near": 8192, "adaptive": 256}
GIB = 2**20  # `ru_maxrss` counts kilobytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimensions", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--results", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    records = [measure_memory(), *measure_times(options.dimensions)]
    if options.results is not None:
        merge_records(options.results, records, KEYS)
    for record in records:
        print(json.dumps(record), flush=True)


def measure_memory() -> Record:
    """Measure the whole matrix with the cheapest solver."""
    points = np.random.default_rng(0).normal(size=(POINTS, 2)).astype(np.float32)
    pairwise(Euclidean(), points[:10], Straight(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = process_time()
    pairwise(Euclidean(), points, Straight(1))
    seconds = process_time() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _build_record("straight, flat, whole matrix", 2, seconds, (after - before) / GIB)


def measure_times(dimensions: Sequence[int]) -> Iterator[Record]:
    """Measure samples of random pairs."""
    for dim in dimensions:
        metric = build_metric(train(dim))
        points = sample_latents(dim, 2 * max(SAMPLES.values()), key=jr.key(5))
        for name, solver in (("near", Near()), ("adaptive", Adaptive())):
            count = SAMPLES[name]
            pairs = points[:count], points[count : 2 * count]
            geodesics(metric, *pairs, solver)
            begin = process_time()
            geodesics(metric, *pairs, solver)
            share = count / (POINTS * (POINTS - 1) / 2)
            seconds = (process_time() - begin) / share
            yield _build_record(f"{name}, extrapolated from {count} pairs", dim, seconds, None)


def _build_record(name: str, dim: int, seconds: float, memory: float | None) -> Record:
    return {
        "device": jax.devices()[0].device_kind,
        "solver": name,
        "dimension": dim,
        "cpu_hours": round(seconds / 3600, 3),
        "additional_gib": None if memory is None else round(memory, 2),
    }


if __name__ == "__main__":
    main()
