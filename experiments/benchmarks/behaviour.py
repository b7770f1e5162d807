"""Compare the mean return of each behaviour policy with its return when it was trained."""

import argparse
from pathlib import Path

import numpy as np

from gelato.data.generate import generate
from gelato.data.recipes import Recipe
from gelato.runs.records import merge_records

RESULTS = Path(__file__).parents[2] / "results" / "behaviour.json"

# Returns with sampled actions when the policies were trained (200 episodes; 60 for halfcheetah).
TRAINED = {
    "hopper-medium": 1385,
    "hopper-expert": 3556,
    "walker2d-medium": 1885,
    "walker2d-expert": 4912,
    "halfcheetah-medium": 4477,
    "halfcheetah-expert": 10690,
}
ENVIRONMENTS = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}


def main() -> None:
    """Generate data, average the returns of whole episodes, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=100_000)
    arguments = parser.parse_args()
    for policy, trained in TRAINED.items():
        recipe = Recipe(
            policy, ENVIRONMENTS[policy.split("-")[0]], (policy,), arguments.transitions, ""
        )
        *whole, _cut = generate(recipe, arguments.transitions, seed=0)
        returns = np.array([episode.rewards.sum() for episode in whole])
        record = {
            "policy": policy,
            "transitions": arguments.transitions,
            "episodes": len(whole),
            "return_mean": round(float(returns.mean()), 1),
            "return_std": round(float(returns.std()), 1),
            "trained": trained,
            "ratio": round(float(returns.mean()) / trained, 3),
        }
        print(record, flush=True)
        merge_records(RESULTS, [record], keys=("policy", "transitions"))


if __name__ == "__main__":
    main()
