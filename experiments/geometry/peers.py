"""Compare the speed of the default solver with GEORCE at equal measured error.

    git clone https://github.com/FrederikMR/georce
    python experiments/geometry/peers.py --georce georce --results results/geometry_peers.json

GEORCE (Rygaard and Hauberg, 2025) is not shipped. Its curve is a polygon, which our quadrature
measures, so that only curves are compared. Both solve the same far pairs of manifolds with closed
forms in single precision. GEORCE runs as one compiled program under `vmap`. The solvers run in turn
and the least computing time of several rounds counts. `times_georce` is the speed of the fastest
`Adaptive` whose median error is at most that of the setting of GEORCE.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.contestant import Pairs
from experiments.geometry.manifolds import Manifold, list_manifolds
from gelato.geometry import AbstractMetric, Adaptive, Straight, geodesics
from gelato.progress import progress
from gelato.runs.records import merge_records

Record = dict[str, Any]
Solve = Callable[[], Any]
KEYS = ("device", "manifold", "solver")
CASES = ("sphere-2", "sphere-10", "hyperbolic-2", "spd-2x2")
TOLERANCES, SEGMENTS = (1e-2, 1e-3), (20, 100)
ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--georce", type=Path, required=True, help="a clone of GEORCE")
    parser.add_argument("--pairs", type=int, default=64, help="pairs of a case (default: 64)")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="names of manifolds")
    parser.add_argument("--results", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.georce))
    manifolds = [manifold for manifold in list_manifolds() if manifold.name in options.cases]
    with progress("measuring", len(manifolds)) as advance:
        for manifold in manifolds:
            records = list(compare(manifold, manifold.draw_pairs("far", options.pairs)))
            if options.results is not None:
                merge_records(options.results, records, KEYS)
            for record in records:
                print(json.dumps(record), flush=True)
            advance(1)


def compare(manifold: Manifold, pairs: Pairs) -> Iterator[Record]:
    """Time all solvers on the same pairs, in turn."""
    solvers: dict[str, Solve] = {}
    for tolerance in TOLERANCES:
        solver = Adaptive(tolerance)
        solvers[f"adaptive-{tolerance:g}"] = lambda solver=solver: geodesics(
            manifold.metric, *pairs, solver
        )
    for segments in SEGMENTS:
        run = build_georce(manifold.metric, segments)
        solvers[f"georce-{segments}"] = lambda run=run: jax.block_until_ready(run(*pairs))
    truth = manifold.distance(*pairs)
    errors = {}
    for name, solve in solvers.items():
        found = solve()
        is_ours = name.startswith("adaptive")
        lengths = found.length if is_ours else measure_polygons(manifold.metric, found)
        errors[name] = np.abs(np.asarray(lengths, float) / truth - 1)
    times = dict.fromkeys(solvers, np.inf)
    for _ in range(ROUNDS):
        for name, solve in solvers.items():
            begin = process_time()
            solve()
            times[name] = min(times[name], process_time() - begin)
    ours = [name for name in solvers if name.startswith("adaptive")]
    for name in solvers:
        record = {
            "device": jax.devices()[0].device_kind,
            "manifold": manifold.name,
            "solver": name,
            "pairs": len(pairs[0]),
            "per_cpu_second": round(len(pairs[0]) / times[name], 1),
            "median_error": float(np.nanmedian(errors[name])),
            "p95_error": float(np.nanquantile(errors[name], 0.95)),
            "failed": int(np.sum(~np.isfinite(errors[name]))),
            "times_georce": None,
        }
        if name not in ours:
            allowed = record["median_error"]
            enough = [times[own] for own in ours if np.nanmedian(errors[own]) <= allowed]
            if enough:
                record["times_georce"] = round(times[name] / min(enough), 1)
        yield record


def build_georce(metric: AbstractMetric, segments: int) -> Callable[..., Array]:
    """Compile GEORCE for a batch of pairs."""
    from georce import GEORCE_R

    return eqx.filter_jit(jax.vmap(lambda a, b: GEORCE_R(metric, T=segments)(a, b)))


@eqx.filter_jit
def measure_polygons(
    metric: AbstractMetric, nodes: Float[Array, "pairs nodes dim"]
) -> Float[Array, " pairs"]:
    """Measure polygons by quadrature along each segment."""

    def measure(nodes: Float[Array, "nodes dim"]) -> Array:
        line = Straight(3)
        return jnp.sum(jax.vmap(lambda a, b: line(metric, a, b).length)(nodes[:-1], nodes[1:]))

    return jax.vmap(measure)(nodes)


if __name__ == "__main__":
    main()
