"""Measure what Ray costs a sweep, and what a second core gains.

python experiments/benchmarks/sweeps.py

The same groups run without Ray, on Ray with one core and on Ray with two, in this order and twice.
Every group has one thread. The time is from the start of the workers (and of Ray) to the table.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import ray

from experiments.pendulum import make_reference, write_log
from gelato.runs.records import merge_records
from gelato.sweep import Sweep, run_sweep

RESULTS = Path(__file__).parents[2] / "results" / "sweeps.json"
SETTINGS = ("iql.hidden=256,256", "iql.batch_size=256", "iql.epoch=1000")
CASES = {"no Ray": None, "Ray, one core": 1, "Ray, two cores": 2}


def main() -> None:
    """Time every case and record the better of two runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--updates", type=int, default=8_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--machine", default="CPU", help="what the records call this machine")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GELATO_COMPILATION_CACHE"] = f"{folder}/programs"
        log = write_log(Path(folder) / "log.npz", episodes=50, steps=200)
        sweep = Sweep(
            datasets=[make_reference(log)],
            methods=["iql"],
            seeds=arguments.groups,
            seeds_per_group=1,
            updates=arguments.updates,
            evaluations=4,
            episodes=5,
            settings=SETTINGS,
        )
        # The first run compiles the programs, which later runs read from the cache.
        _run(sweep, Path(folder) / "warm", None)
        found: dict[str, list[float]] = {name: [] for name in CASES}
        for repeat in range(arguments.repeats):
            for name, cores in CASES.items():
                run = Path(folder) / f"{name}-{repeat}"
                found[name].append(_run(sweep, run, cores))
                same = (run / "results.json").read_bytes()
                assert same == (Path(folder) / "warm/results.json").read_bytes()
    for name, seconds in found.items():
        record = {
            "workers": name,
            "device": arguments.machine,
            "groups": arguments.groups,
            "updates": arguments.updates,
            "seconds": round(min(seconds), 1),
            "slowest": round(max(seconds), 1),
            "speed": round(min(found["no Ray"]) / min(seconds), 3),
        }
        merge_records(arguments.results, [record], keys=("workers", "device"))
        print(record)


def _run(sweep: Sweep, run: Path, cores: int | None) -> float:
    begun = time.perf_counter()
    if cores is None:
        run_sweep(sweep, run, cores=1)
        return time.perf_counter() - begun
    ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
    run_sweep(sweep, run, address="local", cores=1)
    seconds = time.perf_counter() - begun
    ray.shutdown()
    return seconds


if __name__ == "__main__":
    main()
