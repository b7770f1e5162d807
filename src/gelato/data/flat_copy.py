"""A flat copy of a Minari dataset beside it.

Minari keeps each episode as a group of small arrays, which takes over a millisecond an episode to open. A dataset of
many short episodes would cost a minute at every start, so its arrays are kept in one file once they have been read.
"""

from contextlib import suppress
from pathlib import Path

import minari
import numpy as np

from gelato.data.minari_episodes import observation_shape
from gelato.data.spaces import from_gymnasium
from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.whole import whole_file

_COPY = Path(".gelato") / "transitions.npz"
# Below this many episodes, reading them is as quick as reading the copy.
_FROM_EPISODES = 500


def _place(dataset: minari.MinariDataset) -> tuple[Path, str]:
    """Where the flat copy is kept, and the stamp of the data it was made from."""
    data_path = Path(dataset.spec.data_path)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(data_path.iterdir())]
    return data_path.parent / _COPY, repr(("1", stats))


def read_copy(dataset: minari.MinariDataset) -> Transitions | None:
    """The copy's transitions, or None where there is none of the data as it is now."""
    path, stamp = _place(dataset)
    try:
        with np.load(path) as saved:
            if str(saved["stamp"]) != stamp:
                return None
            columns = {name: saved[name] for name in saved.files if name != "stamp"}
    except Exception:  # A damaged copy is as good as none: it is only a copy.
        return None
    source = f"minari:{dataset.spec.dataset_id}"
    return Transitions(
        **columns,
        observation_shape=observation_shape(dataset.observation_space, source),
        action_space=from_gymnasium(dataset.action_space, source),
    )


def write_copy(dataset: minari.MinariDataset, transitions: Transitions) -> None:
    """Keep a copy where it pays."""
    if dataset.total_episodes < _FROM_EPISODES:
        return
    path, stamp = _place(dataset)
    columns = {field: value for field, value in vars(transitions).items() if isinstance(value, np.ndarray)}
    # A read-only or full store costs time at the next start, nothing else.
    with suppress(OSError, InputError):
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as partial:
            np.savez(partial, **columns, stamp=np.array(stamp))  # type: ignore[arg-type]
