"""Read files of transitions: D4RL's HDF5 layouts (v0, v1, v2) and plain .npz, .hdf5 and .h5."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gelato.data.columns import Columns, assemble
from gelato.data.hdf5 import list_datasets, open_hdf5, read_dataset
from gelato.data.spaces import ActionSpace, Continuous
from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.npz import open_arrays
from gelato.tasks.task import find_task

# The usual names of each field, most common first.
FIELD_NAMES = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews"),
    "next_observations": (
        "next_observations",
        "next_observation",
        "next_obs",
        "next_states",
        "next_state",
    ),
    "terminals": ("terminals", "terminations", "terminated", "terminal", "dones"),
    "timeouts": ("timeouts", "truncations", "truncated", "episode_terminals"),
    "action_probabilities": ("action_probabilities", "action_probability", "action_prob"),
}
FILE_TYPES = (".npz", ".hdf5", ".h5")
_REQUIRED = ("observations", "actions", "rewards")
# Warn if single precision divides the range of a column into fewer steps than this.
_FEWEST_STEPS = 1_000
# Largest number of a file's fields that an error lists.
_MOST_NAMED = 20

Read = Callable[[str], np.ndarray]


def load_d4rl(path: Path) -> Transitions:
    """Read a D4RL HDF5 file of any layout; actions of these tasks lie in `[−1, 1]`."""
    with _open(path) as (names, read):
        columns = _columns(path, names, read, {})
    task = find_task(path.name)
    if task is not None:
        columns.episode_limit = task.steps
    columns.action_space = _of_every_dimension(Continuous((-1.0,), (1.0,)), columns)
    return assemble(columns)


def load_file(
    path: Path, names: Mapping[str, str] | None = None, action_space: ActionSpace | None = None
) -> Transitions:
    """Read a plain file; `names` maps our field names to unusual names in the file."""
    with _open(path) as (available, read):
        columns = _columns(path, available, read, names or {})
    columns.action_space = _of_every_dimension(action_space, columns)
    return assemble(columns)


def _of_every_dimension(space: ActionSpace | None, columns: Columns) -> ActionSpace | None:
    """Use a range of one number for all action dimensions; `assemble` checks other cases."""
    if not isinstance(space, Continuous) or space.size > 1:
        return space
    size = math.prod(columns.actions.shape[1:])
    return Continuous(space.low * size, space.high * size)


def _columns(path: Path, available: set[str], read: Read, names: Mapping[str, str]) -> Columns:
    chosen = {}
    for field, usual in FIELD_NAMES.items():
        candidates = (names[field],) if field in names else usual
        found = next((name for name in candidates if name in available), None)
        if found is None and (field in _REQUIRED or field in names):
            shown = sorted(available)[:_MOST_NAMED]
            present = (
                ", ".join([*shown, "…"] if len(available) > len(shown) else shown) or "no fields"
            )
            raise InputError(
                f"{path}: no field {' or '.join(candidates)}; the file has {present}. "
                f"Name the field with ,{field}=NAME after the path"
            )
        chosen[field] = found
    observations, actions, rewards = (read(str(chosen[field])) for field in _REQUIRED)
    optional = {
        field: read(name)
        for field, name in chosen.items()
        if name is not None and field not in _REQUIRED
    }
    return Columns(str(path), observations, actions, rewards, **optional)  # type: ignore[arg-type]


@contextmanager
def _open(path: Path) -> Iterator[tuple[set[str], Read]]:
    """Yield the names of a file's arrays and a function that reads one."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the file inside it")
    if not path.is_file():
        raise InputError(f"{path}: is not a plain file; copy its content into one")
    kind = path.suffix.lower()
    if kind == ".npz":
        with _open_npz(path) as opened:
            yield opened
    elif kind in (".hdf5", ".h5"):
        with _open_hdf5(path) as opened:
            yield opened
    else:
        raise InputError(
            f"{path}: unknown file type {path.suffix or '(none)'}; use .npz, .hdf5 or .h5"
        )


@contextmanager
def _open_npz(path: Path) -> Iterator[tuple[set[str], Read]]:
    with open_arrays(path) as arrays:
        yield (
            set(arrays.members),
            lambda name: _compact(arrays.read(name), f"{path}: {name}"),
        )


@contextmanager
def _open_hdf5(path: Path) -> Iterator[tuple[set[str], Read]]:
    with open_hdf5(path) as file:
        yield (
            list_datasets(file, path),
            lambda name: _compact(read_dataset(file, name, path), f"{path}: {name}"),
        )


def _compact(array: np.ndarray, what: str) -> np.ndarray:
    """Convert doubles to single precision early, so that large columns fit into memory."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        if array.ndim and array.size:
            _say_if_coarse(array.min(axis=0).ravel(), array.max(axis=0).ravel(), what)
        return array.astype(np.float32)


def _say_if_coarse(low: np.ndarray, high: np.ndarray, what: str) -> None:
    """Warn about a column that single precision cannot resolve, such as a date in seconds."""
    width, step = high - low, np.spacing(np.maximum(-low, high).astype(np.float32))
    for column in np.flatnonzero((width > 0) & (width < _FEWEST_STEPS * step))[:1]:
        note(
            f"{what}: column {column} varies by {width[column]:.3g}, but single precision stores "
            f"its values in steps of {step[column]:.2g}. Subtract the first value from the whole "
            "column before you save the file"
        )
