"""What a policy's training costs: epochs with the geodesic penalty against the ensemble's, and five seeds against one.

python benchmarks/policies.py runs/hopper --points 100000
"""

import argparse
import time
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
    # A seed more than once costs what another seed would.
    fitted = fitted.of_seeds(tuple(fitted.seeds[index % len(fitted.seeds)] for index in range(arguments.seeds)))
    many = len(fitted.seeds)
    ensemble = seconds(fitted, "gelato-ensemble", config, arguments.rounds)
    geodesic = seconds(fitted, "gelato", config, arguments.rounds)
    one = seconds(fitted.of_seeds(fitted.seeds[:1]), "gelato", config, arguments.rounds)
    if config.ppo is None:
        what = f"an epoch of {config.sac.epoch:,} updates with its imagined steps, {fitted.dataset.reference}"
    else:
        what = f"{ITERATIONS} iterations of PPO of {config.ppo.steps_taken:,} steps each, {fitted.dataset.reference}"
    for record in (
        (f"{what}, {_seeds(many)}, geodesic penalty", geodesic, f"ensemble penalty, {ensemble:.2f} s", ensemble),
        (f"{what}, geodesic penalty, {_seeds(many)}", geodesic, f"one seed, {one:.2f} s", one),
    ):
        name, value, against, base = record
        print(record_speed(arguments.results, name, round(value, 3), "s", against, value / base), flush=True)
    print("peak bytes on the device:", (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"))


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def seconds(fitted: FittedModel, method: str, config: TrainConfig, rounds: int) -> float:
    """The median time of an epoch, after one that compiles."""
    chosen = replace(METHODS[method], penalty_weight=1.0)
    world = latent_world(fitted, [chosen], config)
    sac, ppo, times = config.sac, config.ppo, []
    policies = new_policies(world, sac) if ppo is None else new_ppo_policies(world, ppo)
    for _ in range(rounds + 1):
        start = time.perf_counter()
        if ppo is None:
            policies, metrics = run_epoch(world, policies, config=sac, updates=sac.epoch)
        else:
            policies, metrics = run_iterations(world, policies, config=ppo, iterations=ITERATIONS)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


if __name__ == "__main__":
    main()
