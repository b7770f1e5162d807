"""Take pictures of one episode of driving data by replaying its seed and actions."""

from typing import Any

import minari
import numpy as np

from gelato.data.named import resolve_named
from gelato.data.sources import parse_reference
from gelato.data.transitions import Dataset, choose_evenly
from gelato.progress import note
from gelato.report.embedding_figure import Pictures
from gelato.tasks import make_environment
from gelato.tasks.task import find_task

PICTURES = 5


def replay_episode(dataset: Dataset) -> Pictures | None:
    """Replay the longest episode of a named driving dataset and take pictures.

    Return None, with a note, if the dataset has no seeds or the simulator gives different states.
    """
    task = find_task(dataset.environment)
    if task is None:
        return None
    reference = parse_reference(dataset.reference)
    if reference.source != "named":
        note(f"{dataset.reference}: no pictures; only named datasets store the seeds of episodes")
        return None
    slices = dataset.transitions.episode_slices
    longest = max(range(len(slices)), key=lambda index: slices[index].stop - slices[index].start)
    recorded = minari.load_dataset(resolve_named(reference).dataset_id)
    episode: Any = next(recorded.iterate_episodes([longest]))
    seed: Any = next(iter(recorded.storage.get_episode_metadata([longest])))["seed"]
    offsets = choose_evenly(episode.actions, PICTURES)
    environment: Any = make_environment(task.environment, render_mode="rgb_array")
    observation, _ = environment.reset(seed=int(seed))
    frames = []
    for step, action in enumerate(episode.actions):
        if not np.allclose(observation, episode.observations[step], atol=1e-5):
            note(
                f"{dataset.reference}: no pictures, because the installed highway-env gives other "
                "states than the version that made the data"
            )
            return None
        if step in offsets:
            frames.append(environment.render())
        observation = environment.step(action)[0]
    environment.close()
    return Pictures(slices[longest].start + offsets, frames)
