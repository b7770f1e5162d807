"""Action spaces as hashable values, so that a pytree can hold them as static fields.

Discrete actions are integers in the data. `encode` converts them to one-hot vectors for the model.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from gelato.errors import InputError


@dataclass(frozen=True)
class Continuous:
    """A box of actions with a bound for each dimension."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of values that the model receives for an action."""
        return len(self.low)

    def encode(
        self, actions: Float[Array | np.ndarray, "*batch action"]
    ) -> Float[Array, "*batch action"]:
        """Return actions as the model receives them: unchanged."""
        return jnp.asarray(actions)


@dataclass(frozen=True)
class Discrete:
    """The actions `0, …, n − 1`."""

    n: int

    @property
    def size(self) -> int:
        """Number of values that the model receives for an action."""
        return self.n

    def encode(self, actions: Num[Array | np.ndarray, "*batch"]) -> Float[Array, "*batch action"]:
        """Return actions as the model receives them: one-hot."""
        if isinstance(actions, np.ndarray):  # JAX would compile a program for every shape.
            return jax.device_put((actions[..., None] == np.arange(self.n)).astype(np.float32))
        return jax.nn.one_hot(actions, self.n)


ActionSpace = Continuous | Discrete


def from_gymnasium(space: gymnasium.Space[Any], where: str) -> ActionSpace:
    """Convert a Gymnasium space to an action space. Errors begin with `where`."""
    if isinstance(space, gymnasium.spaces.Box):
        return Continuous(
            tuple(map(float, space.low.ravel())), tuple(map(float, space.high.ravel()))
        )
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(int(space.n))
    raise InputError(
        f"{where}: actions of type {type(space).__name__} are not supported; use Box or Discrete "
        "actions"
    )


def to_gymnasium(space: ActionSpace) -> gymnasium.Space[Any]:
    """Convert an action space to a Gymnasium space."""
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n)
    return gymnasium.spaces.Box(
        np.array(space.low, np.float32), np.array(space.high, np.float32), dtype=np.float32
    )
