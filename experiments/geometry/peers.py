"""Compare the speed of the default solver with GEORCE and geomstats at equal measured error.

    git clone https://github.com/FrederikMR/georce
    python experiments/geometry/peers.py --georce georce --results results/geometry_peers.json

GEORCE (Rygaard and Hauberg, 2025) is not shipped. geomstats is measured if it is installed. Our
quadrature measures the polygons of their points, so that only curves are compared. All solve the
same far pairs in single precision; errors are relative to the closed form, or to the reference of
`reliability.py`. GEORCE runs as one compiled program under `vmap`. geomstats solves the geodesic
equation of one pair after the other with SciPy, in double precision; compiled JAX functions compute
its Christoffel symbols. The solvers run in turn and the least computing time of several rounds
counts. `times` is the speed of the fastest `Adaptive` whose median error is at most that of the
peer's setting, divided by the peer's speed.

Each process measures one manifold on one core. The next run with the same `--results` measures only
what is missing.
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

from experiments.geometry import geomstats_solver
from experiments.geometry.contestant import Pairs
from experiments.geometry.manifolds import Manifold, list_manifolds
from experiments.geometry.processes import run_jobs
from experiments.geometry.reliability import find_truth
from gelato.geometry import AbstractMetric, Adaptive, Straight, geodesics
from gelato.runs.records import merge_records, read_records

Record = dict[str, Any]
Solve = Callable[[], Any]
KEYS = ("device", "manifold", "solver")
TOLERANCES, SEGMENTS = (1e-2, 1e-3), (20, 100)
ROUNDS = 3
# geomstats solves this many pairs.
FEW = 16


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--georce", type=Path, required=True, help="a clone of GEORCE")
    parser.add_argument("--pairs", type=int, default=64, help="pairs of a case (default: 64)")
    parser.add_argument("--cases", nargs="+", help="names of manifolds (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one core")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after this time")
    parser.add_argument("--case", help="measure one manifold in this process")
    parser.add_argument("--results", type=Path, required=True, help="write the records here")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.georce))
    manifolds = {manifold.name: manifold for manifold in list_manifolds()}
    if options.case:
        manifold = manifolds[options.case]
        records = list(compare(manifold, manifold.draw_pairs("far", options.pairs)))
        merge_records(options.results, records, KEYS)
        for record in records:
            print(json.dumps(record), flush=True)
        return
    known = read_records(options.results) if options.results.exists() else []
    done = {record["manifold"] for record in known}
    command = [sys.executable, __file__, "--pairs", str(options.pairs)]
    command += ["--georce", str(options.georce), "--results", str(options.results), "--case"]
    cases = [name for name in options.cases or manifolds if name not in done]
    run_jobs([[*command, name] for name in cases], options.jobs, options.seconds)


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
    if geomstats_solver.is_installed():
        few = tuple(np.asarray(end[:FEW], float) for end in pairs)
        solvers["geomstats"] = geomstats_solver.build(manifold.metric, *few)
    lengths = {}
    for name, solve in solvers.items():
        found = solve()
        if name.startswith("adaptive"):
            own = found
            lengths[name] = np.asarray(found.length, float)
        else:
            nodes = jnp.asarray(found, jnp.float32)
            lengths[name] = np.asarray(measure_polygons(manifold.metric, nodes), float)
    truth = find_truth(manifold, pairs, [own])[0]
    errors = {name: np.abs(found / truth[: len(found)] - 1) for name, found in lengths.items()}
    times = dict.fromkeys(solvers, np.inf)
    for _ in range(ROUNDS):
        for name, solve in solvers.items():
            begin = process_time()
            solve()
            times[name] = min(times[name], (process_time() - begin) / len(errors[name]))
    ours = [name for name in solvers if name.startswith("adaptive")]
    for name in solvers:
        record = {
            "device": jax.devices()[0].device_kind,
            "manifold": manifold.name,
            "solver": name,
            "pairs": len(errors[name]),
            "per_cpu_second": round(1 / times[name], 2),
            "median_error": float(np.nanmedian(errors[name])),
            "p95_error": float(np.nanquantile(errors[name], 0.95)),
            "failed": int(np.sum(~np.isfinite(errors[name]))),
            "times": None,
        }
        if name not in ours:
            allowed = record["median_error"]
            enough = [times[own] for own in ours if np.nanmedian(errors[own]) <= allowed]
            if enough:
                record["times"] = round(times[name] / min(enough), 1)
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
