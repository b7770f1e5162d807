"""Measure how time and memory of an epoch grow with data, neighbours and seeds.

python experiments/benchmarks/scaling.py runs/hopper

This writes results/scaling.json. As in training, the number of points that neighbours are searched
in is fixed, so that more data affects only the rest of an epoch. Each cell runs in its own process,
to measure its peak memory. Cells that are already in the results are skipped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks.policies import epoch, repeat_seeds, seconds
from gelato.model.training import load_model
from gelato.runs.folder import Run
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.training.presets import choose_parts

RESULTS = Path(__file__).parents[2] / "results" / "scaling.json"
KEYS = ("device", "dataset", "transitions", "neighbours", "seeds", "updates")
# Transitions, K and seeds: one value at a time differs from the setting of the tables.
CELLS = (
    (1_000_000, 20, 5),
    (100_000, 20, 5),
    (2_000_000, 20, 5),
    (1_000_000, 5, 5),
    (1_000_000, 20, 1),
    (1_000_000, 20, 20),
    (300_000, 20, 5),
    (1_000_000, 20, 10),
)


def main() -> None:
    """Measure the missing cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a fitted latent model")
    parser.add_argument(
        "--cell",
        type=int,
        nargs=3,
        metavar=("TRANSITIONS", "K", "SEEDS"),
        help="measure one cell in this process",
    )
    parser.add_argument("--updates", type=int, default=1_000, help="updates in an epoch")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.cell is not None:
        print(json.dumps(measure(arguments.run, *arguments.cell, arguments.updates)))
        return
    # Another process finds the device, so that this process does not reserve its memory.
    ask = [sys.executable, "-c", "from gelato.runs.records import device; print(device())"]
    here = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    dataset = Run(arguments.run).description["data"]["reference"]
    for cell in CELLS:
        there = {tuple(record[key] for key in KEYS) for record in read_records(arguments.results)}
        if (here, dataset, *cell, arguments.updates) in there:
            continue
        command = [
            sys.executable,
            __file__,
            str(arguments.run),
            "--updates",
            str(arguments.updates),
        ]
        answer = subprocess.run(
            [*command, "--cell", *map(str, cell)], stdout=subprocess.PIPE, text=True, check=True
        )
        record = json.loads(answer.stdout.splitlines()[-1])
        print(record, flush=True)
        merge_records(arguments.results, [record], KEYS)


def measure(run: Path, transitions: int, neighbours: int, seeds: int, updates: int) -> Record:
    """Measure time and memory of one cell; data is repeated if there is too little."""
    fitted = load_model(run)
    rows = np.arange(transitions) % len(fitted.dataset.transitions)
    dataset = replace(fitted.dataset, transitions=fitted.dataset.transitions[rows])
    fitted = replace(fitted, split=replace(fitted.split, dataset=dataset))
    parts = choose_parts(fitted.dataset)
    settings = replace(parts.settings, neighbours=neighbours)
    parts = replace(parts, settings=settings, sac=replace(parts.sac, epoch=updates))
    start = time.perf_counter()
    go_on = epoch(repeat_seeds(fitted, seeds), "gelato", parts)
    go_on()
    first = time.perf_counter() - start
    (later,) = seconds([go_on], rounds=3)
    stats = jax.devices()[0].memory_stats()
    peak = (
        stats["peak_bytes_in_use"]
        if stats
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )
    return {
        "device": device(),
        "dataset": fitted.dataset.reference,
        "transitions": transitions,
        "neighbours": neighbours,
        "seeds": seeds,
        "updates": updates,
        "epoch_seconds": round(later, 3),
        "until_first_epoch_seconds": round(first, 1),
        "peak_gigabytes": round(peak / 1e9, 2),
    }


if __name__ == "__main__":
    main()
