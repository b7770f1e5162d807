"""The pessimistic MDP as a plain Gymnasium environment, for libraries that step one episode."""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.spaces import ActionSpace, Discrete, to_gymnasium
from gelato.errors import InputError
from gelato.mdp.pessimistic import PessimisticMDP, State, Step


class PessimisticEnv(gymnasium.Env[np.ndarray, np.ndarray | np.int64]):
    """One episode of the MDP. Observations are latent states, rewards `r − λU`.

    `info["penalty"]` holds `U`. It works with Stable-Baselines3 and similar libraries without a
    wrapper.
    """

    def __init__(self, mdp: PessimisticMDP, action_space: ActionSpace) -> None:
        self.mdp, self._space = mdp, action_space
        size = mdp.imagined.starts.shape[1]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = to_gymnasium(action_space)
        self._key = jax.random.key(0)
        self._state: State | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start from a state of the data; `seed` fixes everything that follows."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._key = jax.random.key(seed)
        self._key, key = jax.random.split(self._key)
        self._state = _reset(self.mdp, key)
        return np.array(self._state.latent), {}

    def step(
        self, action: np.ndarray | np.int64
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        if self._state is None:
            raise InputError("step was called before reset; call reset first")
        given = np.asarray(action)
        if not isinstance(self._space, Discrete):
            given = given.astype(np.float32)
        self._key, key = jax.random.split(self._key)
        step = _step(self.mdp, self._state, self._space.encode(given), key)
        self._state = State(step.next_latent, self._state.elapsed + 1)
        return (
            np.array(step.next_latent),
            float(step.reward),
            bool(step.terminated),
            bool(step.truncated),
            {"penalty": float(step.extra)},
        )


@eqx.filter_jit
def _reset(mdp: PessimisticMDP, key: PRNGKeyArray) -> State:
    return mdp.reset(key=key)


@eqx.filter_jit
def _step(
    mdp: PessimisticMDP, state: State, action: Float[Array, " action"], key: PRNGKeyArray
) -> Step:
    return mdp.step(state, action, key=key)
