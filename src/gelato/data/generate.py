"""Generate episodes in the real simulator on all cores.

Each episode has a random generator seeded with `(seed, policy, episode)`, so the data does not
depend on the number of workers. Episodes are yielded in order. If the recipe counts transitions,
the last episode of each policy is cut to reach the requested number exactly.
"""

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Any

import gymnasium
import numpy as np

from gelato.data.behaviour import Action, Policy, load_policy
from gelato.data.recipes import Recipe
from gelato.errors import InputError
from gelato.tasks.environments import make_environment
from gelato.tasks.four_rooms import find_cell, in_region
from gelato.tasks.workers import count_workers, worker_pool

# Steps per task of a worker: large enough that the cost of submitting a task is small, and small
# enough to balance the workers.
_STEPS_PER_TASK = 2_000


@dataclass(frozen=True)
class Episode:
    """One episode: `steps + 1` observations, `steps` actions and rewards, and how it ended."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    seed: int | None

    def __len__(self) -> int:
        return len(self.rewards)

    def cut(self, steps: int) -> "Episode":
        """Return the first `steps` steps as a truncated episode."""
        return Episode(
            self.observations[: steps + 1],
            self.actions[:steps],
            self.rewards[:steps],
            terminated=False,
            seed=self.seed,
        )


def count_units(recipe: Recipe, episode: Episode) -> int:
    """Return how much an episode adds to a dataset, in the unit of the recipe."""
    return len(episode) if recipe.unit == "transitions" else 1


def generate(
    recipe: Recipe, size: int, *, seed: int, workers: int | None = None
) -> Iterator[Episode]:
    """Yield `size` transitions or episodes, the same number from each policy."""
    workers = workers or count_workers()
    parts = len(recipe.policies)
    try:
        with worker_pool(workers) as executor:
            for index in range(parts):
                share = size * (index + 1) // parts - size * index // parts
                yield from _generate_share(recipe, index, share, seed, workers, executor)
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process died, perhaps out of memory; try fewer workers"
        ) from error


def run_episodes(recipe: Recipe, policy_index: int, seed: int, numbers: range) -> list[Episode]:
    """Run the episodes with these numbers, and drop those that enter the recipe's hole."""
    environment, policy, time_limit = _prepare(
        recipe.environment, recipe.policies[policy_index], get_ident()
    )
    steps = min(recipe.episode_steps or time_limit, time_limit)
    episodes = []
    for number in numbers:
        sequence = np.random.SeedSequence([seed, policy_index, number])
        # Minari stores the seed as a signed integer.
        reset_seed = int(sequence.generate_state(1)[0] >> 1)
        rng = np.random.default_rng(sequence)
        episode = _run_episode(environment, policy, steps, reset_seed, rng)
        cells = map(find_cell, episode.observations)
        if recipe.hole is None or not any(in_region(cell, recipe.hole) for cell in cells):
            episodes.append(episode)
    return episodes


@cache
def _prepare(
    environment_id: str, policy_name: str, thread: int
) -> tuple[gymnasium.Env[Any, Any], Policy, int]:
    """Return the simulator without its slow wrappers, the policy and the time limit.

    Threads must not step the same simulator, so every thread has its own.
    """
    del thread
    environment = make_environment(environment_id)
    time_limit = environment.spec.max_episode_steps if environment.spec else None
    return (
        environment.unwrapped,
        load_policy(policy_name, environment.action_space),
        time_limit or sys.maxsize,
    )


def _run_episode(
    environment: gymnasium.Env[Any, Any],
    policy: Policy,
    steps: int,
    reset_seed: int,
    rng: np.random.Generator,
) -> Episode:
    # Policies act on the state, also where the environment shows something else, such as images.
    observe_state = getattr(environment, "observe_state", None)
    observation, _ = environment.reset(seed=reset_seed, options={"anywhere": True})
    observations = [observation]
    actions: list[Action] = []
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated or len(rewards) == steps):
        action = policy(observation if observe_state is None else observe_state(), rng)
        observation, reward, terminated, truncated, _ = environment.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
    return Episode(
        np.array(observations), np.array(actions), np.array(rewards), bool(terminated), reset_seed
    )


def _generate_share(
    recipe: Recipe, policy_index: int, size: int, seed: int, workers: int, executor: Executor | None
) -> Iterator[Episode]:
    """Yield episodes of one policy, in order, until its share is full."""
    waiting: deque[tuple[int, Future[list[Episode]]]] = deque()
    next_number = episodes = there = 0
    per_task = min(_STEPS_PER_TASK, size / (4 * workers))
    while there < size:
        # Before the first episode is finished, assume that one episode fills a task.
        mean = there / episodes if episodes else per_task
        while len(waiting) < (2 * workers if executor else 1):
            on_the_way = mean * sum(count for count, _ in waiting)
            if waiting and there + on_the_way >= size:
                break
            missing = size - there - on_the_way
            count = max(1, round(min(per_task, missing / workers) / mean))
            waiting.append(
                (count, _submit(executor, recipe, policy_index, seed, next_number, count))
            )
            next_number += count
        for episode in waiting.popleft()[1].result():
            if there < size:
                kept = (
                    episode.cut(size - there)
                    if count_units(recipe, episode) > size - there
                    else episode
                )
                episodes, there = episodes + 1, there + count_units(recipe, kept)
                yield kept


def _submit(
    executor: Executor | None, recipe: Recipe, policy_index: int, seed: int, first: int, count: int
) -> Future[list[Episode]]:
    numbers = range(first, first + count)
    if executor is not None:
        return executor.submit(run_episodes, recipe, policy_index, seed, numbers)
    done: Future[list[Episode]] = Future()
    done.set_result(run_episodes(recipe, policy_index, seed, numbers))
    return done
