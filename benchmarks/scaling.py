"""How an epoch of `gelato` grows, in time and memory, with the data, the neighbours K and the seeds.

Neighbours are sought among as many points whatever the data holds, as training does: what grows with it is the rest.

python benchmarks/scaling.py runs/hopper        # then results/scaling.json

Every cell is a process of its own, since the peak of memory is the process's. Cells that are there are skipped.
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

from gelato.methods import train_preset
from gelato.model.training import load_model
from gelato.results import Record, device, merge_records, read_records
from gelato.runs import Run
from policies import epoch, repeated, seconds

RESULTS = Path(__file__).parents[1] / "results" / "scaling.json"
KEYS = ("device", "dataset", "transitions", "neighbours", "seeds", "updates")
# Transitions, K, seeds: each varied around the setting of the tables.
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
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a fitted latent model")
    parser.add_argument("--cell", type=int, nargs=3, metavar=("TRANSITIONS", "K", "SEEDS"), help="measure it here")
    parser.add_argument("--updates", type=int, default=1_000, help="in an epoch")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.cell is not None:
        print(json.dumps(measured(arguments.run, *arguments.cell, arguments.updates)))
        return
    # Asked of a process of its own: this one leaves the device's memory to the cells.
    ask = [sys.executable, "-c", "from gelato.results import device; print(device())"]
    here = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    dataset = Run(arguments.run).description["data"]["reference"]
    for cell in CELLS:
        there = {tuple(record[key] for key in KEYS) for record in read_records(arguments.results)}
        if (here, dataset, *cell, arguments.updates) in there:
            continue
        command = [sys.executable, __file__, str(arguments.run), "--updates", str(arguments.updates)]
        answer = subprocess.run([*command, "--cell", *map(str, cell)], stdout=subprocess.PIPE, text=True, check=True)
        record = json.loads(answer.stdout.splitlines()[-1])
        print(record, flush=True)
        merge_records(arguments.results, [record], KEYS)


def measured(run: Path, transitions: int, neighbours: int, seeds: int, updates: int) -> Record:
    """Time and memory of one cell; too little data is repeated, which costs what more would."""
    fitted = load_model(run)
    rows = np.arange(transitions) % len(fitted.dataset.transitions)
    fitted = replace(fitted, dataset=replace(fitted.dataset, transitions=fitted.dataset.transitions[rows]))
    config = train_preset("default", fitted.dataset)
    config = replace(config, neighbours=neighbours, sac=replace(config.sac, epoch=updates))
    start = time.perf_counter()
    go_on = epoch(repeated(fitted, seeds), "gelato", config)
    go_on()
    first = time.perf_counter() - start
    (later,) = seconds([go_on], rounds=3)
    stats = jax.devices()[0].memory_stats()
    peak = stats["peak_bytes_in_use"] if stats else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
