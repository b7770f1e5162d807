"""Reproduce the driving figure of the paper: six tasks, all penalties, five seeds.

The data of each task has five episodes.

python experiments/benchmarks/driving.py --runs runs/driving

This writes results/driving.json: one record for the data, one for every evaluation during training
(5 episodes) and one for every final policy (50 episodes). Run the command again to resume: it skips
finished records and continues interrupted training.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.tables import driving_table
from experiments.tuned import make_tuned
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.policy.evaluate import evaluator
from gelato.runs.folder import Run
from gelato.runs.records import Record, device, merge_records, read_records
from gelato.tasks.driving import DRIVING_TASKS
from gelato.training.policies import environment_for, trained_policies
from gelato.training.presets import change_method, choose_parts
from gelato.training.train import train

TASKS = {task.name: task for task in DRIVING_TASKS}
RESULTS = Path(__file__).parents[2] / "results" / "driving.json"
KEYS = ("dataset", "method", "seed", "steps")
METHODS = ("gelato", "gelato-l2", "gelato-ensemble", "gelato-none", "bc")


def main() -> None:
    """Train and evaluate the missing policies, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help="tasks: " + ", ".join(TASKS))
    parser.add_argument("--runs", type=Path, default=Path("runs/driving"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of PPO (default: as in the preset)")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the last evaluation")
    parser.add_argument(
        "--evaluations",
        type=int,
        help="number of evaluations during training (default: as in the preset)",
    )
    parser.add_argument(
        "--way-episodes", type=int, default=5, help="episodes of an evaluation in training"
    )
    parser.add_argument("--penalty-weight", type=float)
    parser.add_argument(
        "--workers", type=int, help="number of parallel simulators (default: number of cores)"
    )
    parser.add_argument(
        "--models", type=Path, help="folder of an earlier run whose models are used again"
    )
    arguments = parser.parse_args()
    for name in arguments.tasks:
        begun = time.monotonic()
        _run(arguments, name)
        print(f"{name} in {time.monotonic() - begun:.0f} s", flush=True)
    print(driving_table(read_records(arguments.results)))


def _run(arguments: argparse.Namespace, name: str) -> None:
    dataset = load(name)
    parts = choose_parts(dataset)
    if arguments.steps is not None:
        parts = replace(parts, ppo=replace(parts.ppo, updates=arguments.steps))
    evaluations = arguments.evaluations or parts.settings.evaluations
    settings = replace(parts.settings, evaluations=evaluations, episodes=arguments.way_episodes)
    run = arguments.runs / name
    methods = []
    for method_name in arguments.methods:
        method = make_tuned(method_name, parts, dataset)
        if method.penalises:
            method = change_method(method, penalty_weight=arguments.penalty_weight)
        methods.append(method)
    model = None if arguments.models is None else arguments.models / name / "model"
    trained = train(
        dataset,
        run,
        methods,
        seeds=arguments.seeds,
        settings=settings,
        model=model,
        workers=arguments.workers,
    )
    steps = {(row["method"], row["seed"]): row["steps"] for row in trained}
    on_the_way = [
        _record(
            name,
            row["method"],
            int(row["seed"]),
            int(row["step"]),
            {**row, "episodes": settings.episodes},
        )
        for path in sorted(run.glob("policies/*/metrics.csv"))
        for row in Run(path.parent).metrics
        if row.get("return") and int(row["step"]) < steps[row["method"], int(row["seed"])]
    ]
    merge_records(arguments.results, [_of_data(name, dataset), *on_the_way], KEYS)
    _evaluate(arguments, name, run, steps)


def _evaluate(
    arguments: argparse.Namespace, name: str, run: Path, steps: dict[tuple[str, int], int]
) -> None:
    """Evaluate the last policies one after the other; an interruption loses at most one result."""
    there = {
        (record["method"], record["seed"], record["steps"])
        for record in read_records(arguments.results)
        if record["dataset"] == name and record["episodes"] == arguments.episodes
    }
    policies = trained_policies(run)
    with evaluator(environment_for(policies[0]), arguments.workers) as evaluate:
        for trained in policies:
            label = (trained.method, trained.seed)
            if (*label, steps[label]) not in there:
                [found] = evaluate([trained.policy], arguments.episodes)
                row = {
                    "return": found.mean,
                    "crash_rate": found.crash_rate,
                    "length": found.lengths.mean(),
                    "episodes": arguments.episodes,
                }
                merge_records(arguments.results, [_record(name, *label, steps[label], row)], KEYS)


def _record(name: str, method: str, seed: int, steps: int, row: Record) -> Record:
    numbers = {field: float(row[field]) for field in ("return", "crash_rate", "length")}
    return {
        "dataset": name,
        "method": method,
        "seed": seed,
        "steps": steps,
        **{field: round(value, 4) for field, value in numbers.items()},
        "episodes": row["episodes"],
        "device": device(),
    }


def _of_data(name: str, dataset: Dataset) -> Record:
    """Make the record of the logged episodes."""
    data = dataset.transitions
    returns = [float(data.rewards[rows].sum()) for rows in data.episode_slices]
    return {
        "dataset": name,
        "method": "data",
        "seed": 0,
        "steps": 0,
        "return": round(float(np.mean(returns)), 4),
        "crash_rate": None,
        "length": float(np.mean([rows.stop - rows.start for rows in data.episode_slices])),
        "episodes": len(returns),
        "device": device(),
    }


if __name__ == "__main__":
    main()
