"""Episodes in the simulator on all cores. Worker processes import this module."""

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from gelato.data.behaviour import tanh_gaussian
from gelato.policy.policy import DeployedPolicy
from gelato.tasks.environments import make_environment
from gelato.tasks.workers import worker_pool

if TYPE_CHECKING:
    from gelato.data.transitions import Dataset

Weights = dict[str, np.ndarray]
_EPISODE_STEPS = 1_000
_EPISODES_PER_JOB = 4
_FIRST_EVALUATION_SEED = 1_000_000
# Every so many steps of an evaluation episode, one transition is kept to judge the model by.
_KEPT_STEPS = 5


@dataclass(frozen=True)
class Episode:
    """One episode: every array has the step as first axis."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminated: bool


def extract_policy(source: Path, target: Path) -> None:
    """Write the policy inside a D4RL file to a small file of weights."""
    import h5py

    names = {"0": "fc0", "1": "fc1"}
    weights = {}
    with h5py.File(source) as file:
        policy = file["metadata/policy"]
        for short, name in names.items():
            weights[f"w{short}"] = np.array(policy[f"{name}/weight"], np.float32).T
            weights[f"b{short}"] = np.array(policy[f"{name}/bias"], np.float32)
        for short, field in (("w2", "weight"), ("b2", "bias")):
            heads = [np.array(policy[f"{head}/{field}"]) for head in ("last_fc", "last_fc_log_std")]
            weights[short] = np.concatenate(heads).astype(np.float32).T
    np.savez_compressed(target, **weights)


def read_policy(path: Path) -> Weights:
    """Read what `extract_policy` wrote."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def record(environment: str, weights: Weights, transitions: int, workers: int) -> "Dataset":
    """Record transitions with a stochastic policy; the data does not depend on the workers."""
    from gelato.data.columns import make_dataset

    jobs = []
    # Every episode of HalfCheetah has 1,000 steps; other tasks need more episodes.
    for first in range(0, 20 * transitions // _EPISODE_STEPS + 1, _EPISODES_PER_JOB):
        jobs.append((environment, weights, first))
    episodes: list[Episode] = []
    with worker_pool(workers) as executor:
        while sum(len(episode.rewards) for episode in episodes) < transitions:
            batch, jobs = jobs[: 8 * workers], jobs[8 * workers :]
            for found in _map(executor, _record_episodes, batch):
                episodes += found
    total = np.cumsum([len(episode.rewards) for episode in episodes])
    episodes = episodes[: int(np.searchsorted(total, transitions)) + 1]
    terminals = [_mark_last(episode, episode.terminated) for episode in episodes]
    timeouts = [_mark_last(episode, not episode.terminated) for episode in episodes]
    return make_dataset(
        np.concatenate([episode.states for episode in episodes]),
        np.concatenate([episode.actions for episode in episodes]),
        np.concatenate([episode.rewards for episode in episodes]),
        next_observations=np.concatenate([episode.next_states for episode in episodes]),
        terminals=np.concatenate(terminals),
        timeouts=np.concatenate(timeouts),
        environment=environment,
        reference=f"{environment} recorded with D4RL's policy",
    )


def _mark_last(episode: Episode, value: bool) -> np.ndarray:
    marks = np.zeros(len(episode.rewards), bool)
    marks[-1] = value
    return marks


def _map(executor: Executor | None, function: Any, jobs: list[Any]) -> list[Any]:
    return list(map(function, jobs) if executor is None else executor.map(function, jobs))


@cache
def _open(environment: str) -> gymnasium.Env[Any, Any]:
    return make_environment(environment)


def _record_episodes(job: tuple[str, Weights, int]) -> list[Episode]:
    environment, weights, first = job
    found = []
    for number in range(first, first + _EPISODES_PER_JOB):
        rng = np.random.default_rng([0, number])

        def act(state: np.ndarray, rng: np.random.Generator = rng) -> np.ndarray:
            return tanh_gaussian(weights, state, rng)

        found.append(_run(environment, act, number))
    return found


def _run(environment: str, act: Any, seed: int) -> Episode:
    simulator = _open(environment)
    state, _ = simulator.reset(seed=seed)
    states, actions, rewards, next_states = [], [], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = act(state)
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = simulator.step(action)
        rewards.append(float(reward))
        next_states.append(state)
    columns = (states, actions, rewards, next_states)
    return Episode(*(np.array(column, np.float32) for column in columns), terminated)


@dataclass(frozen=True)
class Evaluation:
    """What one policy did in the simulator, and some of its transitions."""

    returns: np.ndarray
    discounted: np.ndarray
    transitions: Episode


def evaluate(
    executor: Executor | None, environment: str, policies: list[DeployedPolicy], episodes: int
) -> list[Evaluation]:
    """Run deterministic policies with the same seeds."""
    jobs = []
    for policy in policies:
        for episode in range(episodes):
            jobs.append((environment, policy, _FIRST_EVALUATION_SEED + episode))
    outcomes = _map(executor, _evaluate_episode, jobs)
    found = []
    for index in range(len(policies)):
        own = outcomes[index * episodes : (index + 1) * episodes]
        columns = []
        for name in ("states", "actions", "rewards", "next_states"):
            columns.append(np.concatenate([getattr(outcome[2], name) for outcome in own]))
        kept = Episode(*columns, False)
        found.append(Evaluation(np.array([o[0] for o in own]), np.array([o[1] for o in own]), kept))
    return found


def _evaluate_episode(job: tuple[str, DeployedPolicy, int]) -> tuple[float, float, Episode]:
    environment, policy, seed = job
    episode = _run(environment, policy, seed)
    discounts = 0.99 ** np.arange(len(episode.rewards))
    every = slice(None, None, _KEPT_STEPS)
    columns = (episode.states, episode.actions, episode.rewards, episode.next_states)
    kept = Episode(*(column[every] for column in columns), episode.terminated)
    return float(episode.rewards.sum()), float(discounts @ episode.rewards), kept
