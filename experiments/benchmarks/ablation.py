"""Train `gelato` with each change of the recipe alone, and with all together.

python experiments/benchmarks/ablation.py --runs runs/ablation --minutes 9

A unit is one dataset and one change. It is written to results/ablation.json when it is done. Run
the command again to continue: it skips what was recorded, and resumes interrupted training. A
change consists of settings that `gelato train --set` takes as well, so a result can be repeated by
hand. `none` is the recipe without a change. Changes that do not concern the model share it.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.paper import DATASETS
from experiments.tables import ablation_table
from experiments.units import TINY, Clock, are_recorded
from gelato.cli.settings import set_options
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.dynamics.latent import LatentFit
from gelato.model.training import fit_model
from gelato.runs.folder import Run
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.tasks.task import normalise_score
from gelato.training.method import Method
from gelato.training.presets import DEFAULT_FRACTION, DEFAULT_WEIGHT, choose_parts, make_method
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "ablation.json"
KEYS = ("dataset", "change", "recipe", "penalty_weight", "real_fraction", "seed")


@dataclass(frozen=True)
class Change:
    """Settings that differ from the recipe, and λ if it differs."""

    settings: tuple[str, ...] = ()
    weight: float | None = None


CHANGES = {
    "none": Change(),
    "forwards": Change(("latent.model.forwards=5",)),
    "forward-norm": Change(("latent.model.forward_norm=True",)),
    "truncation": Change(("sac.truncation=1.0",)),
    "plain-critics": Change(("sac.critic_norm=False",)),
    "ten-critics": Change(("sac.critics=10",)),
    "hard-targets": Change(("sac.soft_targets=False",)),
    "fixed-temperature": Change(("sac.temperature=0.2",)),
    "long-rollouts": Change(("sac.horizon=20", "sac.branches=500")),
    "large-batches": Change(("sac.batch_size=1024",)),
    # The ones below are not part of `all`.
    "truncation-only": Change(("sac.truncation=1.0",), weight=0.0),
    "weak-penalty": Change(weight=0.3),
    "one-discount": Change(("sac.discount=0.99",)),
    "long-fit": Change(("latent.model.updates=300000", "latent.model.variance_updates=60000")),
    "many-updates": Change(("sac.updates=1000000",)),
}
_TOGETHER = tuple(CHANGES)[1:10]
CHANGES["all"] = Change(sum((CHANGES[name].settings for name in _TOGETHER), ()))


def main() -> None:
    """Train the missing units, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), choices=list(CHANGES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weight", type=float, default=DEFAULT_WEIGHT, help="λ")
    parser.add_argument("--fraction", type=float, default=DEFAULT_FRACTION, help="of real data")
    parser.add_argument("--set", nargs="+", default=[], help="settings of the recipe itself")
    parser.add_argument("--transitions", type=int, help="size of every dataset")
    parser.add_argument("--minutes", type=float, help="stop in time and keep a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, to try the script")
    arguments = parser.parse_args()
    if (arguments.tiny or arguments.transitions) and arguments.results == RESULTS:
        parser.error("--tiny and --transitions need another file for the results: set --results")
    clock = Clock(arguments.minutes)
    recipe = [*(TINY if arguments.tiny else ()), *arguments.set]
    for name in arguments.datasets:
        size = arguments.transitions
        dataset = load(name if size is None else f"{name},transitions={size}")
        for change in arguments.changes:
            _run_unit(arguments, clock, dataset, name, change, recipe)
    print(ablation_table(read_records(arguments.results)))


def _run_unit(
    arguments: argparse.Namespace,
    clock: Clock,
    dataset: Dataset,
    name: str,
    change: str,
    recipe: Sequence[str],
) -> None:
    """Train one change on one dataset and write its records, unless they are there."""
    changed = CHANGES[change]
    parts = set_options(choose_parts(dataset), (*recipe, *changed.settings))
    weight = arguments.weight if changed.weight is None else changed.weight
    described: Record = {
        "dataset": name,
        "change": change,
        "recipe": " ".join(recipe),
        "settings": " ".join(changed.settings),
        "penalty_weight": weight,
        "real_fraction": arguments.fraction,
        "updates": parts.sac.updates,
        "model_updates": parts.latent.model.updates,
        "transitions": len(dataset.transitions),
    }
    if are_recorded(arguments.results, [described], arguments.seeds):
        return
    if not clock.has_time_for(change):
        print(f"{name}, {change}: no time left; run the same command again", flush=True)
        return
    begun = time.monotonic()
    method = replace(
        make_method("gelato", parts), penalty_weight=weight, real_fraction=arguments.fraction
    )
    model = _fit(arguments, dataset, name, method)
    folder = arguments.runs / name / change
    found = train(
        dataset, folder, method, seeds=arguments.seeds, settings=parts.settings, model=model
    )
    seconds = time.monotonic() - begun
    late = _average_late_scores(folder / "policies" / "gelato", dataset)
    records: list[Record] = []
    for row in found:
        measured = {key: row[key] for key in ("seed", "return", "return_std", "score", "length")}
        measured |= {key: row[key] for key in ("initial_value", "mean_penalty")}
        late_score = late.get(int(row["seed"] or 0))
        records.append({**described, **measured, "late_score": late_score, "device": device()})
    merge_records(arguments.results, records, KEYS)
    clock.note(change, seconds)
    scores = ", ".join(f"{row['score']:.1f}" for row in records)
    print(f"{name}, {change}: {scores} in {seconds:.0f} s", flush=True)


def _fit(arguments: argparse.Namespace, dataset: Dataset, name: str, method: Method) -> Path:
    """Fit the model of a method, or read it; equal settings share a folder."""
    assert isinstance(method.fit, LatentFit)
    config = method.fit.model
    label = f"forwards={config.forwards} norm={config.forward_norm} updates={config.updates}"
    folder: Path = arguments.runs / name / "models" / label.replace(" ", ",")
    fit_model(dataset, folder, config=config, seeds=arguments.seeds)
    return folder


def _average_late_scores(folder: Path, dataset: Dataset) -> dict[int, float | None]:
    """Return the mean score of the second half of the evaluations, for every seed."""
    returns: dict[int, list[float]] = {}
    for row in Run(folder).metrics:
        if row.get("return") not in (None, "", "nan"):
            returns.setdefault(int(row["seed"]), []).append(float(row["return"]))
    found = {}
    for seed, values in returns.items():
        late = float(np.mean(values[len(values) // 2 :]))
        found[seed] = normalise_score(dataset.environment, late)
    return found


if __name__ == "__main__":
    main()
