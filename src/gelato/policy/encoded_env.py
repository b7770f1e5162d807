"""A real environment that shows latent states, for policies trained in the pessimistic MDP."""

from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from jaxtyping import Float, Num

from gelato.data.history import encode_actions
from gelato.errors import InputError
from gelato.model.training import FittedModel, load_model
from gelato.policy.deploy import make_stage


class EncodedEnv(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Encode the observations of an environment with a fitted model.

    A policy that another library trained in `gelato.pessimistic_env(run)` acts on latent states. To
    run it in the real environment, use `EncodedEnv(gymnasium.make(ID), run)`. If the model reads a
    history, the wrapper carries the window.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], fitted: FittedModel | Path | str, seed: int = 0
    ) -> None:
        super().__init__(env)
        model = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
        network = model.of_seeds((seed,)).seed(0).encoder.network
        states, self._layout = model.scaling.states, model.scaling.layout
        self._space, self._memory = model.scaling.action_space, self._layout.start()
        self._window = np.zeros(self._layout.size, np.float32)
        shape = env.observation_space.shape
        if shape is None or int(np.prod(shape)) != len(states.mean):
            raise InputError(
                f"the environment has observations of shape {shape}, but the model was fitted to "
                f"{len(states.mean)} values; use the environment that recorded the data"
            )
        size = model.config.latent_size
        self._mean, self._scale = np.asarray(states.mean), np.asarray(states.scale)
        self._encoder = make_stage(network, size)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation(self, observation: Num[np.ndarray, "*shape"]) -> Float[np.ndarray, " latent"]:
        """Return the encoder's mean for an observation, the next one of the episode."""
        observed = np.ravel(observation).astype(np.float32)
        self._window = np.asarray(self._layout.open(observed, self._memory))
        x = self._layout.normalise(self._window, self._mean, self._scale)
        return self._encoder(np.asarray(x)).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode with an empty window."""
        self._memory = self._layout.start()
        return super().reset(seed=seed, options=options)

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step; a model with a history remembers the action."""
        encoded = encode_actions(self._space, np.asarray(action))
        self._memory = np.asarray(self._layout.remember(self._window, encoded))
        return super().step(action)
