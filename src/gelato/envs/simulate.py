"""Put a real simulator into a state and take one step: the truth that a model's predictions are measured against."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from gelato.envs import FOUR_ROOMS, make_environment
from gelato.envs.four_rooms import LONGEST_MOVE, SIZE, is_free, move, position
from gelato.errors import InputError

# Gymnasium clips the velocities of these two in the observation, so a state at the bound is not the whole truth.
_VELOCITY_BOUND = 10.0


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
        self._positions = self._environment.model.nq - 1
        self._clips = "Cheetah" not in environment

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """The next observation."""
        import mujoco

        positions, velocities = np.split(np.asarray(state, np.float64), [self._positions])
        if not np.isfinite(state).all() or (self._clips and np.abs(velocities).max() >= _VELOCITY_BOUND):
            return np.full(len(state), np.nan)
        # Nothing of the step before may stay: the contact solver starts from its last solution.
        mujoco.mj_resetData(self._environment.model, self._environment.data)
        self._environment.set_state(np.concatenate([[0.0], positions]), velocities)
        return self._environment.step(np.asarray(action))[0]


class FourRoomsSimulator(AbstractSimulator):
    """Four Rooms: the exact mean over the lengths a move may have."""

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """The mean next position, from the free cell that `state` lies in."""
        half = (SIZE - 1) / 2
        if not np.isfinite(state).all():
            return np.full(2, np.nan)
        cell = (int(np.rint(half - state[1] * half)), int(np.rint(state[0] * half + half)))
        if not is_free(cell):
            return np.full(2, np.nan)
        reached = [move(cell, int(action), distance) for distance in range(1, LONGEST_MOVE + 1)]
        return position(np.array(reached)).mean(axis=0)


def simulator_for(environment: str | None) -> AbstractSimulator | None:
    """The simulator of an environment, or None where it cannot be put into a state (or is not known)."""
    if environment == FOUR_ROOMS:
        return FourRoomsSimulator()
    if environment is None or not environment.startswith(("Hopper-", "Walker2d-", "HalfCheetah-")):
        return None
    try:
        return MujocoSimulator(environment)
    except Exception as error:
        raise InputError(f"{environment}: the simulator does not start ({error}); pip install 'gelato-rl'") from error
