"""Updates per second of the model's fit at the paper's size, for one seed and for several under one `vmap`, one run.

python benchmarks/model_speed.py hopper-medium --seeds 1 5
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from gelato.data.reference import load
from gelato.model.config import PAPER
from gelato.model.fit import MEANS, begin, new_models, prepare, run_block
from gelato.model.latent import Scaling
from gelato.model.training import split_for
from gelato.results import record_speed

RESULTS = Path(__file__).parents[1] / "results" / "speed.json"


def seconds_per_block(reference: str, seeds: int, updates: int, blocks: int) -> float:
    """The median time of a block of updates of all seeds, after one that compiles."""
    dataset = load(reference)
    train, held_out = split_for(dataset, PAPER)
    scaling = Scaling.fit(train, rewards_to_unit_range=True)
    numbers = jnp.arange(seeds)
    constants = (prepare(train, held_out, scaling, PAPER, range(seeds)), numbers)
    state = begin(PAPER, MEANS, new_models(PAPER, train.states.shape[1], train.action_space, numbers))
    times = []
    for _ in range(blocks + 1):
        start = time.perf_counter()
        state, *measured = run_block(constants, state, config=PAPER, phase=MEANS, updates=updates)
        jax.block_until_ready(measured)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def main() -> None:
    """Time every number of seeds and record it against one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--updates", type=int, default=1_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    one = seconds_per_block(arguments.reference, 1, arguments.updates, arguments.blocks)
    for seeds in arguments.seeds:
        several = (
            one if seeds == 1 else seconds_per_block(arguments.reference, seeds, arguments.updates, arguments.blocks)
        )
        record = record_speed(
            arguments.results,
            f"model fit, paper's size, {seeds} seed{'s' if seeds > 1 else ''} at once ({arguments.reference})",
            round(arguments.updates / several),
            "updates/s of every seed",
            f"time of one seed, {arguments.updates / one:,.0f} updates/s",
            several / one,
        )
        print(record, flush=True)


if __name__ == "__main__":
    main()
