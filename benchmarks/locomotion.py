"""The paper's Table 1 on this harness: nine locomotion datasets × seven methods × five seeds.

python benchmarks/locomotion.py --runs runs/locomotion

Results go to results/locomotion.json. Resumable: a group of methods that is in the results with the settings it has now
is skipped, one that was interrupted goes on from its last checkpoint. `--minutes` leaves out a group that would hardly
end in time. What a group takes from data to returns, models included, goes to results/speed.json, unless part of it was
there before or sizes were told.
"""

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path

from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.methods import METHODS, Method, TrainConfig, method_for, settings_of, train_preset
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
    if (arguments.updates or arguments.transitions) and arguments.results == RESULTS:
        parser.error("results of other sizes do not belong among the table's: name a file of their own by --results")
    begun = time.monotonic()
    longest = dict.fromkeys(GROUPS, 0.0)
    for name in arguments.datasets:
        dataset = load(name if arguments.transitions is None else f"{name},transitions={arguments.transitions}")
        config = train_preset("default", dataset)
        if arguments.updates is not None:
            config = replace(config, sac=replace(config.sac, updates=arguments.updates))
        for group in GROUPS:
            methods = [method_for(method, dataset) for method in group if method in arguments.methods]
            rows = [_settings(name, method, dataset, config) for method in methods]
            if _there(arguments.results, rows, arguments.seeds):
                continue
            if time.monotonic() - begun + longest[group] > 60 * arguments.minutes:
                print(f"{name}: no time left for {', '.join(group)}; run the same command again", flush=True)
                continue
            seconds = _train(arguments, dataset, config, methods, rows)
            longest[group] = max(longest[group], seconds)
    print(as_text(read_records(arguments.results), "md"))


def _train(
    arguments: argparse.Namespace, dataset: Dataset, config: TrainConfig, methods: list[Method], rows: list[Record]
) -> float:
    """Train methods that share a model, and record what they came to; the seconds it took."""
    name, names = str(rows[0]["dataset"]), [method.name for method in methods]
    run = arguments.runs / name / "-".join(names)
    as_preset = arguments.updates is arguments.transitions is arguments.models is None
    fresh = as_preset and not run.exists()
    model = None if arguments.models is None else arguments.models / name / "model"
    start = time.monotonic()
    records = train(dataset, run, methods, seeds=arguments.seeds, config=config, model=model)
    seconds = time.monotonic() - start
    own = {row["method"]: row for row in rows}
    merge_records(arguments.results, [{**r, **own[r["method"]], "device": device()} for r in records], KEYS)
    what = f"from the data of {name} to {', '.join(names)}, {arguments.seeds} seeds"
    print(f"{what}: {seconds:.0f} s", flush=True)
    if fresh:
        record_speed(arguments.speed, what, round(seconds), "s", "6 minutes", seconds / 360)
    return seconds


def _settings(name: str, method: Method, dataset: Dataset, config: TrainConfig) -> Record:
    """What a row says it was made with: one made otherwise is made anew."""
    made = {"dataset": name, "method": method.name, "updates": config.sac.updates}
    return {**made, **asdict(settings_of(method, dataset, config))}


def _there(results: Path, wanted: list[Record], seeds: int) -> bool:
    found = read_records(results)
    return all(
        any(all(row.get(key) == value for key, value in [*settings.items(), ("seed", seed)]) for row in found)
        for settings in wanted
        for seed in range(seeds)
    )


if __name__ == "__main__":
    main()
