"""Policies from images: train in the latent model, and compare the return with that of the data.

python experiments/benchmarks/images.py
python experiments/benchmarks/images.py --tiny --results /tmp/images.json  # minutes on two cores

This writes results/images.json, with one record per task and seed: the return of the data and of
the policy, the accuracy of the model, frames per second of its fit (without compilation), and peak
memory. Every update reads, for each transition of a batch, the frames of its window and the next
one. Run the command again to resume an interrupted training.
"""

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gelato.data.recipes import find_recipe
from gelato.data.reference import load
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.dynamics.latent import LatentFit
from gelato.model.check import check_model
from gelato.model.config import ModelConfig
from gelato.model.fit import MEANS, begin_phase, make_models, prepare_data, run_block
from gelato.model.split import split_dataset
from gelato.model.training import load_model
from gelato.runs.records import Record, device, merge_records
from gelato.tasks.task import normalise_score
from gelato.training.policies import evaluate_run
from gelato.training.presets import Parts, choose_parts, make_method
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "images.json"
# The options of each task's data.
TASKS = {"pendulum-pixels": ",history=3", "highway-gray": ",history=3"}
TINY = {"transitions": 800, "updates": 300, "policy_updates": 300, "episodes": 2, "points": 500}


def main() -> None:
    """Train the tasks one after the other, and write their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--runs", type=Path, default=Path("runs/images"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--transitions",
        type=int,
        help="default: the whole dataset; for driving, twenty of them count as an episode",
    )
    parser.add_argument("--updates", type=int, help="of the model")
    parser.add_argument("--policy-updates", type=int, help="of every policy")
    parser.add_argument("--episodes", type=int, default=20, help="of the last evaluation")
    parser.add_argument("--points", type=int, default=20_000, help="rows that penalties search")
    parser.add_argument("--tiny", action="store_true", help="try everything at a small size")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.seeds = 1
        for name, value in TINY.items():
            setattr(arguments, name, value)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        records = _measure(arguments, task)
        merge_records(arguments.results, records, ("task", "seed", "device"))
        print(*records, sep="\n", flush=True)


def _measure(arguments: argparse.Namespace, task: str) -> list[Record]:
    unit, size = find_recipe(task).unit, ""
    if arguments.transitions:
        count = arguments.transitions
        size = f",{unit}={count if unit == 'transitions' else count // 20},seed=0"
    dataset = load(f"{task}{size}{TASKS[task]}")
    parts = _choose_parts(arguments, dataset)
    assert isinstance(parts.latent, LatentFit)
    config = parts.latent.model
    frames = measure_frames(dataset, config, arguments.seeds, updates=50 if arguments.tiny else 500)
    settings = replace(parts.settings, evaluations=0, points=arguments.points)
    run, begun = arguments.runs / f"{task}-{len(dataset.transitions)}-{config.updates}", time.time()
    train(dataset, run, make_method("gelato", parts), seeds=arguments.seeds, settings=settings)
    seconds = time.time() - begun
    checked = check_model(load_model(run, dataset), with_rollouts=False)["seeds"]
    returns = evaluate_run(run, arguments.episodes, environment=dataset.environment)
    memory = jax.local_devices()[0].memory_stats() or {}
    records: list[Record] = []
    for model, policy in zip(checked, returns, strict=True):
        mean = policy["return"]
        assert isinstance(mean, float) and model["seed"] == policy["seed"]
        records.append(
            {
                "task": task,
                "seed": model["seed"],
                "dataset": dataset.reference,
                "transitions": len(dataset.transitions),
                "data_bytes": dataset.transitions.nbytes,
                "updates": config.updates,
                "policy_updates": parts.imagining.updates,
                "data_return": float(episode_returns(dataset.transitions).mean()),
                "return": mean,
                "return_std": policy["return_std"],
                "episodes": arguments.episodes,
                "score": normalise_score(dataset.environment, mean),
                "delta_r2": model["delta_r2"],
                "reward_r2": model["reward_r2"],
                "seeds_together": arguments.seeds,
                "frames_per_second": round(frames),
                "seconds": round(seconds, 1),
                "host_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "device_peak_bytes": memory.get("peak_bytes_in_use"),
                "device": device(),
            }
        )
    return records


def _choose_parts(arguments: argparse.Namespace, dataset: Dataset) -> Parts:
    parts = choose_parts(dataset)
    if arguments.updates:
        updates = arguments.updates
        model = replace(parts.latent.model, updates=updates, variance_updates=updates // 5)
        if arguments.tiny:
            model = replace(model, hidden=(64, 64), decoders=2, batch_size=64)
        parts = replace(parts, latent=replace(parts.latent, model=model))
    return parts if not arguments.policy_updates else parts.change_updates(arguments.policy_updates)


def measure_frames(dataset: Dataset, config: ModelConfig, seeds: int, updates: int) -> float:
    """Return how many frames per second a fit reads, of all seeds together."""
    split, numbers = split_dataset(dataset, config.held_out_fraction), jnp.arange(seeds)
    train = split.train
    constants = (prepare_data(*split.parts, split.scaling, config, range(seeds)), numbers)
    layout = train.layout
    models = make_models(
        config, layout.state_size, train.action_space, numbers, layout.history, train.images
    )
    state, times = begin_phase(config, MEANS, models), []
    for _ in range(3):
        begun = time.perf_counter()
        state, *measured = run_block(constants, state, config=config, phase=MEANS, updates=updates)
        jax.block_until_ready(measured)
        times.append(time.perf_counter() - begun)
    frames = seeds * updates * config.batch_size * (layout.history + 1)
    return frames / float(np.median(times[1:]))


if __name__ == "__main__":
    main()
