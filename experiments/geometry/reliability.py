"""Measure how far the estimated errors of geodesics can be trusted.

    python experiments/geometry/reliability.py --results results/geometry_reliability.json

The default solver runs in single precision on every manifold and on trained decoders, for near and
far pairs and two tolerances. True errors are relative to the closed form. Where there is none, they
are relative to the shortest of several curves that a solver with 12 modes finds in double precision
from the straight line, from the solver's own curve and from a random bulge.

Each record holds the share of pairs whose true error is below the estimate (`covered`), the median
of estimate / true error (`median_ratio`; errors below rounding count as rounding), the share of
converged pairs, and the share of converged pairs whose true error is above the tolerance (`wrong`).
`unresolved` counts pairs whose reference has an estimated error above a tenth of the tolerance.
They are counted like the others.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
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
from gelato.geometry import Adaptive, Converged, Curve, Geodesic, geodesics, nearest
from gelato.geometry.batch import choose_chunk_size
from gelato.geometry.curve import Legendre
from gelato.progress import progress
from gelato.runs.records import merge_records

Record = dict[str, Any]
KEYS = ("device", "manifold", "range", "tolerance")
RANGES, TOLERANCES = ("near", "far"), (1e-3, 1e-4)
REFERENCE = Converged(modes=12, nodes=32, precision=1e-8, iterations=200)
# Random bulges of the reference, by this fraction of the chord and more.
BULGES, BULGE = 1, 0.3
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
    parser.add_argument("--results", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    manifolds = list_manifolds() + [wrap_decoder(dim) for dim in options.decoders]
    if options.only is not None:
        manifolds = [manifold for manifold in manifolds if manifold.name in options.only]
    with progress("measuring", len(manifolds)) as advance:
        for manifold in manifolds:
            records = list(measure(manifold, options.pairs))
            if options.results is not None:
                merge_records(options.results, records, KEYS)
            for record in records:
                print(json.dumps(record), flush=True)
            advance(1)


def wrap_decoder(dim: int) -> Manifold:
    """Wrap the trained decoder of `benchmark.py` as a manifold."""
    return Manifold(f"decoder-{dim}", dim, None, lambda key, n: sample_latents(dim, n, key=key))


def measure(manifold: Manifold, count: int) -> Iterator[Record]:
    """Measure all ranges and tolerances of one manifold."""
    is_decoder = manifold.metric is None
    metric = build_metric(train(manifold.dim)) if is_decoder else manifold.metric
    manifold = manifold._replace(metric=metric)
    for range_ in RANGES:
        pairs = draw_neighbours(manifold, range_, count) if is_decoder else None
        pairs = pairs or manifold.draw_pairs(range_, count)
        found, seconds = [], []
        for tolerance in TOLERANCES:
            begin = process_time()
            found.append(geodesics(metric, *pairs, Adaptive(tolerance)))
            seconds.append(process_time() - begin)
        truth, resolution = find_truth(manifold, pairs, found)
        for tolerance, geodesic, time in zip(TOLERANCES, found, seconds):
            record = summarise(geodesic, truth, tolerance)
            yield {
                "device": jax.devices()[0].device_kind,
                "manifold": manifold.name,
                "dimension": manifold.dim,
                "range": range_,
                "tolerance": tolerance,
                **record,
                "unresolved": int(np.sum(resolution > tolerance / 10)),
                "seconds_with_compilation": round(time, 1),
            }


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
        starts = [np.zeros((*a.shape[:1], REFERENCE.modes, a.shape[1]))]
        shape = np.asarray(found[-1].curve.coefficients, float)[:, : REFERENCE.modes]
        starts.append(shape)
        rng = np.random.default_rng(1)
        for _ in range(BULGES):
            sides = rng.normal(size=a.shape) / np.sqrt(a.shape[1])
            size = BULGE * np.linalg.norm(b - a, axis=1, keepdims=True)
            bulge = starts[0].copy()
            bulge[:, 0] = 2 * np.sqrt(3) * rng.uniform(1, 3, (len(a), 1)) * size * sides
            starts.append(bulge)
        solved = [_refine_all(metric, a, b, start) for start in starts]
    lengths, errors = (np.stack(part) for part in zip(*solved))
    lengths = np.where(np.isfinite(lengths), lengths, np.inf)
    best = np.argmin(lengths, axis=0), np.arange(lengths.shape[1])
    return lengths[best], errors[best]


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


def _refine_all(
    metric: Any, a: Array, b: Array, shapes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    size = min(len(a), choose_chunk_size(a.shape[1], REFERENCE))
    parts = []
    for begin in range(0, len(a), size):
        rows = np.minimum(np.arange(begin, begin + size), len(a) - 1)
        parts.append(_refine_chunk(metric, a[rows], b[rows], jnp.asarray(shapes[rows])))
    lengths, errors = (np.concatenate([np.asarray(x) for x in part]) for part in zip(*parts))
    return lengths[: len(a)], errors[: len(a)]


@eqx.filter_jit
def _refine_chunk(metric: Any, a: Array, b: Array, shapes: Array) -> tuple[Array, Array]:
    def refine(a: Array, b: Array, shape: Array) -> tuple[Array, Array]:
        found = REFERENCE.refine(metric, Curve(a, b, shape, Legendre(REFERENCE.modes)))
        return found.length, found.error

    return jax.vmap(refine)(a, b, shapes)


if __name__ == "__main__":
    main()
