"""An episode as a video."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gelato.errors import InputError, import_extra
from gelato.policy.evaluate import record_frames
from gelato.policy.policy import DeployedPolicy
from gelato.runs.files import write_atomically
from gelato.tasks.task import find_task

_MILLISECONDS = 33.0
_MOST_FRAMES = 300


def check_video(path: Path | None) -> None:
    """Raise an error early if no video can be written to the path."""
    if path is None:
        return
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"{path}: a video file must end in .gif or .mp4")
    if path.suffix == ".mp4":
        _import_ffmpeg(path)


def write_video(policy: DeployedPolicy, environment: str, path: Path) -> None:
    """Write one episode of a policy; a long episode is reduced to at most 300 frames."""
    frames = record_frames(environment, policy)
    task = find_task(environment)
    every = -(-len(frames) // _MOST_FRAMES)
    frames, milliseconds = frames[::every], _MILLISECONDS
    if task is not None and task.frames_per_second is not None:
        # With every frame of the simulation the video runs in real time.
        milliseconds = 1000 / task.frames_per_second * every
    with write_atomically(path) as partial:
        (_write_mp4 if path.suffix == ".mp4" else _write_gif)(partial, frames, milliseconds)


def _write_mp4(path: Path, frames: Sequence[np.ndarray], milliseconds: float) -> None:
    ffmpeg, size = _import_ffmpeg(path), frames[0].shape[1::-1]
    writer = ffmpeg.write_frames(str(path), size, fps=1000 / milliseconds)
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _write_gif(path: Path, frames: Sequence[np.ndarray], milliseconds: float) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=round(milliseconds), loop=0
    )


def _import_ffmpeg(path: Path) -> Any:
    try:
        return import_extra("imageio_ffmpeg", "video")
    except InputError as error:
        raise InputError(f"{path}: {error}. Or write a .gif") from error
