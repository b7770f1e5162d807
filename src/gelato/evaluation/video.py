"""An episode as a moving picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gelato.envs.driving import driving_task
from gelato.errors import InputError
from gelato.evaluation.deployed import DeployedPolicy
from gelato.evaluation.rollout import record_frames
from gelato.whole import whole_file

_MILLISECONDS = 33.0
_MOST_FRAMES = 300


def check_video(path: Path | None) -> None:
    """Refuse what is no video, or none that can be made here, before anything is computed."""
    if path is None:
        return
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"{path}: a video is .gif or .mp4")
    if path.suffix == ".mp4":
        _ffmpeg(path)


def write_video(policy: DeployedPolicy, environment: str, path: Path) -> None:
    """One episode of a policy; a long one is thinned to a few hundred pictures."""
    frames = record_frames(environment, policy)
    task = driving_task(environment)
    # On a road every picture of the simulation is there: as fast as it drives.
    milliseconds = _MILLISECONDS if task is None else 1000 / task.settings["simulation_frequency"]
    thinned = -(-len(frames) // _MOST_FRAMES)
    frames, milliseconds = frames[::thinned], milliseconds if task is None else milliseconds * thinned
    with whole_file(path) as partial:
        (_write_mp4 if path.suffix == ".mp4" else _write_gif)(partial, frames, milliseconds)


def _write_mp4(path: Path, frames: Sequence[np.ndarray], milliseconds: float) -> None:
    writer = _ffmpeg(path).write_frames(str(path), frames[0].shape[1::-1], fps=1000 / milliseconds)
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _write_gif(path: Path, frames: Sequence[np.ndarray], milliseconds: float) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=round(milliseconds), loop=0)


def _ffmpeg(path: Path) -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise InputError(f"{path}: .mp4 needs pip install 'gelato-rl[video]'; .gif works without") from error
    return imageio_ffmpeg
