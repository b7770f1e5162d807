"""Measure updates per second of a model fit with the paper's sizes, for one and several seeds.

python experiments/benchmarks/model_speed.py hopper-medium --seeds 1 5
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.speed_records import record_speed
from gelato.data.reference import load
from gelato.model.config import PAPER
from gelato.model.fit import MEANS, begin_phase, make_models, prepare_data, run_block
from gelato.model.split import split_dataset

RESULTS = Path(__file__).parents[2] / "results" / "speed.json"


def seconds_per_block(reference: str, seeds: int, updates: int, blocks: int) -> float:
    """Return the median time of a block of updates of all seeds, without compilation."""
    dataset = load(reference)
    split = split_dataset(dataset, PAPER.held_out_fraction, rewards_to_unit_range=True)
    train, numbers = split.train, jnp.arange(seeds)
    constants = (prepare_data(*split.parts, split.scaling, PAPER, range(seeds)), numbers)
    models = make_models(PAPER, train.states.shape[1], train.action_space, numbers)
    state = begin_phase(PAPER, MEANS, models)
    times = []
    for _ in range(blocks + 1):
        start = time.perf_counter()
        state, *measured = run_block(constants, state, config=PAPER, phase=MEANS, updates=updates)
        jax.block_until_ready(measured)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def main() -> None:
    """Time every number of seeds and compare it with one seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--updates", type=int, default=1_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    one = seconds_per_block(arguments.reference, 1, arguments.updates, arguments.blocks)
    for seeds in arguments.seeds:
        several = (
            one
            if seeds == 1
            else seconds_per_block(arguments.reference, seeds, arguments.updates, arguments.blocks)
        )
        record = record_speed(
            arguments.results,
            f"model fit, paper's size, {seeds} seed{'s' if seeds > 1 else ''} at once "
            f"({arguments.reference})",
            round(arguments.updates / several),
            "updates/s of every seed",
            f"time of one seed, {arguments.updates / one:,.0f} updates/s",
            several / one,
        )
        print(record, flush=True)


if __name__ == "__main__":
    main()
