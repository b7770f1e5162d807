"""The pessimistic MDP as a Gymnasium vector environment, for agents of other libraries."""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Key, PRNGKeyArray

from gelato.data.spaces import ActionSpace, Discrete, to_gymnasium
from gelato.errors import InputError
from gelato.mdp.pessimistic import PessimisticMDP, State, Step


class PessimisticVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Parallel episodes of the MDP. Observations are latent states, rewards `r − λU`.

    An episode that ends restarts in the same step; `infos["final_obs"]` then holds its last state.
    `infos["penalty"]` always holds `U`.
    """

    # Gymnasium declares it as a variable of the instance.
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, mdp: PessimisticMDP, action_space: ActionSpace, num_envs: int = 1) -> None:
        if num_envs < 1:
            raise InputError(f"num_envs={num_envs}: must be at least 1")
        self.mdp, self.num_envs, self._space = mdp, num_envs, action_space
        size = mdp.imagined.starts.shape[1]
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = to_gymnasium(action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._key = jax.random.key(0)
        self._state: State | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start every episode from a state of the data; `seed` fixes everything that follows."""
        del options
        if isinstance(seed, list):
            seed = seed[0]
        if seed is not None:
            self._key = jax.random.key(seed)
        self._key, key = jax.random.split(self._key)
        self._state = _reset(self.mdp, jax.random.split(key, self.num_envs))
        return np.array(self._state.latent), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step of every episode."""
        if self._state is None:
            raise InputError("step was called before reset; call reset first")
        given = np.asarray(actions)
        if given.shape != self.action_space.shape:
            raise InputError(
                f"actions have shape {given.shape}; expected {self.action_space.shape}"
            )
        encoded = self._space.encode(
            given if isinstance(self._space, Discrete) else given.astype(np.float32)
        )
        self._key, key = jax.random.split(self._key)
        step, self._state = _step(
            self.mdp, self._state, encoded, jax.random.split(key, self.num_envs)
        )
        # Copy everything, because other libraries write into the arrays they receive.
        terminated, truncated = np.array(step.terminated), np.array(step.truncated)
        infos: dict[str, Any] = {
            "penalty": np.array(step.extra),
            "_penalty": np.ones(self.num_envs, bool),
        }
        ended = terminated | truncated
        if ended.any():
            final = np.array(step.next_latent)
            # Not `np.array(list)`, which joins the rows into one table if all episodes end.
            infos["final_obs"] = np.full(self.num_envs, None, dtype=object)
            for index in np.flatnonzero(ended):
                infos["final_obs"][index] = final[index]
            infos["_final_obs"] = ended
        return (
            np.array(self._state.latent),
            np.array(step.reward, np.float64),
            terminated,
            truncated,
            infos,
        )


@eqx.filter_jit
def _reset(mdp: PessimisticMDP, keys: Key[Array, " envs"]) -> State:
    return jax.vmap(lambda key: mdp.reset(key=key))(keys)


@eqx.filter_jit
def _step(
    mdp: PessimisticMDP, state: State, actions: Array, keys: Key[Array, " envs"]
) -> tuple[Step, State]:
    """Take one step of every episode; return it and the next states."""

    def one(state: State, action: Array, key: PRNGKeyArray) -> tuple[Step, State]:
        step_key, start_key = jax.random.split(key)
        step = mdp.step(state, action, key=step_key)
        return step, mdp.imagined.advance(state, step, key=start_key)

    return jax.vmap(one)(state, actions, keys)
