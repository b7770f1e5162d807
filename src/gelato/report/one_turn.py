"""Pictures of one episode of driving data, drawn by driving it again: same seed, same actions."""

from dataclasses import dataclass
from typing import Any

import minari
import numpy as np
from jaxtyping import Int

from gelato.data.reference import parse, resolve
from gelato.data.transitions import Dataset, evenly
from gelato.envs import make_environment
from gelato.envs.driving import driving_task
from gelato.progress import note

PICTURES = 5


@dataclass(frozen=True)
class Turn:
    """Rows of the data, spread evenly over one episode, and what they look like from above."""

    rows: Int[np.ndarray, " pictures"]
    frames: list[np.ndarray]


def one_turn(dataset: Dataset) -> Turn | None:
    """The longest episode of a named driving dataset; None, with a note, where it cannot be driven again."""
    task = driving_task(dataset.environment)
    if task is None:
        return None
    reference = parse(dataset.reference)
    if reference.scheme != "named":
        note(f"{dataset.reference}: no seeds of episodes are known, so there are no pictures")
        return None
    slices = dataset.transitions.episode_slices
    longest = max(range(len(slices)), key=lambda index: slices[index].stop - slices[index].start)
    recorded = minari.load_dataset(resolve(reference).dataset_id)
    episode: Any = next(recorded.iterate_episodes([longest]))
    seed: Any = next(iter(recorded.storage.get_episode_metadata([longest])))["seed"]
    offsets = evenly(episode.actions, PICTURES)
    environment: Any = make_environment(task.environment, render_mode="rgb_array")
    seen, _ = environment.reset(seed=int(seed))
    frames = []
    for step, action in enumerate(episode.actions):
        if not np.allclose(seen, episode.observations[step], atol=1e-5):
            note(f"{dataset.reference}: this highway-env drives otherwise than the one that made the data; no pictures")
            return None
        if step in offsets:
            frames.append(environment.render())
        seen = environment.step(action)[0]
    environment.close()
    return Turn(slices[longest].start + offsets, frames)
