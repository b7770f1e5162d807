"""Train the behaviour policies of the driving datasets, and compare them with random actions.

python experiments/benchmarks/driving_agents.py                    # all six drivers
python experiments/benchmarks/driving_agents.py racetrack --whole  # train until the driver is good
python experiments/benchmarks/driving_agents.py --shipped --episodes 200  # only measure

This writes results/driving_agents.json. Training stops when a driver is better than random but not
yet good. Drivers of slow simulators start from the driver of a faster one.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.online import Progress, train_online
from gelato.agents.ppo import PPO, PPONetworks
from gelato.data.generate import generate
from gelato.data.recipes import RECIPES, Recipe
from gelato.runs.records import merge_records
from gelato.tasks.driving import DRIVING_TASKS

TASKS = {task.name: task for task in DRIVING_TASKS}

HERE = Path(__file__).parents[2]
RESULTS = HERE / "results" / "driving_agents.json"
POLICIES = HERE / "src" / "gelato" / "data" / "policies"
# The drivers of the package had non-orthogonal initial weights, and they are ReLU networks.
BEGUN = {"activation": "relu", "orthogonal": False}
CONFIG = PPO(episodes=8, steps=64, minibatches=8, passes=10, rate=5e-4, discount=0.95, **BEGUN)


@dataclass(frozen=True)
class Plan:
    """How to train one driver.

    Its weights are saved after `steps` steps. After `whole` steps it is good. Training starts from
    the driver of the task `begin`.
    """

    steps: int
    whole: int
    begin: str | None = None
    discount: float = 0.95


PLANS = {
    "highway-fast": Plan(2_560, 18_432),
    "highway": Plan(1_024, 1_024, begin="highway-fast"),
    "roundabout": Plan(2_048, 12_288),
    "intersection": Plan(3_072, 9_216),
    "intersection-hard": Plan(1_024, 1_024, begin="intersection"),
    "racetrack": Plan(4_608, 30_208, discount=0.98),
}


def main() -> None:
    """Train the drivers, save their weights and measure their returns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(PLANS), help="tasks: " + ", ".join(PLANS))
    parser.add_argument(
        "--whole", action="store_true", help="continue training after the driver is saved"
    )
    parser.add_argument(
        "--shipped", action="store_true", help="do not train; measure the drivers of the package"
    )
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each policy")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    shipped: dict[str, PPONetworks] = {}
    for name in arguments.tasks:
        if not arguments.shipped:
            shipped[name] = _train(name, shipped, arguments.whole)
        records = [_measured(name, policy, arguments.episodes) for policy in ("random", name)]
        merge_records(arguments.results, records, ("dataset", "policy"))
        print(records, flush=True)


def _train(name: str, shipped: dict[str, PPONetworks], whole: bool) -> PPONetworks:
    """Train a driver and save its weights in the data of the package."""
    plan, begun, kept = PLANS[name], time.monotonic(), []

    def watch(progress: Progress) -> bool:
        print(
            f"{name} {progress.steps:,} steps: return {progress.episode_return:.2f}, "
            f"length {progress.length:.1f}, "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )
        if progress.steps == plan.steps:
            kept.append(progress.learner)
        return True

    train_online(
        TASKS[name].environment,
        replace(CONFIG, discount=plan.discount),
        steps=plan.whole if whole else plan.steps,
        learner=None if plan.begin is None else shipped[plan.begin],
        should_continue=watch,
    )
    layers = enumerate(kept[0].actor.network.layers)
    weights = {
        f"{kind}{n}": np.asarray(x)
        for n, layer in layers
        for kind, x in (("w", layer.weight.T), ("b", layer.bias))
    }
    np.savez(POLICIES / f"{name}.npz", **weights)
    return kept[0]


def _measured(name: str, policy: str, episodes: int) -> dict[str, object]:
    recipe = Recipe(name, RECIPES[name].environment, (policy,), episodes, "", unit="episodes")
    found = list(generate(recipe, episodes, seed=1))
    returns = np.array([episode.rewards.sum() for episode in found])
    return {
        "dataset": name,
        "policy": policy if policy == "random" else "partly trained",
        "steps": 0 if policy == "random" else PLANS[name].steps,
        "begun_from": None if policy == "random" else PLANS[name].begin,
        "episodes": episodes,
        "return": float(returns.mean()),
        "return_std": float(returns.std()),
        "length": float(np.mean([len(episode) for episode in found])),
    }


if __name__ == "__main__":
    main()
