"""Store a flat copy next to a Minari dataset, which is faster to read.

Minari stores each episode as a group of small arrays and needs over a millisecond to open it.
Reading many short episodes would take a minute at every start. The first read therefore stores all
arrays in one file.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import minari
import numpy as np

from gelato.data.minari_episodes import holds_image, observation_shape
from gelato.data.spaces import Discrete, from_gymnasium
from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.runs.files import digest_file, write_atomically
from gelato.runs.npz import read_arrays

_COPY = Path(".gelato") / "transitions.npz"
# With fewer episodes, reading them is as fast as reading a copy.
_FROM_EPISODES = 500


def _place(dataset: minari.MinariDataset) -> tuple[Path, list[Path]]:
    """Return the path of the flat copy, and the files that it copies."""
    data_path = Path(dataset.spec.data_path)
    files = [file for file in sorted(data_path.iterdir()) if file.is_file()]
    return data_path.parent / _COPY, files


def _stamp(files: Sequence[Path]) -> str:
    """Return what changes when files change. A program cannot restore the third time of a file."""
    stats = [(file.name, file.stat()) for file in files]
    times = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in stats]
    return repr(("2", times))


def _digest(files: Sequence[Path]) -> str:
    return repr([(file.name, *digest_file(file)) for file in files])


def read_copy(dataset: minari.MinariDataset) -> Transitions | None:
    """Return the transitions of the copy, or None if it is missing, damaged or outdated.

    Where only the times of the data changed, as after copying it, its content decides.
    """
    path, files = _place(dataset)
    source = f"minari:{dataset.spec.dataset_id}"
    try:
        saved: dict[str, Any] = dict(read_arrays(path))
        stamp, digest = str(saved.pop("stamp")), str(saved.pop("digest"))
        moved = stamp != _stamp(files)
        if moved and digest != _digest(files):
            return None
        shape = observation_shape(dataset.observation_space, source)
        transitions = Transitions(
            **saved,
            observation_shape=shape,
            images=(shape,) if holds_image(dataset.observation_space) else (),
            action_space=from_gymnasium(dataset.action_space, source),
            reward_code="",
        )
        if not _is_whole(transitions, dataset.total_steps):
            return None
    except Exception:  # Ignore a damaged copy; the dataset itself is read instead.
        return None
    if moved:
        write_copy(dataset, transitions)
    return transitions


def _is_whole(transitions: Transitions, steps: int) -> bool:
    """Return whether the columns have the types and shapes that a reader would give them."""
    size = int(np.prod(transitions.observation_shape))
    space, kind = transitions.action_space, np.uint8 if transitions.images else np.float32
    discrete = isinstance(space, Discrete)
    expected = {
        "states": (kind, (steps, size)),
        "actions": (np.int32, (steps,)) if discrete else (np.float32, (steps, space.size)),
        "rewards": (np.float32, (steps,)),
        "next_states": (kind, (steps, size)),
        "terminated": (np.bool_, (steps,)),
        "truncated": (np.bool_, (steps,)),
        "has_successor": (np.bool_, (steps,)),
    }
    for name, (dtype, shape) in expected.items():
        column = getattr(transitions, name)
        if column.dtype != dtype or column.shape != shape:
            return False
    return True


def write_copy(dataset: minari.MinariDataset, transitions: Transitions) -> None:
    """Write a copy if the dataset has enough episodes to benefit from it."""
    if dataset.total_episodes < _FROM_EPISODES:
        return
    path, files = _place(dataset)
    columns = {
        field: value for field, value in vars(transitions).items() if isinstance(value, np.ndarray)
    }
    # If the store is read-only or full, the next start is slower, but nothing is lost.
    with suppress(OSError, InputError):
        path.parent.mkdir(exist_ok=True)
        if path.parent.is_symlink():
            return
        marks = {"stamp": np.array(_stamp(files)), "digest": np.array(_digest(files))}
        with write_atomically(path) as partial:
            np.savez(partial, **columns, **marks)  # type: ignore[arg-type]
