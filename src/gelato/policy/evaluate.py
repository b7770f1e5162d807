"""Policies in real environments: fixed seeds, deterministic actions, all cores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import get_ident
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int

from gelato.data.spaces import ActionSpace, from_gymnasium
from gelato.errors import InputError, first_line
from gelato.policy.policy import begin_episode
from gelato.progress import Advance, note
from gelato.tasks.environments import find_available, make_environment
from gelato.tasks.task import find_task
from gelato.tasks.workers import count_workers, worker_pool

# Any function from an observation to an action. If it has a method `begin`, its result acts in one
# episode.
Policy = Callable[[np.ndarray], object]
CrashTest = Callable[[Mapping[str, object]], bool]
# Seeds of evaluations, far from the seeds that datasets are made with.
FIRST_SEED = 100_000
# Limits for environments without a time limit.
_LONGEST, _LONGEST_FILM = 10_000, 2_000


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of a policy's episodes, and which of them crashed if the task says so."""

    returns: Float[np.ndarray, " episodes"]
    lengths: Int[np.ndarray, " episodes"]
    crashes: Bool[np.ndarray, " episodes"] | None = None

    @property
    def mean(self) -> float:
        """The mean undiscounted return."""
        return float(self.returns.mean())

    @property
    def crash_rate(self) -> float | None:
        """Fraction of episodes that crashed; None if the task counts no crashes."""
        return None if self.crashes is None else float(self.crashes.mean())


class Evaluator:
    """Runs policies in one environment on a pool of workers; made by `open_evaluator`."""

    def __init__(self, environment: str, executor: Executor | None) -> None:
        self.environment, self._executor = environment, executor
        self._counts_crashes = _find_crash_test(environment) is not None
        # Worker processes do not know environments and tasks that the user's program registered.
        # cloudpickle sends classes and functions of a script too.
        self._description: bytes = cloudpickle.dumps(
            (gymnasium.spec(environment), _find_crash_test(environment))
        )

    def __call__(
        self, policies: Sequence[Policy], episodes: int, advance: Advance | None = None
    ) -> list[Evaluation]:
        """Run every policy with the same seeds; `advance` is called after each episode."""
        seeds = [FIRST_SEED + episode for episode in range(episodes)]
        jobs = []
        for policy in policies:
            jobs += [(self._description, policy, seed) for seed in seeds]
        outcomes = []
        for outcome in self._run(jobs):
            outcomes.append(outcome)
            if advance is not None:
                advance()
        table = np.array(outcomes).reshape(len(policies), episodes, 3)
        found = []
        for rows in table:
            crashes = rows[:, 2] > 0 if self._counts_crashes else None
            found.append(Evaluation(rows[:, 0], rows[:, 1].astype(int), crashes))
        return found

    def _run(self, jobs: Sequence[tuple[bytes, Policy, int]]) -> Iterator[tuple[float, int, bool]]:
        """Yield outcomes in order. If a worker dies, run the remaining episodes here."""
        done = 0
        if self._executor is not None:
            try:
                for outcome in self._executor.map(_run_job, *zip(*jobs)):
                    yield outcome
                    done += 1
            except BrokenProcessPool:
                note(
                    "a worker process died, perhaps out of memory; one process runs all episodes "
                    "from now on"
                )
                self._executor = None
        for _, policy, seed in jobs[done:]:
            yield run_episode(self.environment, policy, seed)


@contextmanager
def open_evaluator(environment: str, workers: int | None = None) -> Iterator[Evaluator]:
    """Open an `Evaluator` with its workers. Default: GELATO_WORKERS, or one per core."""
    with worker_pool(workers or count_workers()) as executor:
        yield Evaluator(environment, executor)


def evaluate_policy(
    policy: Policy, environment: str, *, episodes: int = 10, workers: int = 1
) -> Evaluation:
    """Run any policy, a function from observation to action, in a Gymnasium environment.

    The seeds are those of `gelato evaluate`. With several workers the policy must be picklable.
    """
    with open_evaluator(environment, workers) as evaluate:
        return evaluate([policy], episodes)[0]


def find_environment(recorded: str | None, state_size: int, space: ActionSpace) -> str | None:
    """Return the environment to run policies for this data in, or None if it is not available.

    Raises an error if the environment's spaces differ from the data's.
    """
    name = find_available(recorded)
    if name is None:
        return None
    simulator = make_environment(name)
    found = simulator.observation_space.shape, from_gymnasium(simulator.action_space, name)
    simulator.close()
    same_size = found[0] is not None and int(np.prod(found[0])) == state_size
    if not same_size or found[1] != space:
        ranges = same_size and type(found[1]) is type(space) and found[1].size == space.size
        remedy = "name the environment that recorded the data"
        if ranges:
            remedy = (
                "give the range of actions (,low=,high= of a file; action_space= of make_dataset)"
            )
        raise InputError(
            f"{name} has observations {found[0]} and actions {found[1]}, but the data has "
            f"{state_size} values and {space}; {remedy}, or install the recorded version"
        )
    return name


def run_episode(environment_id: str, policy: Policy, seed: int) -> tuple[float, int, bool]:
    """Run one episode; return its return, its length and whether it crashed."""
    return _run_episode(
        _prepare(environment_id, get_ident()), policy, seed, _find_crash_test(environment_id)
    )


def _run_job(description: bytes, policy: Policy, seed: int) -> tuple[float, int, bool]:
    """Run one episode in a worker process."""
    environment, has_crashed = _unpack(description)
    return _run_episode(environment, policy, seed, has_crashed)


def _run_episode(
    environment: gymnasium.Env[Any, Any],
    policy: Policy,
    seed: int,
    has_crashed: CrashTest | None,
) -> tuple[float, int, bool]:
    observation, _ = environment.reset(seed=seed)
    policy = begin_episode(policy)
    total, steps, ended = 0.0, 0, False
    info: dict[str, Any] = {}
    while not ended and steps < _LONGEST:
        observation, reward, terminated, truncated, info = environment.step(policy(observation))
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    return total, steps, has_crashed is not None and has_crashed(info)


def record_frames(environment_id: str, policy: Policy, seed: int = FIRST_SEED) -> list[np.ndarray]:
    """Return the frames of one episode; in some tasks also those between two actions."""
    task = find_task(environment_id)
    try:
        environment: Any = make_environment(environment_id, render_mode="rgb_array")
        observation, _ = environment.reset(seed=seed)
        frames, ended = [environment.render()], False
    except Exception as error:
        help = (
            "install the packages that the environment needs for rendering"
            if task is None
            else task.drawing_help
        )
        raise InputError(
            f"{environment_id}: cannot be rendered here; {help} ({first_line(error)})"
        ) from error
    policy = begin_episode(policy)
    # Errors below come from the policy or the environment, so their traceback is kept.
    if task is not None and task.capture_frames is not None:
        task.capture_frames(environment, lambda: frames.append(environment.render()))
    while not ended and len(frames) < _LONGEST_FILM:
        observation, _, terminated, truncated, _ = environment.step(policy(observation))
        frames.append(environment.render())
        ended = terminated or truncated
    environment.close()
    return frames


def _find_crash_test(environment_id: str) -> CrashTest | None:
    task = find_task(environment_id)
    return None if task is None else task.has_crashed


@cache
def _prepare(environment_id: str, thread: int) -> gymnasium.Env[Any, Any]:
    """Return a simulator; every thread steps its own."""
    del thread
    return make_environment(environment_id)


@cache
def _unpack(description: bytes) -> tuple[gymnasium.Env[Any, Any], CrashTest | None]:
    spec, has_crashed = cloudpickle.loads(description)
    return make_environment(spec), has_crashed
