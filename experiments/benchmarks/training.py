"""Compare the time to train `gelato` with five seeds and with one, including the model.

python experiments/benchmarks/training.py hopper-medium

Each training runs and compiles in its own process. The time is from reading the data to the last
evaluation.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from experiments.benchmarks.speed_records import record_speed
from experiments.tuned import make_tuned
from gelato.data.reference import load
from gelato.training.presets import choose_parts
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "speed.json"


def main() -> None:
    """Train with several seeds and with one, and record the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--updates",
        type=int,
        help="updates of policies and models, for a trial (default: as in the preset)",
    )
    parser.add_argument(
        "--alone", action="store_true", help="train in this process and print the seconds"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.alone:
        print(seconds(arguments.reference, arguments.seeds, arguments.updates))
        return
    several, one = (_measure(arguments, seeds) for seeds in (arguments.seeds, 1))
    what = f"from the data of {arguments.reference} to gelato alone, {arguments.seeds} seeds"
    print(
        record_speed(
            arguments.results, what, round(several), "s", f"one seed, {one:.0f} s", several / one
        )
    )


def _measure(arguments: argparse.Namespace, seeds: int) -> float:
    command = [sys.executable, __file__, arguments.reference, "--alone", "--seeds", str(seeds)]
    if arguments.updates is not None:
        command += ["--updates", str(arguments.updates)]
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()[-1]
    print(f"{seeds} seeds: {float(answer):.0f} s", flush=True)
    return float(answer)


def seconds(reference: str, seeds: int, updates: int | None) -> float:
    """Return the seconds of one training, without the time to make the dataset."""
    load(reference)
    start = time.perf_counter()
    dataset = load(reference)
    parts = choose_parts(dataset)
    if updates is not None:
        model = replace(parts.latent.model, updates=updates, variance_updates=updates)
        latent = replace(parts.latent, model=model)
        parts = replace(parts, latent=latent, sac=replace(parts.sac, updates=updates))
    with tempfile.TemporaryDirectory() as folder:
        train(dataset, Path(folder) / "run", make_tuned("gelato", parts, dataset), seeds=seeds)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
