"""`Task`: all facts about one environment that the library uses, and the registry of tasks.

A task is one value. Presets, scores, simulators, evaluation and time estimates find it with
`find_task`, so registering a task once is enough:

>>> register_task(Task("pendulum", ("Pendulum-v1",), reference_returns=(-1200.0, -150.0)))

An environment without a task works too. It gets the general presets, no normalised score, a learned
termination model and no simulator whose state can be set.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Num

from gelato.errors import InputError, first_line

# `Any` stands for a JAX array here: worker processes import this module and need no JAX.
Rule = Callable[[Float[Any, " state"]], Bool[Any, ""]]
Settings = Mapping[str, Any]
Config = TypeVar("Config")
PRESETS = ("default", "small", "paper")
PRESET_PARTS = ("model", "latent", "ensemble", "sac", "ppo", "train")


class AbstractSimulator(ABC):
    """A simulator whose state can be set."""

    package: str | None = None
    """The package whose version affects the simulator's results."""
    state_size: int | None = None
    """Number of values in an observation; None accepts every size."""

    @abstractmethod
    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """Return the expected next observation, or NaN if the state is impossible."""


@dataclass(frozen=True, eq=False)
class Task:
    """One environment."""

    name: str
    """Short name, such as `hopper`."""
    environments: tuple[str, ...]
    """Gymnasium ids of the task. The first one is used to simulate."""
    prefix: str | None = None
    """Ids and file names that begin with this word also belong to the task; case is ignored."""
    entry_point: str | Callable[..., Any] | None = None
    """Entry point of the first id for `gymnasium.register`; None: another package registers it."""
    options: Settings = field(default_factory=dict)
    """Arguments of the entry point."""
    steps: int | None = None
    """Time limit of an episode, in steps."""
    reference_returns: tuple[float, float] | None = None
    """Mean returns of a random and an expert policy, which have the scores 0 and 100."""
    termination: Rule | None = None
    """Whether an unnormalised next state ends the episode; None: the model learns it."""
    state_size: int | None = None
    """Number of values in the states that `termination` reads."""
    state_names: tuple[str, ...] = ()
    """Names of the values in a state, with units, for figures."""
    make_simulator: Callable[[], AbstractSimulator] | None = None
    """Function that makes a simulator whose state can be set."""
    simulator_can_be_copied: bool = False
    """Whether `copy.deepcopy` of the environment gives an independent simulator."""
    has_crashed: Callable[[Mapping[str, object]], bool] | None = None
    """Whether the last `info` of an episode reports a crash; None: crashes are not counted."""
    behaviour_policy: str | None = None
    """Name of a shipped policy that resembles the one in the data."""
    expert_policy: str | None = None
    """Name of a shipped expert policy."""
    capture_frames: Callable[[Any, Callable[[], None]], None] | None = None
    """`capture_frames(environment, capture)` calls `capture()` for each frame between actions."""
    frames_per_second: float | None = None
    """Frame rate of these frames."""
    drawing_help: str = "install the packages that the environment draws with"
    """The remedy if the environment cannot be rendered."""
    step_seconds: float = 0.0
    """Seconds per step on one core, for time estimates; 0: negligible."""
    presets: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)
    """Settings that differ from the general ones, by preset and part.

    Presets: `default`, `small` and `paper`. Parts: `model`, `latent`, `ensemble`, `sac`, `ppo` and
    `train`. A task with a `ppo` part learns with PPO, others with SAC. Without an entry `small`,
    the general small preset is used. A task's `small` entry changes the task's default settings.
    """
    batch_fraction: float | None = None
    """Largest fraction of a tiny dataset in one batch of the model's fit."""

    @property
    def environment(self) -> str:
        """The environment id used to simulate."""
        return self.environments[0]

    def settings(self, preset: str, part: str) -> Settings:
        """Return what this task changes in one part of a preset."""
        return self.presets.get(preset, {}).get(part, {})

    def normalise_score(self, mean_return: float) -> float | None:
        """Return `100 (R − random) / (expert − random)`, or None without reference returns."""
        if self.reference_returns is None:
            return None
        random, expert = self.reference_returns
        return 100 * (mean_return - random) / (expert - random)


_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Add a task to the registry, and its environment to Gymnasium; return the task."""
    _check_task(task)
    if task.name in _TASKS:
        raise InputError(f"task {task.name!r} is already registered; choose another name")
    for environment in task.environments:
        other = find_task(environment)
        if other is not None:
            raise InputError(
                f"task {task.name!r}: {environment} already belongs to the task {other.name!r}; "
                "remove it from `environments`"
            )
    if task.entry_point is not None:
        if task.environment in gymnasium.registry:
            raise InputError(
                f"task {task.name!r}: Gymnasium already has {task.environment}; remove "
                "entry_point or choose another id"
            )
        gymnasium.register(
            task.environment,
            task.entry_point,
            max_episode_steps=task.steps,
            kwargs=dict(task.options),
        )
    _TASKS[task.name] = task
    return task


def find_task(environment: str | None) -> Task | None:
    """Return the task of an environment id or file name, or None if no task is registered for it.

    >>> find_task("hopper_medium-v2").name
    'hopper'
    """
    for task in _TASKS.values():
        if environment in task.environments:
            return task
    for task in _TASKS.values():
        # Similar names are other tasks: `HopperBulletEnv-v0`, `dm_control/hopper-hop-v0`.
        pattern = rf"{re.escape(task.prefix or '')}(?![a-z0-9])"
        if task.prefix and re.match(pattern, environment or "", re.IGNORECASE):
            return task
    return None


def list_tasks() -> dict[str, Task]:
    """Return every registered task by name."""
    return dict(_TASKS)


def normalise_score(environment: str | None, mean_return: float) -> float | None:
    """Return the normalised score of a mean return, or None without reference returns."""
    task = find_task(environment)
    return None if task is None else task.normalise_score(mean_return)


def find_termination_rule(environment: str | None, state_size: int) -> Rule | None:
    """Return the termination rule for next states of this size, or None if none is known."""
    task = find_task(environment)
    return task.termination if task is not None and task.state_size == state_size else None


def name_states(environment: str | None, size: int) -> list[str]:
    """Return the names of the values in a state: those of its task, or `state[0]` and so on."""
    task = find_task(environment)
    if task is not None and len(task.state_names) == size:
        return list(task.state_names)
    return [f"state[{index}]" for index in range(size)]


def change_settings(config: Config, task: Task, preset: str, part: str) -> Config:
    """Return a configuration with the changes that a task makes to one part of a preset."""
    try:
        return replace(config, **task.settings(preset, part))  # type: ignore[type-var]
    except TypeError as error:
        raise InputError(
            f"task {task.name!r}: preset {preset!r} cannot change {part} ({first_line(error)})"
        ) from error


def _check_task(task: Task) -> None:
    if not isinstance(task, Task):
        raise InputError(f"register_task needs a Task, not {type(task).__name__}")

    def require(condition: object, problem: str) -> None:
        if not condition:
            raise InputError(f"task {task.name!r}: {problem}")

    ids = task.environments
    require(isinstance(task.name, str) and task.name, "name must be a word such as 'hopper'")
    require(
        isinstance(ids, tuple) and ids and all(isinstance(name, str) and name for name in ids),
        "environments must be a tuple of at least one environment id",
    )
    require(
        task.termination is None or task.state_size is not None,
        "termination needs state_size, the number of values in a state",
    )
    require(
        not task.simulator_can_be_copied or task.behaviour_policy is not None,
        "simulator_can_be_copied needs behaviour_policy, the policy that acts in the copies",
    )
    require(
        task.step_seconds == 0 or task.steps is not None,
        "step_seconds needs steps, the time limit of an episode",
    )
    returns = task.reference_returns
    require(
        returns is None or (len(returns) == 2 and returns[0] < returns[1]),
        "reference_returns must be (random, expert), with random < expert",
    )
    for preset, parts in task.presets.items():
        require(preset in PRESETS, f"preset {preset!r} is not one of {', '.join(PRESETS)}")
        for part, changes in parts.items():
            known = f"is not one of {', '.join(PRESET_PARTS)}"
            require(part in PRESET_PARTS, f"preset {preset!r}: part {part!r} {known}")
            require(isinstance(changes, Mapping), f"preset {preset!r}: {part} must be a mapping")
