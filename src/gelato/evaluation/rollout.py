"""Policies in the real environment: fixed seeds, deterministic actions, episodes spread over cores."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int

from gelato.data.spaces import ActionSpace, from_gymnasium
from gelato.envs import make_environment
from gelato.envs.driving import crashed, driving_task
from gelato.envs.pool import worker_pool
from gelato.envs.simulate import available_environment
from gelato.errors import InputError
from gelato.evaluation.deployed import DeployedPolicy
from gelato.progress import Advance, note

# Apart from the seeds that datasets are usually made with.
FIRST_SEED = 100_000
# For environments without a time limit of their own.
_LONGEST, _LONGEST_FILM = 10_000, 2_000


@dataclass(frozen=True)
class Evaluation:
    """What one policy did: returns and lengths of its episodes, and on a road which of them ended in a crash."""

    returns: Float[np.ndarray, " episodes"]
    lengths: Int[np.ndarray, " episodes"]
    crashes: Bool[np.ndarray, " episodes"] | None = None

    @property
    def mean(self) -> float:
        """Mean undiscounted return."""
        return float(self.returns.mean())

    @property
    def crash_rate(self) -> float | None:
        """Share of episodes that ended in a crash or off the road; None where nobody drives."""
        return None if self.crashes is None else float(self.crashes.mean())


class Evaluator:
    """Runs policies in one environment on a pool of workers that stays; see `evaluator`."""

    def __init__(self, environment: str, executor: Executor | None) -> None:
        self.environment, self._executor = environment, executor

    def __call__(
        self, policies: Sequence[DeployedPolicy], episodes: int, advance: Advance | None = None
    ) -> list[Evaluation]:
        """Every policy for that many episodes, the same seeds for each; `advance` hears of every one that ended."""
        seeds = [FIRST_SEED + episode for episode in range(episodes)]
        tasks = [(self.environment, policy, seed) for policy in policies for seed in seeds]
        outcomes = []
        for outcome in self._outcomes(tasks):
            outcomes.append(outcome)
            if advance is not None:
                advance()
        table = np.array(outcomes).reshape(len(policies), episodes, 3)
        drives = driving_task(self.environment) is not None
        return [Evaluation(rows[:, 0], rows[:, 1].astype(int), rows[:, 2] > 0 if drives else None) for rows in table]

    def _outcomes(self, tasks: Sequence[tuple[str, DeployedPolicy, int]]) -> Iterator[tuple[float, int, bool]]:
        """What comes of every task, in order; what workers leave undone when one of them dies is done here."""
        done = 0
        if self._executor is not None:
            try:
                for outcome in self._executor.map(run_episode, *zip(*tasks)):
                    yield outcome
                    done += 1
            except BrokenProcessPool:
                note("a worker process died, perhaps out of memory; episodes are run by one process from now on")
                self._executor = None
        yield from (run_episode(*task) for task in tasks[done:])


@contextmanager
def evaluator(environment: str, workers: int | None = None) -> Iterator[Evaluator]:
    """An `Evaluator` with its workers, as many as there are cores unless told, for as long as it is needed."""
    with worker_pool(workers or os.cpu_count() or 1) as executor:
        yield Evaluator(environment, executor)


def environment_of(recorded: str | None, state_size: int, space: ActionSpace) -> str | None:
    """The environment that policies for this data can be run in, or None where there is none here.

    Raises where there is one and its spaces are not the data's.
    """
    name = available_environment(recorded)
    if name is None:
        return None
    simulator = make_environment(name)
    found = simulator.observation_space.shape, from_gymnasium(simulator.action_space, name)
    simulator.close()
    same_size = found[0] is not None and int(np.prod(found[0])) == state_size
    if not same_size or found[1] != space:
        ranges = same_size and type(found[1]) is type(space) and found[1].size == space.size
        remedy = "say the range of a file's actions by ,low=,high=" if ranges else "name the one it was recorded in"
        raise InputError(
            f"{name}: has observations {found[0]} and actions {found[1]}, the data {state_size} numbers and {space}; "
            f"{remedy}, or install the version it was recorded with"
        )
    return name


def run_episode(environment_id: str, policy: DeployedPolicy, seed: int) -> tuple[float, int, bool]:
    """Return and length of one episode, and whether it ended in a crash."""
    environment = _prepared(environment_id)
    observation, _ = environment.reset(seed=seed)
    total, steps, ended = 0.0, 0, False
    info: dict[str, Any] = {}
    while not ended and steps < _LONGEST:
        observation, reward, terminated, truncated, info = environment.step(policy(observation))
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return total, steps, crashed(info)


def record_frames(environment_id: str, policy: DeployedPolicy, seed: int = FIRST_SEED) -> list[np.ndarray]:
    """The pictures of one episode; on a road also those between two decisions."""
    try:
        environment: Any = make_environment(environment_id, render_mode="rgb_array")
        observation, _ = environment.reset(seed=seed)
        frames, ended = [environment.render()], False
        if driving_task(environment_id) is not None:
            environment.unwrapped.set_record_video_wrapper(_Camera(environment, frames))
        while not ended and len(frames) < _LONGEST_FILM:
            observation, _, terminated, truncated, _ = environment.step(policy(observation))
            frames.append(environment.render())
            ended = terminated or truncated
    except Exception as error:
        raise InputError(
            f"{environment_id}: cannot be drawn here; {_remedy(environment_id)} ({_line(error)})"
        ) from error
    environment.close()
    return frames


class _Camera:
    """What highway-env hands every picture of its simulation to."""

    def __init__(self, environment: gymnasium.Env[Any, Any], frames: list[np.ndarray]) -> None:
        self._environment, self._frames = environment, frames
        self.frames_per_sec = 0

    def _capture_frame(self) -> None:
        picture: Any = self._environment.render()
        self._frames.append(picture)


def _remedy(environment_id: str) -> str:
    if driving_task(environment_id) is not None:
        return "highway-env draws with pygame: pip install pygame-ce"
    return "without a display install EGL or OSMesa and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@cache
def _prepared(environment_id: str) -> gymnasium.Env[Any, Any]:
    return make_environment(environment_id)
