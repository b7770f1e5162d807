"""Train the behaviour policy of the Pendulum datasets, and compare it with random actions.

python experiments/benchmarks/pendulum_agent.py

PPO learns in the real environment from the state. The policy is saved in the package at the first
iteration whose episodes reach the return `--until` on average: it is better than random actions,
but not yet good. Training then continues to `--steps`, and the expert's return is measured too.
This writes results/pendulum_agent.json.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from experiments.online import Progress, train_online
from gelato.agents.networks import Actor
from gelato.agents.ppo import PPO
from gelato.data.generate import generate
from gelato.data.recipes import Recipe
from gelato.runs.records import Record, merge_records

HERE = Path(__file__).parents[2]
RESULTS = HERE / "results" / "pendulum_agent.json"
POLICIES = HERE / "src" / "gelato" / "data" / "policies"
ENVIRONMENT, NAME, EXPERT = "Pendulum-v1", "pendulum-medium", "pendulum-expert"
# Shipped policies are ReLU networks with two hidden layers.
CONFIG = PPO(
    activation="relu",
    orthogonal=False,
    episodes=8,
    steps=256,
    minibatches=32,
    passes=10,
    rate=1e-3,
    discount=0.9,
    entropy_weight=0.0,
)


def main() -> None:
    """Train the policies, save their weights and measure their returns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=160_000)
    parser.add_argument("--until", type=float, default=-700.0, help="return of the saved policy")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each policy")
    parser.add_argument("--policies", type=Path, default=POLICIES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    saved_after, begun = 0, time.monotonic()

    def watch(progress: Progress) -> bool:
        nonlocal saved_after
        passed = time.monotonic() - begun
        mean = progress.episode_return
        print(f"{progress.steps:,} steps: return {mean:.0f}, {passed:.0f} s", flush=True)
        if not saved_after and mean >= arguments.until:
            saved_after = progress.steps
            _save(progress.learner.actor, arguments.policies / f"{NAME}.npz")
        return True

    learner = train_online(ENVIRONMENT, CONFIG, steps=arguments.steps, should_continue=watch)
    _save(learner.actor, arguments.policies / f"{EXPERT}.npz")
    steps = {"random": 0, NAME: saved_after, EXPERT: arguments.steps}
    records = [_measure(policy, count, arguments.episodes) for policy, count in steps.items()]
    merge_records(arguments.results, records, ("policy",))
    print(records)


def _save(actor: Actor, path: Path) -> None:
    weights = {}
    for number, layer in enumerate(actor.network.layers):
        weights[f"w{number}"] = np.asarray(layer.weight.T)
        weights[f"b{number}"] = np.asarray(layer.bias)
    np.savez(path, **weights)  # type: ignore[arg-type]


def _measure(policy: str, steps: int, episodes: int) -> Record:
    recipe = Recipe("pendulum", ENVIRONMENT, (policy,), episodes, "", unit="episodes")
    returns = np.array([episode.rewards.sum() for episode in generate(recipe, episodes, seed=1)])
    return {
        "policy": policy,
        "steps": steps,
        "episodes": episodes,
        "return": float(returns.mean()),
        "return_std": float(returns.std()),
    }


if __name__ == "__main__":
    main()
