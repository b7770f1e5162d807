"""Reproduce Table 1 of the paper: nine locomotion datasets × seven methods × five seeds.

python experiments/benchmarks/locomotion.py --runs runs/locomotion

This writes results/locomotion.json. Run the command again to resume: it skips methods whose results
have the current settings, and continues interrupted training from the last checkpoint. `--minutes`
skips methods that would probably not finish in time. The time of a complete training with default
sizes, including the models, is written to results/speed.json.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from experiments.benchmarks.speed_records import record_speed
from experiments.paper import DATASETS
from experiments.tables import locomotion_table
from experiments.tuned import make_tuned
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.training.group import describe_settings
from gelato.training.method import Method
from gelato.training.plan import make_plan
from gelato.training.presets import choose_parts, list_methods
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "locomotion.json"
SPEED = RESULTS.with_name("speed.json")
KEYS = ("dataset", "method", "seed")
# Methods that share a model are trained by one program.
GROUPS = (("gelato", "gelato-l2", "gelato-ensemble"), ("mopo", "mbpo", "sac"), ("bc",))


def main() -> None:
    """Train the missing policies, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/locomotion"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--speed", type=Path, default=SPEED)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[name for group in GROUPS for name in group],
        choices=list(list_methods()),
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--updates", type=int, help="updates of every policy (default: as in the preset)"
    )
    parser.add_argument(
        "--transitions", type=int, help="size of every dataset (default: full size)"
    )
    parser.add_argument(
        "--models", type=Path, help="folder DIR of fitted latent models DIR/DATASET/model"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"))
    arguments = parser.parse_args()
    if (arguments.updates or arguments.transitions) and arguments.results == RESULTS:
        parser.error("--updates and --transitions need another file for the results: set --results")
    begun = time.monotonic()
    longest = dict.fromkeys(GROUPS, 0.0)
    for name in arguments.datasets:
        dataset = load(
            name if arguments.transitions is None else f"{name},transitions={arguments.transitions}"
        )
        parts = choose_parts(dataset)
        if arguments.updates is not None:
            sac = replace(parts.sac, updates=arguments.updates)
            cloning = replace(parts.cloning, updates=arguments.updates)
            parts = replace(parts, sac=sac, cloning=cloning)
        for group in GROUPS:
            names = [each for each in group if each in arguments.methods]
            methods = [make_tuned(each, parts, dataset) for each in names]
            rows = _describe_settings(name, methods, dataset)
            if _there(arguments.results, rows, arguments.seeds):
                continue
            if time.monotonic() - begun + longest[group] > 60 * arguments.minutes:
                print(
                    f"{name}: no time left for {', '.join(group)}; run the same command again",
                    flush=True,
                )
                continue
            seconds = _train(arguments, dataset, methods, rows)
            longest[group] = max(longest[group], seconds)
    print(locomotion_table(read_records(arguments.results)))


def _train(
    arguments: argparse.Namespace,
    dataset: Dataset,
    methods: list[Method],
    rows: list[Record],
) -> float:
    """Train methods that share a model, write their results, and return the seconds."""
    name, names = str(rows[0]["dataset"]), [method.name for method in methods]
    run = arguments.runs / name / "-".join(names)
    as_preset = arguments.updates is arguments.transitions is arguments.models is None
    fresh = as_preset and not run.exists()
    model = None if arguments.models is None else arguments.models / name / "model"
    start = time.monotonic()
    records = train(dataset, run, methods, seeds=arguments.seeds, model=model)
    seconds = time.monotonic() - start
    settings = {row["method"]: row for row in rows}
    merge_records(
        arguments.results,
        [{**r, **settings[r["method"]], "device": device()} for r in records],
        KEYS,
    )
    what = f"from the data of {name} to {', '.join(names)}, {arguments.seeds} seeds"
    print(f"{what}: {seconds:.0f} s", flush=True)
    if fresh:
        record_speed(arguments.speed, what, round(seconds), "s", "6 minutes", seconds / 360)
    return seconds


def _describe_settings(name: str, methods: list[Method], dataset: Dataset) -> list[Record]:
    """Describe the rows of the results; a stored row with other settings is made again."""
    plan = make_plan(dataset, methods)
    rows: list[Record] = []
    for method in methods:
        made = {"dataset": name, "method": method.name, "updates": method.agent.updates}
        rows.append({**made, **describe_settings(method, plan)})
    return rows


def _there(results: Path, wanted: list[Record], seeds: int) -> bool:
    found = read_records(results)
    return all(
        any(
            all(row.get(key) == value for key, value in [*settings.items(), ("seed", seed)])
            for row in found
        )
        for settings in wanted
        for seed in range(seeds)
    )


if __name__ == "__main__":
    main()
