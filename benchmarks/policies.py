"""What a policy's training costs: epochs with the geodesic penalty against the ensemble's, and five seeds against one.

python benchmarks/policies.py runs/hopper --points 100000
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from gelato.agents.learner import new_policies, run_epoch
from gelato.agents.ppo_learner import new_ppo_policies, run_iterations
from gelato.methods import METHODS, TrainConfig, train_preset
from gelato.model.training import FittedModel, load_model
from gelato.results import record_speed
from gelato.worlds import latent_world

ITERATIONS = 10
RESULTS = Path(__file__).parents[1] / "results" / "speed.json"


def main() -> None:
    """Time epochs in one process and record their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a fitted latent model")
    parser.add_argument("--points", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, help="in an epoch")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    fitted = load_model(arguments.run)
    config = train_preset("default", fitted.dataset)
    config = replace(config, points=arguments.points or config.points)
    if arguments.updates is not None and config.ppo is None:
        config = replace(config, sac=replace(config.sac, epoch=arguments.updates))
    fitted = repeated(fitted, arguments.seeds)
    many = len(fitted.seeds)
    epochs = [epoch(fitted, "gelato-ensemble", config), epoch(fitted, "gelato", config)]
    if many > 1:
        epochs.append(epoch(fitted.of_seeds(fitted.seeds[:1]), "gelato", config))
    ensemble, geodesic, *one = seconds(epochs, arguments.rounds)
    if config.ppo is None:
        what = f"an epoch of {config.sac.epoch:,} updates with its imagined steps, {fitted.dataset.reference}"
    else:
        what = f"{ITERATIONS} iterations of PPO of {config.ppo.steps_taken:,} steps each, {fitted.dataset.reference}"
    records = [(f"{what}, {_seeds(many)}, geodesic penalty", f"ensemble penalty, {ensemble:.2f} s", ensemble)]
    records += [(f"{what}, geodesic penalty, {_seeds(many)}", f"one seed, {alone:.2f} s", alone) for alone in one]
    for name, against, base in records:
        print(record_speed(arguments.results, name, round(geodesic, 3), "s", against, geodesic / base), flush=True)
    print("peak bytes on the device:", (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"))


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def repeated(fitted: FittedModel, seeds: int) -> FittedModel:
    """So many seeds; one that is there more than once costs what another would."""
    return fitted.of_seeds(tuple(fitted.seeds[index % len(fitted.seeds)] for index in range(seeds)))


def epoch(fitted: FittedModel, method: str, config: TrainConfig) -> Callable[[], None]:
    """An epoch of that method, and another with every call."""
    world = latent_world(fitted, [replace(METHODS[method], penalty_weight=1.0)], config)
    sac, ppo = config.sac, config.ppo
    policies = new_policies(world, sac) if ppo is None else new_ppo_policies(world, ppo)

    def go_on() -> None:
        nonlocal policies
        if ppo is None:
            policies, metrics = run_epoch(world, policies, config=sac, updates=sac.epoch)
        else:
            policies, metrics = run_iterations(world, policies, config=ppo, iterations=ITERATIONS)
        jax.block_until_ready(metrics)

    return go_on


def seconds(epochs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Median times, taken in turns, so that a machine that slows down slows all; the first round compiles."""
    times: list[list[float]] = []
    for _ in range(rounds + 1):
        times.append([])
        for run in epochs:
            start = time.perf_counter()
            run()
            times[-1].append(time.perf_counter() - start)
    return np.median(times[1:], axis=0).tolist()


if __name__ == "__main__":
    main()
