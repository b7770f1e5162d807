"""Measure how far the estimated errors of geodesics can be trusted.

    python experiments/geometry/reliability.py --jobs 2 --results results/geometry_reliability.json

The default solver runs in single precision on every manifold and on trained decoders, for near and
far pairs and two tolerances. True errors are relative to the closed form. Where there is none, they
are relative to the length that a solver with 24 modes finds in double precision. It starts from the
shortest of four curves: the solver's own, those that a solver with 12 modes finds from the straight
line and from a random bulge, and for pullbacks that of `GaussNewton` with 16 segments.

Each record holds the share of pairs whose true error is below the estimate (`covered`), the median
of estimate / true error (`median_ratio`; errors below rounding count as rounding), the share of
converged pairs, and the share of converged pairs whose true error is above the tolerance (`wrong`).
`unresolved` counts pairs whose reference has an estimated error above a tenth of the tolerance.
They are counted like the others.

Each process measures one manifold and range on one core. With `--seconds` the measurement ends
early; the next one with the same `--results` measures only what is missing.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.contestant import Pairs
from experiments.geometry.decoder import build_metric, sample_latents, train
from experiments.geometry.manifolds import Manifold, list_manifolds
from experiments.geometry.processes import run_jobs
from gelato.arrays import map_in_chunks
from gelato.geometry import (
    AbstractImmersed,
    Adaptive,
    Converged,
    Curve,
    GaussNewton,
    Geodesic,
    geodesics,
    nearest,
)
from gelato.geometry.batch import choose_chunk_size
from gelato.geometry.curve import Legendre
from gelato.runs.records import merge_records, read_records

Record = dict[str, Any]
KEYS = ("device", "manifold", "range", "tolerance")
RANGES, TOLERANCES = ("near", "far"), (1e-3, 1e-4)
COARSE = Converged(modes=12, nodes=32, precision=1e-5, iterations=60)
REFERENCE = Converged(modes=24, nodes=56, precision=1e-8, iterations=60)
# The random bulge of the reference, as a fraction of the chord.
BULGE = 0.5
# This one minimises in another way, and converges where the metric is nearly singular.
POLYGON = GaussNewton(segments=16, rounds=12, iterations=24, products="float32")
POINTS = 2000
# Errors below this many units of rounding count as rounding.
ROUNDING = 4 * float(np.finfo(np.float32).eps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=64, help="pairs of a case (default: 64)")
    parser.add_argument("--decoders", type=int, nargs="*", default=[2, 10, 35])
    parser.add_argument("--only", nargs="*", help="names of manifolds (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one core")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after this time")
    parser.add_argument("--case", help="measure one case in this process: MANIFOLD:RANGE")
    parser.add_argument("--results", type=Path, required=True, help="write the records here")
    options = parser.parse_args(arguments)
    manifolds = [wrap_decoder(dim) for dim in sorted(options.decoders, reverse=True)]
    manifolds += sorted(list_manifolds(), key=lambda manifold: -manifold.dim)
    if options.case:
        name, range_ = options.case.split(":")
        manifold = next(manifold for manifold in manifolds if manifold.name == name)
        records = measure(manifold, range_, options.pairs)
        merge_records(options.results, records, KEYS)
        for record in records:
            print(json.dumps(record), flush=True)
        return
    cases = [f"{m.name}:{range_}" for m in manifolds for range_ in reversed(RANGES)]
    if options.only is not None:
        cases = [case for case in cases if case.split(":")[0] in options.only]
    known = read_records(options.results) if options.results.exists() else []
    done = {f"{record['manifold']}:{record['range']}" for record in known}
    command = [sys.executable, __file__, "--pairs", str(options.pairs), "--decoders"]
    command += [*map(str, options.decoders), "--results", str(options.results), "--case"]
    run_jobs(
        [[*command, case] for case in cases if case not in done], options.jobs, options.seconds
    )


def wrap_decoder(dim: int) -> Manifold:
    """Wrap the trained decoder of `benchmark.py` as a manifold."""
    return Manifold(f"decoder-{dim}", dim, None, lambda key, n: sample_latents(dim, n, key=key))


def measure(manifold: Manifold, range_: str, count: int) -> list[Record]:
    """Measure all tolerances of one manifold and range."""
    is_decoder = manifold.metric is None
    metric = build_metric(train(manifold.dim)) if is_decoder else manifold.metric
    manifold = manifold._replace(metric=metric)
    pairs = draw_neighbours(manifold, range_, count) if is_decoder else None
    pairs = pairs or manifold.draw_pairs(range_, count)
    found, seconds = [], []
    for tolerance in TOLERANCES:
        begin = process_time()
        found.append(geodesics(metric, *pairs, Adaptive(tolerance)))
        seconds.append(process_time() - begin)
    truth, resolution = find_truth(manifold, pairs, found)
    records = []
    for tolerance, geodesic, time in zip(TOLERANCES, found, seconds):
        record = {
            "device": jax.devices()[0].device_kind,
            "manifold": manifold.name,
            "dimension": manifold.dim,
            "range": range_,
            "tolerance": tolerance,
            **summarise(geodesic, truth, tolerance),
            "unresolved": int(np.sum(resolution > tolerance / 10)),
            "seconds_with_compilation": round(time, 1),
        }
        records.append(record)
    return records


def draw_neighbours(manifold: Manifold, range_: str, count: int) -> Pairs | None:
    """Draw pairs of near neighbours among many latents, as in `benchmark.py`."""
    if range_ == "far":
        return None
    points = manifold.sample(jr.key(5), POINTS)
    rows = np.arange(count)
    others = np.asarray(nearest(points, points[rows], 20, exclude=rows).indices)
    return points[rows], points[others[rows, rows % 20]]


def find_truth(
    manifold: Manifold, pairs: Pairs, found: Sequence[Geodesic]
) -> tuple[Float[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]:
    """Find the distances and the relative errors to which they are known."""
    if manifold.distance is not None:
        return manifold.distance(*pairs), np.zeros(len(pairs[0]))
    with jax.enable_x64(True):
        metric = jax.tree.map(_widen, manifold.metric)
        a, b = (_widen(jnp.asarray(x)) for x in pairs)
        best = np.asarray(found[-1].curve.coefficients, float)[:, : REFERENCE.modes]
        lengths = np.asarray(found[-1].length, float)
        line = np.zeros((*best.shape[:1], COARSE.modes, best.shape[2]))
        bulge = line.copy()
        sides = np.random.default_rng(1).normal(size=a.shape) / np.sqrt(a.shape[1])
        middle = Legendre(1).tables(np.array([0.5]))[0].item()
        bulge[:, 0] = BULGE / middle * np.linalg.norm(b - a, axis=1, keepdims=True) * sides
        starts = [(COARSE, line), (COARSE, bulge)]
        if isinstance(metric, AbstractImmersed):
            polygon = Converged(POLYGON.segments - 1, 40, precision=1e-6, iterations=60)
            starts.append((polygon, np.asarray(_solve_all(metric, POLYGON, a, b))))
        for solver, start in starts:
            shapes, other, _ = _refine_all(metric, solver, a, b, start)
            shorter = other < lengths
            best[shorter] = 0
            best[shorter, : solver.modes] = shapes[shorter]
            lengths = np.where(shorter, other, lengths)
        _, lengths, errors = _refine_all(metric, REFERENCE, a, b, best)
        return lengths, errors


def summarise(
    found: Geodesic, truth: Float[np.ndarray, " pairs"], tolerance: float
) -> dict[str, float | int]:
    """Compare estimated with true errors."""
    true = np.abs(np.asarray(found.length, float) / truth - 1)
    estimate, converged = np.asarray(found.error, float), np.asarray(found.converged)
    counted = np.maximum(true, ROUNDING)
    return {
        "pairs": len(true),
        "covered": float(np.mean(true <= np.maximum(estimate, ROUNDING))),
        "median_ratio": float(np.median(estimate / counted)),
        "converged": float(np.mean(converged)),
        "wrong": float(np.sum(converged & (true > tolerance)) / max(1, np.sum(converged))),
        "median_error": float(np.median(true)),
        "largest_error": float(np.max(true)),
        "largest_error_converged": float(np.max(true[converged], initial=0)),
        "several": float(np.mean(found.several)),
    }


def _widen(leaf: Any) -> Any:
    return leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf


@eqx.filter_jit
def _solve_all(metric: Any, solver: GaussNewton, a: Array, b: Array) -> Array:
    return jax.lax.map(lambda ends: solver(metric, *ends).curve.coefficients, (a, b))


def _refine_all(
    metric: Any, solver: Converged, a: Array, b: Array, shapes: np.ndarray
) -> tuple[np.ndarray, ...]:
    def refine(a: Array, b: Array, shapes: Array) -> tuple[Array, ...]:
        return _refine_chunk(metric, solver, a, b, shapes)

    size = min(len(a), choose_chunk_size(a.shape[1], solver))
    return map_in_chunks(refine, (a, b, jnp.asarray(shapes)), size)


@eqx.filter_jit
def _refine_chunk(
    metric: Any, solver: Converged, a: Array, b: Array, shapes: Array
) -> tuple[Array, ...]:
    def refine(a: Array, b: Array, shape: Array) -> tuple[Array, ...]:
        found = solver.refine(metric, Curve(a, b, shape, Legendre(solver.modes)))
        return found.curve.coefficients, found.length, found.error

    return jax.vmap(refine)(a, b, shapes)


if __name__ == "__main__":
    main()
