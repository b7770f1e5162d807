"""Logs of Pendulum: small, quick to make, and with returns that change with every update."""

from pathlib import Path

import gymnasium
import numpy as np


def write_log(path: Path, seed: int = 0, episodes: int = 2, steps: int = 60) -> Path:
    """Write episodes of random actions as a file of arrays."""
    environment, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    rows: list[tuple[object, ...]] = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=episodes * seed + episode)
        for step in range(steps):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            after, reward, *_ = environment.step(action)
            rows.append((observation, action, reward, step == steps - 1))
            observation = after
    names = ("observations", "actions", "rewards", "truncations")
    columns = zip(*rows, strict=True)
    np.savez(path, **{name: np.array(values) for name, values in zip(names, columns)})  # type: ignore[arg-type]
    return path


def make_reference(log: Path) -> str:
    """Return the reference to such a log."""
    return f"file:{log},environment=Pendulum-v1,low=-2,high=2"
