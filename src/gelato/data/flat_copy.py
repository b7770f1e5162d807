"""Store a flat copy next to a Minari dataset, which is faster to read.

Minari stores each episode as a group of small arrays and needs over a millisecond to open it.
Reading many short episodes would take a minute at every start. The first read therefore stores all
arrays in one file.
"""

from contextlib import suppress
from pathlib import Path

import minari
import numpy as np

from gelato.data.minari_episodes import observation_shape
from gelato.data.spaces import from_gymnasium
from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.runs.files import write_atomically

_COPY = Path(".gelato") / "transitions.npz"
# With fewer episodes, reading them is as fast as reading a copy.
_FROM_EPISODES = 500


def _place(dataset: minari.MinariDataset) -> tuple[Path, str]:
    """Return the path of the flat copy, and a stamp that changes with the data."""
    data_path = Path(dataset.spec.data_path)
    stats = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(data_path.iterdir())
    ]
    return data_path.parent / _COPY, repr(("1", stats))


def read_copy(dataset: minari.MinariDataset) -> Transitions | None:
    """Return the transitions of the copy, or None if it is missing, damaged or outdated."""
    path, stamp = _place(dataset)
    try:
        with np.load(path) as saved:
            if str(saved["stamp"]) != stamp:
                return None
            columns = {name: saved[name] for name in saved.files if name != "stamp"}
    except Exception:  # Ignore a damaged copy; the dataset itself is read instead.
        return None
    source = f"minari:{dataset.spec.dataset_id}"
    return Transitions(
        **columns,
        observation_shape=observation_shape(dataset.observation_space, source),
        action_space=from_gymnasium(dataset.action_space, source),
    )


def write_copy(dataset: minari.MinariDataset, transitions: Transitions) -> None:
    """Write a copy if the dataset has enough episodes to benefit from it."""
    if dataset.total_episodes < _FROM_EPISODES:
        return
    path, stamp = _place(dataset)
    columns = {
        field: value for field, value in vars(transitions).items() if isinstance(value, np.ndarray)
    }
    # If the store is read-only or full, the next start is slower, but nothing is lost.
    with suppress(OSError, InputError):
        path.parent.mkdir(exist_ok=True)
        with write_atomically(path) as partial:
            np.savez(partial, **columns, stamp=np.array(stamp))  # type: ignore[arg-type]
