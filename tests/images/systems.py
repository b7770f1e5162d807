"""A tiny system that is seen in images: a bright square that an action pushes to the side."""

from pathlib import Path

import gymnasium
import numpy as np

from gelato.data.columns import make_dataset
from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset
from gelato.model.config import ModelConfig

SIZE = 16
TINY = ModelConfig(
    latent_size=4,
    decoders=2,
    hidden=(32,),
    forward_hidden=(32,),
    updates=20,
    variance_updates=5,
    batch_size=32,
)


def draw_bar(position: np.ndarray, size: int = SIZE) -> np.ndarray:
    """Draw an upright bar with soft edges at a position between −1 and 1."""
    columns = np.linspace(-1, 1, size)
    brightness = np.clip(2 - 8 * np.abs(columns - position[..., None]), 0, 1)
    rows = np.repeat(brightness[..., None, :], size, axis=-2)
    return np.rint(255 * rows).astype(np.uint8)


def push_bar(
    episodes: int = 20, steps: int = 20, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return positions (one more per episode), actions, rewards and ends of random pushes."""
    rng = np.random.default_rng(seed)
    positions = np.empty((episodes, steps + 1))
    positions[:, 0] = rng.uniform(-0.8, 0.8, episodes)
    actions = rng.uniform(-1, 1, (episodes, steps, 1)).astype(np.float32)
    for step in range(steps):
        positions[:, step + 1] = np.clip(positions[:, step] + 0.3 * actions[:, step, 0], -0.8, 0.8)
    ends = np.tile(np.arange(steps) == steps - 1, episodes)
    return positions, actions.reshape(-1, 1), -np.abs(positions[:, 1:]).ravel(), ends


def make_bars(
    episodes: int = 20, steps: int = 20, size: int = SIZE, environment: str | None = None
) -> Dataset:
    """Return a dataset of images of pushed bars."""
    positions, actions, rewards, ends = push_bar(episodes, steps)
    frames = draw_bar(positions, size)
    shape = (-1, size, size)
    return make_dataset(
        frames[:, :-1].reshape(shape),
        actions,
        rewards,
        next_observations=frames[:, 1:].reshape(shape),
        timeouts=ends,
        action_space=Continuous((-1.0,), (1.0,)),
        environment=environment,
    )


def make_robot(episodes: int = 20, steps: int = 20) -> Dataset:
    """Return the same pushes with a dictionary of observations: a camera, and the position."""
    positions, actions, rewards, ends = push_bar(episodes, steps)
    frames = draw_bar(positions)
    before, after = ({"joints": p.ravel()} for p in (positions[:, :-1], positions[:, 1:]))
    before["camera"] = frames[:, :-1].reshape(-1, SIZE, SIZE)
    after["camera"] = frames[:, 1:].reshape(-1, SIZE, SIZE)
    box = Continuous((-1.0,), (1.0,))
    return make_dataset(
        before, actions, rewards, next_observations=after, timeouts=ends, action_space=box
    )


def save_bars(path: Path) -> Path:
    """Write a log of pushed bars as a file of arrays."""
    positions, actions, rewards, ends = push_bar()
    frames = draw_bar(positions[:, :-1]).reshape(-1, SIZE, SIZE)
    names = {"observations": frames, "actions": actions, "rewards": rewards, "timeouts": ends}
    np.savez(path, **names)  # type: ignore[arg-type]
    return path


ENVIRONMENT = "tests/SmallPendulumPixels-v0"
if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(
        ENVIRONMENT,
        "gelato.tasks.pixels:PendulumPixels",
        max_episode_steps=20,
        kwargs={"size": SIZE},
    )


def save_swings(path: Path, episodes: int = 20, steps: int = 20) -> str:
    """Write a log of images of a pendulum under random actions; return its reference."""
    environment, rng = gymnasium.make(ENVIRONMENT), np.random.default_rng(0)
    rows: list[tuple[object, ...]] = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=episode)
        for step in range(steps):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            after, reward, *_ = environment.step(action)
            rows.append((observation, action, reward, after, step == steps - 1))
            observation = after
    names = ("observations", "actions", "rewards", "next_observations", "timeouts")
    columns = zip(*rows, strict=True)
    np.savez(path, **{name: np.array(values) for name, values in zip(names, columns)})  # type: ignore[arg-type]
    return f"file:{path},environment={ENVIRONMENT},low=-2,high=2"
