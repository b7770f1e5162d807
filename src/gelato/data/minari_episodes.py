"""Write episodes in Minari's HDF5 layout, and collect Minari's episodes into columns."""

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
from gelato.data.spaces import Discrete, from_gymnasium
from gelato.errors import InputError


def write_episodes(
    episodes: Iterable[Episode], dataset: minari.MinariDataset
) -> Iterator[minari.EpisodeData]:
    """Write each episode in Minari's HDF5 layout, then yield it.

    Minari's own writer stores every array in resizable chunks. For short episodes it needs four
    times as long and three times as much space as the plain arrays written here, which Minari reads
    too. The file is built in memory and written at the end, because HDF5 crashes the process if the
    disk fills up while a file is open.
    """
    count = steps = 0
    with h5py.File(
        "episodes", "w", driver="core", backing_store=False, block_size=2**24, track_order=True
    ) as file:
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
            _write_group(file, f"episode_{count - 1}", attributes, arrays)
            steps += len(episode)
            yield minari.EpisodeData(id=count - 1, infos={}, **arrays)
        file.flush()
        (Path(dataset.spec.data_path) / "main_data.hdf5").write_bytes(file.id.get_file_image())
    size = dataset.storage.get_size()
    dataset.storage.update_metadata(
        {"total_episodes": count, "total_steps": steps, "dataset_size": size}
    )


def _write_group(
    file: h5py.File, name: str, attributes: dict[str, int], arrays: dict[str, np.ndarray]
) -> None:
    """Write the group of an episode with empty infos.

    h5py's low-level functions take half the time of its high-level ones.
    """
    group = h5py.h5g.create(file.id, name.encode())
    for key, value in attributes.items():
        scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(group, key.encode(), h5py.h5t.NATIVE_INT64, scalar).write(np.array(value))
    h5py.h5g.create(group, b"infos")
    for key, array in arrays.items():
        kind, extent = (
            h5py.h5t.py_create(array.dtype, logical=True),
            h5py.h5s.create_simple(array.shape),
        )
        dataset = h5py.h5d.create(group, key.encode(), kind, extent)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))


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
    states = np.empty((steps, *shape), np.float32)
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
        columns = [
            np.eye(size, dtype=np.float32)[choices[:, i].astype(int)]
            for i, size in enumerate(sizes)
        ]
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
