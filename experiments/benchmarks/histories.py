"""Hidden velocities: no history, histories of 4 and 16, and the full state, on medium data.

python experiments/benchmarks/histories.py --tasks hopper --runs runs/histories

Every view of a task gets one model and one policy per seed, with the same λ and fraction of real
data. Records hold the held-out R² of the model's change, the policy's return, and its share of the
full state's return; `kind` is `policy`. Those of the instrument (`kind` is `penalty`) compare every
penalty with the true error; the simulator is set to the whole state. Results are written after
every view. Run the command again to resume: it skips views that are in the results with the same
settings, and continues an interrupted training.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from experiments.tables import histories_table
from experiments.tuned import make_tuned
from gelato.data.reference import load
from gelato.dynamics.latent import LatentFit
from gelato.model.check import check_model
from gelato.model.training import load_model
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.tasks.task import normalise_score
from gelato.training.method import Method
from gelato.training.policies import evaluate_run
from gelato.training.presets import choose_parts
from gelato.training.train import train
from gelato.uncertainty.judge import judge_penalties

RESULTS = Path(__file__).parents[2] / "results" / "histories.json"
TASKS = ("hopper", "walker2d", "halfcheetah")
# What a policy observes, as the options of its data.
VIEWS = {
    "full": "",
    "none": ",observe=positions",
    "4": ",observe=positions,history=4",
    "16": ",observe=positions,history=16",
}
KEYS = ("kind", "task", "view", "penalty", "shift", "seed")


def main() -> None:
    """Train the missing views, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--views", nargs="+", default=list(VIEWS), choices=list(VIEWS))
    parser.add_argument("--runs", type=Path, default=Path("runs/histories"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--fit-updates", type=int, default=60_000)
    parser.add_argument("--updates", type=int, default=150_000, help="of every policy")
    parser.add_argument("--episodes", type=int, default=20, help="of the last evaluation")
    parser.add_argument("--points", type=int, default=100_000, help="rows that penalties search")
    parser.add_argument("--preset", choices=["default", "small"], default="default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no view later")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    begun, longest = time.monotonic(), 0.0
    for task in arguments.tasks:
        for view in arguments.views:
            settings = _describe(arguments, task, view)
            if _is_there(arguments.results, settings, arguments.seeds):
                continue
            if time.monotonic() - begun + longest > 60 * arguments.minutes:
                print(f"{task}, {view}: no time left; run the same command again", flush=True)
                continue
            started = time.monotonic()
            records = _measure(arguments, settings, started)
            merge_records(arguments.results, records, KEYS)
            longest = max(longest, time.monotonic() - started)
            print(f"{task}, {view}: {time.monotonic() - started:.0f} s", flush=True)
    print(histories_table(read_records(arguments.results)))


def _describe(arguments: argparse.Namespace, task: str, view: str) -> Record:
    """Return what decides the results of a view."""
    return {
        "task": task,
        "view": view,
        "transitions": arguments.transitions,
        "fit_updates": arguments.fit_updates,
        "updates": arguments.updates,
        "episodes": arguments.episodes,
        "points": arguments.points,
        "preset": arguments.preset,
    }


def _is_there(results: Path, settings: Record, seeds: int) -> bool:
    found = set()
    for record in read_records(results):
        same = all(record.get(name) == value for name, value in settings.items())
        if same and record["kind"] == "policy":
            found.add(record["seed"])
    return found >= set(range(seeds))


def _measure(arguments: argparse.Namespace, settings: Record, started: float) -> list[Record]:
    """Fit, train, evaluate and judge all seeds of one view."""
    task, view = str(settings["task"]), str(settings["view"])
    data = f"{task}-medium,transitions={arguments.transitions},seed=0"
    method = _make_method(arguments, data, VIEWS[view])
    dataset = load(data + VIEWS[view])
    parts = choose_parts(dataset, arguments.preset)
    run = arguments.runs / f"{task}-{view}-{arguments.fit_updates}-{arguments.updates}"
    train_settings = replace(parts.settings, evaluations=0, points=arguments.points)
    train(dataset, run, method, seeds=arguments.seeds, settings=train_settings)
    trained = time.monotonic() - started
    print(f"{task}, {view}: trained after {trained:.0f} s", flush=True)
    fitted = load_model(run, dataset)
    accuracy = check_model(fitted, with_rollouts=False)["seeds"]
    returns = evaluate_run(run, arguments.episodes, environment=dataset.environment)
    common: Record = {**settings, "dataset": dataset.reference, "device": device()}
    records: list[Record] = []
    for seed, (model, policy) in enumerate(zip(accuracy, returns, strict=True)):
        assert model["seed"] == policy["seed"] == seed
        mean = policy["return"]
        assert isinstance(mean, float)
        records.append(
            {
                "kind": "policy",
                "seed": seed,
                **common,
                "delta_r2": model["delta_r2"],
                "reward_r2": model["reward_r2"],
                "return": mean,
                "return_std": policy["return_std"],
                "score": normalise_score(dataset.environment, mean),
                "length": policy["length"],
                "penalty_weight": method.penalty_weight,
                "real_fraction": method.real_fraction,
                "seconds": round(trained, 1),
            }
        )
    for report in judge_penalties(fitted, points=min(10_000, arguments.points)):
        for row in report.records():
            row.pop("dataset")
            records.append({"kind": "penalty", "seed": row.pop("model_seed"), **common, **row})
    return records


def _make_method(arguments: argparse.Namespace, data: str, options: str) -> Method:
    """Make `gelato` for a view, with the λ and fraction of real data of the full state."""
    whole = load(data)
    tuned = make_tuned("gelato", choose_parts(whole), whole)
    parts = choose_parts(load(data + options), arguments.preset)
    assert isinstance(parts.latent, LatentFit)
    updates = arguments.fit_updates
    model = replace(parts.latent.model, updates=updates, variance_updates=updates // 5)
    latent = replace(parts.latent, model=model)
    agent = replace(parts.sac, updates=arguments.updates, epoch=min(1_000, arguments.updates))
    return replace(tuned, fit=latent, agent=agent)


if __name__ == "__main__":
    main()
