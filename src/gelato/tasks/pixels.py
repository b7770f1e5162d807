"""Tasks that show images: Pendulum, drawn by a small exact renderer, and driving on a highway.

Gymnasium draws Pendulum with pygame, at 500×500 pixels and with an arrow that shows the action.
pygame is no dependency of GELATO, and an image must not show the action. So the frames here are
computed in NumPy from `(cos θ, sin θ)` alone: the gray value of a pixel is the share of it that a
rod with round ends covers, from black to white. It is smooth in θ. A frame holds no velocity: read
a history of two frames or more.

`highway-gray` is the task `highway-fast` with highway-env's own gray images, which need pygame.
Behaviour policies act on the state, which both environments also tell (`observe_state`).
"""

from dataclasses import replace

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.spaces import Box
from jaxtyping import Float, UInt8

from gelato.tasks.driving import DRIVING_TASKS
from gelato.tasks.task import Settings, Task, register_task

SIZE = 64
# Length and half the width of the rod, as shares of the side of the image.
_LENGTH, _HALF_WIDTH = 0.42, 0.045


def draw_pendulum(
    cos: Float[np.ndarray, "*batch"] | np.float64,
    sin: Float[np.ndarray, "*batch"] | np.float64,
    size: int = SIZE,
) -> UInt8[np.ndarray, "*batch {size} {size}"]:
    """Draw pendulums at these angles; θ = 0 points upwards."""
    places = np.arange(size) - (size - 1) / 2
    # Gymnasium turns the rod counterclockwise, and the first row of an image is at the top.
    right = -np.asarray(sin, np.float32)[..., None, None]
    down = -np.asarray(cos, np.float32)[..., None, None]
    x, y = places[None, :].astype(np.float32), places[:, None].astype(np.float32)
    along = np.clip(right * x + down * y, 0, _LENGTH * size)
    distance = np.sqrt((x - along * right) ** 2 + (y - along * down) ** 2)
    covered = np.clip(0.5 + _HALF_WIDTH * size - distance, 0, 1)
    return np.rint(255 * covered).astype(np.uint8)


class PendulumPixels(PendulumEnv):
    """`Pendulum-v1` that shows images."""

    def __init__(self, render_mode: str | None = None, size: int = SIZE) -> None:
        super().__init__(render_mode)
        self._size = size
        self.observation_space = Box(0, 255, (size, size), np.uint8)

    def _get_obs(self) -> UInt8[np.ndarray, "size size"]:
        theta, _ = self.state
        return draw_pendulum(np.cos(theta), np.sin(theta), self._size)

    def observe_state(self) -> Float[np.ndarray, " state"]:
        """Return the state that behaviour policies act on."""
        return super()._get_obs()


_STEPS = 200
# Mean returns of random actions and of a policy that PPO trained (results/pendulum_agent.json).
_RETURNS = (-1217.4, -178.7)
# Pendulum's state has two dimensions, and observations show little else.
_MODEL = {
    "latent_size": 8,
    "decoders": 3,
    "hidden": (128, 128),
    "forward_hidden": (128, 128),
    "updates": 20_000,
    "variance_updates": 4_000,
}
_AGENT = {"hidden": (128, 128), "updates": 20_000, "discount": 0.98}
_PRESETS: dict[str, dict[str, Settings]] = {
    "default": {"model": _MODEL, "sac": _AGENT, "train": {"evaluations": 4, "episodes": 20}},
    "small": {"model": {"updates": 4_000, "variance_updates": 800}, "sac": {"updates": 4_000}},
}

PENDULUM_PIXELS = register_task(
    Task(
        "pendulum-pixels",
        ("gelato/PendulumPixels-v0",),
        entry_point="gelato.tasks.pixels:PendulumPixels",
        steps=_STEPS,
        reference_returns=_RETURNS,
        drawing_help="Pendulum needs pygame for rendering: pip install pygame-ce",
        presets=_PRESETS,
    )
)

# The road ahead of and behind the own car, in 128×64 pixels.
_GRAY = {
    "type": "GrayscaleObservation",
    "observation_shape": [128, 64],
    "stack_size": 1,
    "weights": [0.2989, 0.5870, 0.1140],
    "scaling": 1.75,
}
(_HIGHWAY_FAST,) = (task for task in DRIVING_TASKS if task.name == "highway-fast")
_HIGHWAY_MODEL = {
    "latent_size": 16,
    "decoders": 3,
    "hidden": (128, 128),
    "forward_hidden": (128, 128),
    "batch_size": 128,
    "updates": 20_000,
    "variance_updates": 4_000,
}
HIGHWAY_GRAY = register_task(
    replace(
        _HIGHWAY_FAST,
        name="highway-gray",
        environments=("gelato/HighwayGray-v0",),
        entry_point="gelato.tasks.gray_highway:GrayHighway",
        options={
            "config": {**_HIGHWAY_FAST.options, "observation": _GRAY},
            "state": _HIGHWAY_FAST.options["observation"],
        },
        # The environment ends an episode itself, as the others of highway-env do.
        steps=None,
        step_seconds=0.0,
        simulator_can_be_copied=False,
        behaviour_policy=None,
        presets={
            **_HIGHWAY_FAST.presets,
            "default": {**_HIGHWAY_FAST.presets["default"], "model": _HIGHWAY_MODEL},
            "small": {
                **_HIGHWAY_FAST.presets["small"],
                "model": {"updates": 4_000, "variance_updates": 800},
            },
        },
    )
)
