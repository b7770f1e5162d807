"""Put a real simulator into a state and take one step: the truth that a model's predictions are measured against."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from gelato.envs import FOUR_ROOMS, FOUR_ROOMS_GOAL, make_environment, quiet_mujoco
from gelato.envs.four_rooms import LONGEST_MOVE, cell_at, is_free, move, position
from gelato.envs.scores import task_of
from gelato.errors import InputError
from gelato.progress import note

# Gymnasium clips the velocities of these two in the observation, so a state at the bound is not the whole truth.
_VELOCITY_BOUND = 10.0
_TASKS = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}


class AbstractSimulator(ABC):
    """A simulator that can be put into any state it knows."""

    @abstractmethod
    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """The expected next observation, NaN where the simulator knows no such state."""


class MujocoSimulator(AbstractSimulator):
    """Hopper, Walker2d or HalfCheetah: an observation is every position but the first, then every velocity."""

    def __init__(self, environment: str) -> None:
        simulated: Any = make_environment(environment).unwrapped
        simulated.reset(seed=0)
        self._environment = simulated
        self._positions = simulated.model.nq - 1
        self._clips = "Cheetah" not in environment

    @property
    def state_size(self) -> int:
        """Numbers in an observation."""
        return self._positions + int(self._environment.model.nv)

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """The next observation."""
        import mujoco

        unknown = np.full(len(state), np.nan)
        positions, velocities = np.split(np.asarray(state, np.float64), [self._positions])
        if not np.isfinite(state).all() or (self._clips and np.abs(velocities).max() >= _VELOCITY_BOUND):
            return unknown
        model, data = self._environment.model, self._environment.data
        # Nothing of the step before may stay: the contact solver starts from its last solution.
        mujoco.mj_resetData(model, data)
        with quiet_mujoco():
            self._environment.set_state(np.concatenate([[0.0], positions]), velocities)
            found = self._environment.step(np.asarray(action))[0]
        # From an impossible state MuJoCo warns, resets itself, and answers from rest.
        return unknown if any(data.warning[kind].number for kind in _blown_up()) else found


def _blown_up() -> tuple[int, ...]:
    import mujoco

    kinds = mujoco.mjtWarning
    return (int(kinds.mjWARN_BADQPOS), int(kinds.mjWARN_BADQVEL), int(kinds.mjWARN_BADQACC))


class FourRoomsSimulator(AbstractSimulator):
    """Four Rooms: the exact mean over the lengths a move may have."""

    def __init__(self, longest_move: int = LONGEST_MOVE) -> None:
        self._longest_move = longest_move

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """The mean next position, from the free cell that `state` lies in."""
        if not np.isfinite(state).all():
            return np.full(2, np.nan)
        cell = cell_at(state)
        if not is_free(cell):
            return np.full(2, np.nan)
        reached = [move(cell, int(action), distance) for distance in range(1, self._longest_move + 1)]
        return position(np.array(reached)).mean(axis=0)


def available_environment(recorded: str | None) -> str | None:
    """The environment here for one that data was recorded in: itself, or the benchmark task's, with a note."""
    if recorded is None:
        return None
    if can_start(recorded):
        return recorded
    task = task_of(recorded)
    if task is None or not can_start(_TASKS[task]):
        note(f"{recorded}: no such environment is installed here")
        return None
    note(f"the data is of {recorded}, the simulator here is {_TASKS[task]}; going on with it")
    return _TASKS[task]


def check_named(environment: str | None) -> None:
    """Refuse an environment that the user named and that is not here."""
    if environment is not None and not can_start(environment):
        raise InputError(
            f"{environment}: no such environment is installed here; correct the name, install it, or leave it out"
        )


def can_start(environment: str) -> bool:
    """Whether an environment can be made here; being registered is not enough."""
    try:
        make_environment(environment).close()
    except Exception:
        return False
    return True


def simulator_for(environment: str | None, state_size: int) -> AbstractSimulator | None:
    """The simulator of an environment, or None, with a note, where none can be put into states of that size."""
    if environment == FOUR_ROOMS:
        return FourRoomsSimulator()
    if environment == FOUR_ROOMS_GOAL:
        return FourRoomsSimulator(longest_move=1)
    task = task_of(environment)
    if task is None:
        note(f"{environment or 'the data'}: no simulator that can be put into a state")
        return None
    ours = _TASKS[task]
    if environment != ours:
        note(f"the data is of {environment}, the simulator here is {ours}; going on with it")
    try:
        simulator = MujocoSimulator(ours)
    except Exception as error:
        note(f"{ours}: the simulator does not start ({error})")
        return None
    if simulator.state_size != state_size:
        note(f"{ours}: has states of {simulator.state_size} numbers, the data of {state_size}; it cannot be used")
        return None
    return simulator
