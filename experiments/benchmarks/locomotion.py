"""Make the table of scores: nine locomotion datasets × ten methods × five seeds.

python experiments/benchmarks/locomotion.py --runs runs/locomotion --minutes 9

Every method with a penalty or imagined steps trains the same small grid of λ and fractions of real
data. `select` ranks the policies from the log alone; the cell (λ, fraction) with the best mean
score over its seeds is the selected one. Only then are returns read. All cells are written to
results/locomotion_cells.json; `--publish` copies the seeds of selected cells to
results/locomotion.json, which the README shows.

A unit is one dataset and the methods that share a model. Run the command again to resume: it skips
units whose results have the current settings, and continues interrupted training from the last
checkpoint. `--minutes` stops in time. The time of a complete training with default sizes, including
the models, is written to results/speed.json.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.benchmarks.speed_records import record_speed
from experiments.paper import DATASETS
from experiments.tables import cells_table
from experiments.units import TINY, Clock, are_recorded
from gelato.cli.settings import set_options
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.selection import SelectSettings, choose_settings, select
from gelato.selection.temporal import TemporalConfig
from gelato.training.group import describe_settings
from gelato.training.method import Method, find_family
from gelato.training.plan import make_plan
from gelato.training.presets import Parts, choose_parts, list_methods, make_grid
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "locomotion_cells.json"
PUBLISHED = RESULTS.with_name("locomotion.json")
SPEED = RESULTS.with_name("speed.json")
KEYS = ("dataset", "method", "penalty_weight", "real_fraction", "seed")
WEIGHTS, FRACTIONS = (1.0, 3.0, 10.0), (0.05, 0.5)
# Methods of one group are trained in one run, so that they share what was fitted.
GROUPS = (
    ("gelato", "gelato-l2", "gelato-ensemble"),
    ("mopo", "mbpo"),
    ("sac", "rebrac", "iql", "bc"),
    ("mobile",),
)


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
    parser.add_argument("--weights", type=float, nargs="+", default=list(WEIGHTS))
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--episodes", type=int, default=50, help="that measure a last policy")
    parser.add_argument("--updates", type=int, help="of every policy; default: the preset's")
    parser.add_argument("--set", nargs="+", default=[], help="settings of the recipe")
    parser.add_argument("--transitions", type=int, help="size of every dataset")
    parser.add_argument(
        "--models", type=Path, help="folder DIR of fitted latent models DIR/DATASET/model"
    )
    parser.add_argument("--minutes", type=float, help="stop in time and keep a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, to try the script")
    parser.add_argument("--publish", type=Path, nargs="?", const=PUBLISHED, help="see above")
    arguments = parser.parse_args()
    if (arguments.tiny or arguments.transitions) and arguments.results == RESULTS:
        parser.error("--tiny and --transitions need another file for the results: set --results")
    clock = Clock(arguments.minutes)
    for name in arguments.datasets:
        size = arguments.transitions
        dataset = load(name if size is None else f"{name},transitions={size}")
        for group in GROUPS:
            _run_unit(arguments, clock, dataset, name, group)
    records = read_records(arguments.results)
    if arguments.publish is not None:
        publish(records, arguments.publish)
    print(cells_table(records))


def _run_unit(
    arguments: argparse.Namespace,
    clock: Clock,
    dataset: Dataset,
    name: str,
    group: Sequence[str],
) -> None:
    """Train a group on one dataset, select cells, and write the records, unless they are there."""
    names = [each for each in group if each in arguments.methods]
    if not names:
        return
    parts = _choose_parts(arguments, dataset)
    methods = [method for each in names for method in make_grid(each, parts)]
    rows = _describe(arguments, name, methods, dataset, parts)
    if are_recorded(arguments.results, rows, arguments.seeds):
        return
    what = ", ".join(names)
    if not clock.has_time_for(what):
        print(f"{name}: no time left for {what}; run the same command again", flush=True)
        return
    run = arguments.runs / name / "-".join(names)
    fresh = not run.exists()
    model = None if arguments.models is None else arguments.models / name / "model"
    begun = time.monotonic()
    records = train(
        dataset, run, methods, seeds=arguments.seeds, settings=parts.settings, model=model
    )
    seconds = time.monotonic() - begun
    print(f"{name}: trained {what} in {seconds:.0f} s", flush=True)
    selected = _select_cells(arguments, run, dataset, methods)
    settings = {method.name: row for method, row in zip(methods, rows, strict=True)}
    found: list[Record] = []
    for row in records:
        described = settings[str(row["method"])]
        chosen = str(row["method"]) in selected
        found.append({**row, **described, "selected": chosen, "device": device()})
    merge_records(arguments.results, found, KEYS)
    total = time.monotonic() - begun
    clock.note(what, total)
    print(f"{name}: {what}, {arguments.seeds} seeds: {total:.0f} s", flush=True)
    if fresh and arguments.results == RESULTS:
        count = f"{len(methods)} cells × {arguments.seeds} seeds"
        about = f"from the data of {name} to {what}, {count}, {parts.sac.updates:,} updates"
        record_speed(arguments.speed, about, round(seconds), "s", "15 minutes", seconds / 900)


def _choose_parts(arguments: argparse.Namespace, dataset: Dataset) -> Parts:
    """Return the preset with the recipe; returns are measured once, after the training."""
    tiny = TINY if arguments.tiny else ()
    parts = set_options(choose_parts(dataset), (*tiny, *arguments.set))
    updates = arguments.updates or parts.sac.updates
    episodes = 1 if arguments.tiny else arguments.episodes
    parts = replace(
        parts.change_updates(updates),
        settings=replace(parts.settings, evaluations=1, episodes=episodes),
        penalty_weights=tuple(arguments.weights),
        real_fractions=tuple(arguments.fractions),
    )
    if arguments.tiny:
        small = {"hidden": (16,), "batch_size": 16}
        parts = replace(
            parts,
            cloning=replace(parts.cloning, **small),
            iql=replace(parts.iql, **small),
            rebrac=replace(parts.rebrac, **small),
            mobile=replace(parts.mobile, **small, branches=20, replay=500, samples=2),
        )
    return parts


def _select_cells(
    arguments: argparse.Namespace, run: Path, dataset: Dataset, methods: Sequence[Method]
) -> set[str]:
    """Return the variant that `select` prefers for every method: the best mean score over seeds."""
    families: dict[str, list[str]] = {}
    for method in methods:
        families.setdefault(find_family(method.name), []).append(method.name)
    if all(len(names) == 1 for names in families.values()):
        return {method.name for method in methods}
    settings = choose_settings(run)
    if arguments.tiny:
        settings = make_tiny(settings)
    scores: dict[str, list[float]] = {}
    for candidate, score in select(run, settings=settings, data=dataset).ranking:
        scores.setdefault(candidate.method, []).append(score)
    chosen = set()
    for names in families.values():
        chosen.add(max(names, key=lambda name: float(np.mean(scores[name]))))
    return chosen


def make_tiny(settings: SelectSettings) -> SelectSettings:
    """Return settings of `select` for trying a script."""
    critics = TemporalConfig(hidden=(16,), members=2, updates=50, batch_size=32)
    return replace(
        settings, critics=critics, episodes=2, imagined=200, points=200, model_updates=50
    )


def _describe(
    arguments: argparse.Namespace,
    name: str,
    methods: Sequence[Method],
    dataset: Dataset,
    parts: Parts,
) -> list[Record]:
    """Describe the rows of the results; a stored row with other settings is made again."""
    plan = make_plan(dataset, methods, settings=parts.settings)
    rows: list[Record] = []
    for method in methods:
        made: Record = {
            "dataset": name,
            "method": find_family(method.name),
            "updates": method.agent.updates,
            "recipe": " ".join(arguments.set),
        }
        rows.append({**made, **describe_settings(method, plan)})
    return rows


def publish(records: Sequence[Record], path: Path) -> None:
    """Write the seeds of selected cells as the records of the table in the README."""
    fields = ("selected", "recipe")
    chosen: list[Record] = []
    for row in records:
        if row["selected"]:
            chosen.append({key: value for key, value in row.items() if key not in fields})
    merge_records(path, chosen, ("dataset", "method", "seed"))


if __name__ == "__main__":
    main()
