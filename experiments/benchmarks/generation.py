"""Compare the speed of `generate` on all cores with a plain Gymnasium loop of the same policy."""

import argparse
import os
import time
from pathlib import Path

import gymnasium
import numpy as np

from gelato.data.behaviour import load_policy
from gelato.data.generate import generate
from gelato.data.recipes import RECIPES
from gelato.runs.records import merge_records

RESULTS = Path(__file__).parents[2] / "results" / "speed.json"


def plain_loop(name: str, transitions: int) -> float:
    """Return the seconds that a plain loop with `gymnasium.make` takes in one process."""
    recipe = RECIPES[name]
    environment = gymnasium.make(recipe.environment)
    policy, rng = (
        load_policy(recipe.policies[0], environment.action_space),
        np.random.default_rng(0),
    )
    start = time.perf_counter()
    observation, _ = environment.reset(seed=0)
    for _ in range(transitions):
        observation, _, terminated, truncated, _ = environment.step(policy(observation, rng))
        if terminated or truncated:
            observation, _ = environment.reset()
    return time.perf_counter() - start


def ours(name: str, transitions: int) -> float:
    """Return the seconds that `generate` takes, including the start of its workers."""
    start = time.perf_counter()
    assert sum(map(len, generate(RECIPES[name], transitions, seed=0))) == transitions
    return time.perf_counter() - start


def one_round(name: str, transitions: int) -> tuple[float, float]:
    """Measure half of the plain loop, then `generate`, then the other half.

    A machine that becomes slower meanwhile therefore slows both measurements equally.
    """
    before = plain_loop(name, transitions // 2)
    fast = ours(name, transitions)
    return before + plain_loop(name, transitions - transitions // 2), fast


def main() -> None:
    """Time several rounds of both and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=["hopper-medium", "walker2d-medium", "halfcheetah-medium"]
    )
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    records = []
    for name in arguments.names:
        times = [one_round(name, arguments.transitions) for _ in range(arguments.rounds)]
        plain, fast = (
            arguments.transitions / float(np.median(column)) for column in zip(*times, strict=True)
        )
        record = {
            "what": f"generate {name}, {arguments.transitions:,} transitions",
            "device": f"CPU, {os.cpu_count()} cores",
            "value": round(fast),
            "unit": "transitions/s",
            "against": f"plain Gymnasium loop, {round(plain)} transitions/s",
            "ratio": round(fast / plain, 2),
        }
        print(record)
        records.append(record)
    merge_records(RESULTS, records, keys=("what", "device"))


if __name__ == "__main__":
    main()
