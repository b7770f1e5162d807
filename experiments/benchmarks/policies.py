"""Measure the time of training epochs: geodesic or ensemble penalty, five seeds or one.

python experiments/benchmarks/policies.py runs/hopper --points 100000
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks.speed_records import record_speed
from gelato.dynamics.latent import FittedLatent
from gelato.model.training import FittedModel, load_model
from gelato.runs.folder import Run
from gelato.training.population import build_population
from gelato.training.presets import Parts, choose_parts, make_method
from gelato.training.program import init_policies, train_block

ITERATIONS = 10
RESULTS = Path(__file__).parents[2] / "results" / "speed.json"


def main() -> None:
    """Time epochs in one process and write their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a fitted latent model")
    parser.add_argument("--points", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, help="updates in an epoch")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    fitted = load_model(arguments.run)
    parts = choose_parts(fitted.dataset)
    points = arguments.points or parts.settings.points
    parts = replace(parts, settings=replace(parts.settings, points=points))
    if arguments.updates is not None:
        parts = replace(parts, sac=replace(parts.sac, epoch=arguments.updates))
    fitted = repeat_seeds(fitted, arguments.seeds)
    many = len(fitted.seeds)
    epochs = [epoch(fitted, "gelato-ensemble", parts), epoch(fitted, "gelato", parts)]
    if many > 1:
        epochs.append(epoch(fitted.of_seeds(fitted.seeds[:1]), "gelato", parts))
    ensemble, geodesic, *one = seconds(epochs, arguments.rounds)
    name = fitted.dataset.reference
    if parts.ppo is None:
        what = f"an epoch of {parts.sac.epoch:,} updates with its imagined steps, {name}"
    else:
        steps = f"{parts.ppo.updates_per_rollout:,} steps each"
        what = f"{ITERATIONS} iterations of PPO of {steps}, {name}"
    records = [
        (
            f"{what}, {_seeds(many)}, geodesic penalty",
            f"ensemble penalty, {ensemble:.2f} s",
            ensemble,
        )
    ]
    records += [
        (f"{what}, geodesic penalty, {_seeds(many)}", f"one seed, {alone:.2f} s", alone)
        for alone in one
    ]
    for title, against, base in records:
        print(
            record_speed(
                arguments.results, title, round(geodesic, 3), "s", against, geodesic / base
            ),
            flush=True,
        )
    print(
        "peak bytes on the device:",
        (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    )


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def repeat_seeds(fitted: FittedModel, seeds: int) -> FittedModel:
    """Repeat seeds up to that number; a repeated seed takes as long as a new seed."""
    return fitted.of_seeds(tuple(fitted.seeds[index % len(fitted.seeds)] for index in range(seeds)))


def epoch(fitted: FittedModel, name: str, parts: Parts) -> Callable[[], None]:
    """Return a function that trains one epoch of a method per call."""
    method = replace(make_method(name, parts), penalty_weight=1.0)
    agent, latent = method.agent, FittedLatent(fitted, parts.latent.state_noise)
    with tempfile.TemporaryDirectory() as folder:
        population = build_population(
            fitted.split,
            latent,
            [method],
            fitted.seeds,
            parts.settings.penalties,
            Run(Path(folder)),
        )
    states = init_policies(population, agent)
    updates = agent.updates_per_rollout * (1 if parts.ppo is None else ITERATIONS)

    def train_more() -> None:
        nonlocal states
        states, metrics = train_block(population, states, agent=agent, updates=updates)
        jax.block_until_ready(metrics)

    return train_more


def seconds(epochs: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """Return median times. The epochs run in turn, so that a slower machine slows all of them.

    The first round compiles and is not counted.
    """
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
