"""`highway-fast` seen from above in gray images. highway-env draws them with pygame."""

import os
import tempfile
from typing import Any

import numpy as np
from highway_env.envs.common.observation import observation_factory
from highway_env.envs.highway_env import HighwayEnvFast
from jaxtyping import Float


class GrayHighway(HighwayEnvFast):
    """The environment with gray images. `state` configures what behaviour policies act on."""

    def __init__(
        self, config: dict[str, Any], state: dict[str, Any], render_mode: str | None = None
    ) -> None:
        # Pygame complains if this variable is missing, as on machines without a desktop.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        self._state_config = state
        # A configuration that was stored as text has lists, and highway-env needs a tuple.
        shown = config["observation"]
        shown = {**shown, "observation_shape": tuple(shown["observation_shape"])}
        super().__init__({**config, "observation": shown}, render_mode)

    def define_spaces(self) -> None:
        """Make the observations, also those of the state."""
        super().define_spaces()
        self._state_type = observation_factory(self, self._state_config)

    def observe_state(self) -> Float[np.ndarray, "cars values"]:
        """Return the state that behaviour policies act on."""
        return np.asarray(self._state_type.observe(), np.float32)
