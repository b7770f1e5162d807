"""The pessimistic vector environment as a `VecEnv` of Stable-Baselines3 (the extra `sb3`)."""

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from gelato.mdp.vector_env import PessimisticVectorEnv


class StableBaselinesEnv(VecEnv):
    """Use it as `PPO("MlpPolicy", StableBaselinesEnv(env))`."""

    def __init__(self, env: PessimisticVectorEnv) -> None:
        self.env = env
        self._actions: np.ndarray | None = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> np.ndarray:
        """Return the first observations; a seed set with `seed` is used once."""
        seed = self._seeds[0]
        self._reset_seeds()
        return self.env.reset(seed=seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Take one step of every episode, in the form that Stable-Baselines3 expects."""
        assert self._actions is not None
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        ended = terminated | truncated
        told: list[dict[str, Any]] = [{"penalty": float(penalty)} for penalty in infos["penalty"]]
        for index in np.flatnonzero(ended):
            told[index]["terminal_observation"] = infos["final_obs"][index]
            told[index]["TimeLimit.truncated"] = bool(truncated[index])
        return observations, rewards.astype(np.float32), ended, told

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the environment, once per episode."""
        return [getattr(self.env, attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environment."""
        del indices
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the environment."""
        result = getattr(self.env, method_name)(*method_args, **method_kwargs)
        return [result] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False: single episodes are not wrapped."""
        del wrapper_class
        return [False] * len(list(self._get_indices(indices)))
