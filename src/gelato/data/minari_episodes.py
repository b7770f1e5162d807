"""Write episodes in Minari's HDF5 layout, and collect Minari's episodes into columns."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
from gymnasium import spaces
from jaxtyping import Shaped

from gelato.data.columns import Columns
from gelato.data.generate import Episode
from gelato.data.hdf5 import open_hdf5, read_values, refuse_links
from gelato.data.observations import is_image
from gelato.data.recording import refuse_image
from gelato.data.spaces import Discrete, from_gymnasium
from gelato.errors import InputError
from gelato.runs.memory import check_memory

_MAIN_FILE = "main_data.hdf5"
# Every HDF5 since 2016 reads this format. It is faster and smaller than the oldest one.
_FORMAT = ("v110", "v110")
_IN_MEMORY = {"driver": "core", "backing_store": False, "block_size": 2**24}
# A description of a dataset has room for this many bytes of values.
_SMALL = 32_768


def write_episodes(
    episodes: Iterable[Episode], dataset: minari.MinariDataset
) -> Iterator[minari.EpisodeData]:
    """Write each episode in Minari's HDF5 layout, then yield it.

    Minari's own writer stores every array in resizable chunks. For short episodes it needs ten
    times as long and three times as much space as the plain arrays written here, which Minari reads
    too. The file is built in memory and written at the end, because HDF5 crashes the process if the
    disk fills up while a file is open.
    """
    count = steps = 0
    target = Path(dataset.spec.data_path) / _MAIN_FILE
    # HDF5 refuses a second file with the same name in a process, even in memory.
    with h5py.File(str(target), "w", libver=_FORMAT, track_order=True, **_IN_MEMORY) as file:
        writer = _Writer(file)
        for count, episode in enumerate(episodes, start=1):
            last = np.arange(len(episode)) == len(episode) - 1
            arrays = {
                "observations": episode.observations,
                "actions": episode.actions,
                "rewards": episode.rewards,
                "terminations": last & episode.terminated,
                "truncations": last & (not episode.terminated),
            }
            attributes = {"id": count - 1, "total_steps": len(episode)}
            if episode.seed is not None:
                attributes["seed"] = episode.seed
            writer.write(f"episode_{count - 1}", attributes, arrays)
            steps += len(episode)
            yield minari.EpisodeData(id=count - 1, infos={}, **arrays)
        file.flush()
        target.write_bytes(file.id.get_file_image())
    size = dataset.storage.get_size()
    dataset.storage.update_metadata(
        {"total_episodes": count, "total_steps": steps, "dataset_size": size}
    )


class _Writer:
    """Writes the groups of episodes with h5py's low-level functions.

    They take a third of the time of the high-level ones. Small arrays are stored inside the
    description of their dataset, and equal types and shapes are described once.
    """

    def __init__(self, file: h5py.File) -> None:
        self._file = file.id
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        self._types: dict[np.dtype[Any], h5py.h5t.TypeID] = {}
        self._extents: dict[tuple[int, ...], h5py.h5s.SpaceID] = {}
        # Without times, equal data gives equal files.
        self._group = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        self._large = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._small = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        for properties in (self._group, self._large, self._small):
            properties.set_obj_track_times(False)
        self._small.set_layout(h5py.h5d.COMPACT)

    def write(self, name: str, attributes: dict[str, int], arrays: dict[str, np.ndarray]) -> None:
        """Write the group of an episode with empty infos."""
        group = h5py.h5g.create(self._file, name.encode(), None, self._group)
        for key, value in attributes.items():
            attribute = h5py.h5a.create(group, key.encode(), h5py.h5t.NATIVE_INT64, self._scalar)
            attribute.write(np.array(value))
        h5py.h5g.create(group, b"infos", None, self._group)
        for key, array in arrays.items():
            if array.dtype not in self._types:
                self._types[array.dtype] = h5py.h5t.py_create(array.dtype, logical=True)
            if array.shape not in self._extents:
                self._extents[array.shape] = h5py.h5s.create_simple(array.shape)
            kind, extent = self._types[array.dtype], self._extents[array.shape]
            layout = self._small if array.nbytes <= _SMALL else self._large
            dataset = h5py.h5d.create(group, key.encode(), kind, extent, layout)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))


def read_episodes(dataset: minari.MinariDataset, first: int = 0) -> Iterator[minari.EpisodeData]:
    """Yield the episodes from `first` on without infos, and refuse values from other files.

    Minari's own reader checks nothing and needs more time.
    """
    path, source = Path(dataset.spec.data_path) / _MAIN_FILE, f"minari:{dataset.spec.dataset_id}"
    if not path.exists():  # Minari's other formats are folders of Arrow files.
        yield from dataset.iterate_episodes(range(first, int(dataset.total_episodes)))
        return
    stored = path.stat().st_size
    with open_hdf5(path, f"{source}: {path.name}") as file:
        refuse_links(file, path, source)
        for number in range(first, int(dataset.total_episodes)):
            name = f"episode_{number}"
            group, what = h5py.h5g.open(file.id, name.encode()), f"{source}: {name}"
            arrays = {
                field: _read_space(group, field, space, what, stored)
                for field, space in (
                    ("observations", dataset.observation_space),
                    ("actions", dataset.action_space),
                    *((field, None) for field in ("rewards", "terminations", "truncations")),
                )
            }
            yield minari.EpisodeData(id=number, infos={}, **arrays)


def _read_space(
    group: h5py.h5g.GroupID,
    name: str,
    space: gymnasium.Space[Any] | None,
    what: str,
    stored: int,
) -> Any:
    """Read the values of a space: an array, or groups of arrays for dictionaries and tuples."""
    what = f"{what}/{name}"
    if isinstance(space, spaces.Dict):
        inside = h5py.h5g.open(group, name.encode())
        parts = space.spaces.items()
        return {key: _read_space(inside, key, part, what, stored) for key, part in parts}
    if isinstance(space, spaces.Tuple):
        inside = h5py.h5g.open(group, name.encode())
        numbered = enumerate(space.spaces)
        return tuple(_read_space(inside, f"_index_{i}", p, what, stored) for i, p in numbered)
    return read_values(group, name, what, stored)


def collect(
    episodes: Iterable[minari.EpisodeData], steps: int, dataset: minari.MinariDataset
) -> Columns:
    """Collect all episodes in one set of arrays."""
    source = f"minari:{dataset.spec.dataset_id}"
    if steps == 0:
        raise InputError(f"{source}: the dataset has no transitions")
    action_space = from_gymnasium(dataset.action_space, source)
    shape = observation_shape(dataset.observation_space, source)
    action_shape = () if isinstance(action_space, Discrete) else (action_space.size,)
    kind = np.dtype(np.uint8 if holds_image(dataset.observation_space) else np.float32)
    row = 2 * kind.itemsize * math.prod(shape) + 4 * math.prod(action_shape)
    check_memory(f"{source}: its {steps:,} steps", claimed := steps * row, claimed)
    states = np.empty((steps, *shape), kind)
    next_states = np.empty_like(states)
    # Discrete actions and flags stay floats, so that `assemble` can check for other values.
    actions = np.empty((steps, *action_shape), np.float32 if action_shape else np.float64)
    rewards, terminals, timeouts = (np.empty(steps, np.float32) for _ in range(3))
    start = 0
    for number, episode in enumerate(episodes):
        where = f"{source}: episode {number}"
        length = len(np.atleast_1d(episode.rewards))
        rows = slice(start, start + length)
        start = rows.stop
        if length == 0 or start > steps:
            raise InputError(
                f"{where} has {length} steps, but the metadata counts {steps} in total; the "
                "dataset is damaged"
            )
        observations = _flatten(dataset.observation_space, episode.observations, where)
        observations = _check_shape(observations, (length + 1, *shape), "observations", where)
        states[rows], next_states[rows] = observations[:-1], observations[1:]
        actions[rows] = _check_shape(episode.actions, (length, *action_shape), "actions", where)
        rewards[rows] = _check_shape(episode.rewards, (length,), "rewards", where)
        terminals[rows] = _check_shape(episode.terminations, (length,), "terminations", where)
        timeouts[rows] = _check_shape(episode.truncations, (length,), "truncations", where)
        # An episode without an end flag is truncated at its last step.
        if not terminals[rows.stop - 1]:
            timeouts[rows.stop - 1] = 1
    if start != steps:
        raise InputError(
            f"{source}: the metadata gives {steps} steps, but the episodes contain {start}; the "
            "dataset is damaged"
        )
    if isinstance(dataset.action_space, spaces.Discrete):
        actions -= int(dataset.action_space.start)
    return Columns(source, states, actions, rewards, next_states, terminals, timeouts, action_space)


def observation_shape(space: gymnasium.Space[Any], source: str) -> tuple[int, ...]:
    """Return the shape of an observation; dictionaries and tuples become one vector."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        if not holds_image(space):
            refuse_image(space.dtype, space.shape, f"{source}: observations")
        return tuple(space.shape)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return (sum(int(np.prod(observation_shape(part, source))) for part in parts),)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return (int(spaces.flatdim(space)),)
    raise InputError(
        f"{source}: observations of type {type(space).__name__} are not supported; they must have "
        "a fixed number of values"
    )


def holds_image(space: gymnasium.Space[Any]) -> bool:
    """Return whether observations of a space are images."""
    return isinstance(space, spaces.Box) and is_image(space.dtype, space.shape)


def name_observations(space: gymnasium.Space[Any], source: str) -> tuple[str, ...]:
    """Return a name for every value of a dictionary's observations; nothing for other spaces."""
    if not isinstance(space, spaces.Dict):
        return ()
    names: list[str] = []
    for key, part in space.spaces.items():
        inside = name_observations(part, source)
        width = int(np.prod(observation_shape(part, source)))
        if inside:
            names += [f"{key}.{name}" for name in inside]
        else:
            names += [key] if width == 1 else [f"{key}[{place}]" for place in range(width)]
    return tuple(names)


def _flatten(space: gymnasium.Space[Any], values: Any, where: str) -> Shaped[np.ndarray, "..."]:
    """Return the observations of an episode as one array; integers become one-hot."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = [_flatten(part, values[name], where) for name, part in named]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes = np.atleast_1d(
            space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
        ).ravel()
        choices = np.asarray(values).reshape(-1, len(sizes)) - np.asarray(space.start).ravel()
        if not (np.equal(choices, np.round(choices)) & (choices >= 0) & (choices < sizes)).all():
            raise InputError(f"{where}: observations holds a value outside {space}")
        columns = []
        for i, size in enumerate(sizes):
            column = np.zeros((len(choices), size), np.float32)
            column[np.arange(len(choices)), choices[:, i].astype(int)] = 1
            columns.append(column)
        return np.concatenate(columns, axis=1)
    return np.asarray(values)


def _check_shape(
    values: Any, shape: tuple[int, ...], field: str, where: str
) -> Shaped[np.ndarray, "..."]:
    """Return values as an array of this shape; a trailing axis of length one is allowed."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{where}: {field} holds {array.dtype}, not real numbers")
    if array.shape == shape:
        return array
    if array.shape in ((*shape, 1), shape[:1] + shape[2:] if shape[1:2] == (1,) else None):
        return array.reshape(shape)
    raise InputError(f"{where}: {field} has shape {array.shape}, it must have {shape}")
