"""The paper's Table 1 on this harness: nine locomotion datasets × seven methods × five seeds.

python benchmarks/locomotion.py --runs runs/locomotion

Results go to results/locomotion.json. Resumable: a group of methods that is in the results already is skipped, one that
was interrupted goes on from its last checkpoint. `--minutes` stops before a group that would hardly end in time. What a
group takes from data to returns, models included, goes to results/speed.json, unless part of it was there before
or sizes were told.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from gelato.data.reference import load
from gelato.methods import METHODS, method_for, train_preset
from gelato.pipeline import train
from gelato.report.policy_table import DATASETS, as_text
from gelato.results import Record, device, merge_records, read_records, record_speed

RESULTS = Path(__file__).parents[1] / "results" / "locomotion.json"
SPEED = RESULTS.with_name("speed.json")
KEYS = ("dataset", "method", "seed")
# Methods that share a model are trained by one program.
GROUPS = (("gelato", "gelato-l2", "gelato-ensemble"), ("mopo", "mbpo", "sac"), ("bc",))


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/locomotion"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--speed", type=Path, default=SPEED)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=[name for group in GROUPS for name in group], choices=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, help="of every policy; the preset's unless told")
    parser.add_argument("--transitions", type=int, help="of every dataset; its own unless told")
    parser.add_argument("--models", type=Path, help="folder of latent models fitted before, DIR/DATASET/model")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    arguments = parser.parse_args()
    begun, longest = time.monotonic(), 0.0
    for name in arguments.datasets:
        for group in GROUPS:
            chosen = [method for method in group if method in arguments.methods]
            if not chosen or _there(arguments, name, chosen):
                continue
            if time.monotonic() - begun + longest > 60 * arguments.minutes:
                print("no time for another group; run the same command again", flush=True)
                break
            as_preset = arguments.updates is arguments.transitions is arguments.models is None
            fresh = as_preset and not (arguments.runs / name / chosen[0]).exists()
            start = time.monotonic()
            _train(arguments, name, chosen)
            seconds = time.monotonic() - start
            longest = max(longest, seconds)
            what = f"from the data of {name} to {', '.join(chosen)}, {arguments.seeds} seeds"
            print(f"{what}: {seconds:.0f} s", flush=True)
            if fresh:
                record_speed(arguments.speed, what, round(seconds), "s", "6 minutes", seconds / 360)
    print(as_text(read_records(arguments.results), "md"))


def _there(arguments: argparse.Namespace, dataset: str, methods: list[str]) -> bool:
    found = {tuple(record[key] for key in KEYS) for record in read_records(arguments.results)}
    return all((dataset, method, seed) in found for method in methods for seed in range(arguments.seeds))


def _train(arguments: argparse.Namespace, name: str, methods: list[str]) -> None:
    size = "" if arguments.transitions is None else f",transitions={arguments.transitions}"
    dataset = load(name + size)
    config = train_preset("default", dataset)
    if arguments.updates is not None:
        config = replace(config, sac=replace(config.sac, updates=arguments.updates))
    records = train(
        dataset,
        arguments.runs / name / methods[0],
        [method_for(method, dataset) for method in methods],
        seeds=arguments.seeds,
        config=config,
        model=None if arguments.models is None else arguments.models / name / "model",
    )
    shared = {"dataset": name, "updates": config.sac.updates, "discount": config.sac.discount, "device": device()}
    # What not all methods have.
    rows = [{**record, **shared, "doubt": config.doubt if _in_latents(record) else None} for record in records]
    merge_records(arguments.results, rows, KEYS)


def _in_latents(record: Record) -> bool:
    return METHODS[str(record["method"])].space == "latent"


if __name__ == "__main__":
    main()
