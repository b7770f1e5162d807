"""Minari's local store: datasets written whole or not at all, and read into `Transitions`.

Minari keeps each episode as a group of small arrays, which takes over a millisecond an episode to open. A dataset of
many short episodes would cost a minute at every start, so the flat arrays are kept beside it once they have been read.
"""

import logging
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
from jaxtyping import Shaped
from minari.dataset.minari_dataset import parse_dataset_id
from minari.storage import get_dataset_path

from gelato.data.columns import Columns, assemble
from gelato.data.generate import Episode
from gelato.data.spaces import Discrete, from_gymnasium, to_gymnasium
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError
from gelato.progress import Advance, progress, working

_PARTIAL = ".gelato-partial-"
_CACHE = Path(".gelato") / "transitions.npz"
# Below this many episodes, reading them is as quick as reading the flat copy.
_CACHE_FROM_EPISODES = 500


def store_root() -> Path:
    """Where Minari keeps its datasets: `MINARI_DATASETS_PATH`, or its folder in the home directory."""
    return Path(get_dataset_path())


def exists(dataset_id: str) -> bool:
    """Whether the store holds a dataset of that id."""
    return (store_root() / dataset_id / "data").exists()


def checked_id(name: str) -> str:
    """A new dataset's full Minari id, `-v0` added where no version is given."""
    versioned = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    try:
        parse_dataset_id(versioned)
    except ValueError as error:
        raise InputError(f"{name!r} is not a Minari id; use letters, digits, - and _ such as mine/log-v0") from error
    if exists(versioned):
        raise InputError(f"minari:{versioned} exists already; choose another name or a higher version")
    return versioned


def write(dataset_id: str, episodes: Iterable[Episode], steps: int, **description: Any) -> None:
    """Write episodes of `steps` steps in all as a Minari dataset.

    `description` goes to `minari.create_dataset_from_buffers`. The dataset appears under its name only when it is
    whole: it is written to a hidden folder of the same store, which Minari does not list, and moved into place last.
    """
    target = store_root() / dataset_id
    with _partial_store() as partial:
        with warnings.catch_warnings():
            # Minari warns of each piece of metadata that is left out (author's address, permanent link, …).
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(dataset_id, [], jpeg_encoding=False, **description)
        transitions = assemble(_collect(_recorded(episodes, dataset), steps, dataset))
        _write_flat(minari.load_dataset(dataset_id), transitions)
        target.parent.mkdir(parents=True, exist_ok=True)
        _adopt_namespaces(partial, dataset_id)
        if not target.exists():  # Another process may have made the same dataset meanwhile.
            (partial / dataset_id).rename(target)


def write_transitions(dataset_id: str, dataset: Dataset, description: str) -> Transitions:
    """Write transitions as a Minari dataset, without the rows whose successor is unknown; returns what was written."""
    transitions = dataset.transitions.with_successors()
    if len(transitions) == 0:
        raise InputError(f"{dataset.reference}: no step has a successor, so there is nothing to import")
    shape = transitions.observation_shape
    spaces = {
        "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32),
        "action_space": to_gymnasium(transitions.action_space),
    }
    slices = transitions.episode_slices
    with progress("importing", len(transitions)) as advance:

        def episodes() -> Iterator[Episode]:
            for rows in slices:
                part = transitions[rows]
                observations = np.concatenate([part.states, part.next_states[-1:]]).reshape(-1, *shape)
                advance(len(part))
                terminated = bool(part.terminated[-1])
                yield Episode(observations, np.asarray(part.actions), np.asarray(part.rewards), terminated, seed=None)

        write(dataset_id, episodes(), len(transitions), description=description, **spaces)
    return transitions


def read(dataset_id: str, *, download: bool = True) -> Dataset:
    """Read a Minari dataset, from the local store or else from Minari's remote."""
    dataset = _open(dataset_id, download=download)
    environment = dataset.env_spec.id if dataset.env_spec is not None else None
    transitions = _read_flat(dataset)
    if transitions is None:
        transitions = _read_episodes(dataset)
        _write_flat(dataset, transitions)
    return Dataset(f"minari:{dataset_id}", environment, transitions)


def _read_episodes(dataset: minari.MinariDataset) -> Transitions:
    steps, dataset_id = int(dataset.total_steps), dataset.spec.dataset_id
    try:
        with progress(f"reading {dataset_id}", steps) as advance:
            episodes = (_counted(episode, advance) for episode in dataset.iterate_episodes())
            return assemble(_collect(episodes, steps, dataset))
    except (OSError, KeyError) as error:
        raise InputError(f"minari:{dataset_id}: its episodes cannot be read ({_one_line(error)})") from error


def _open(dataset_id: str, *, download: bool) -> minari.MinariDataset:
    try:
        if download and not exists(dataset_id):
            _download(dataset_id)
        return minari.load_dataset(dataset_id)
    except FileNotFoundError as error:
        raise InputError(f"minari:{dataset_id}: not in the local store {store_root()}") from error
    except InputError:
        raise
    except Exception as error:  # Minari raises bare exceptions of many kinds for a damaged dataset.
        raise InputError(f"minari:{dataset_id}: Minari cannot open it ({_one_line(error)})") from error


def _download(dataset_id: str) -> None:
    # The remote client reports each of its retries; what matters is how they end.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        with working(f"asking Minari's remote for {dataset_id}"):
            minari.download_dataset(dataset_id)
    except Exception as error:  # The remote clients raise their own exceptions, which are not ours to enumerate.
        raise InputError(
            f"minari:{dataset_id}: not in the local store {store_root()}, and the download failed "
            f"({_one_line(error)}); check the id and the connection"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _recorded(episodes: Iterable[Episode], dataset: minari.MinariDataset) -> Iterator[minari.EpisodeData]:
    """Write each episode in Minari's HDF5 layout and pass it on.

    Minari's own writer stores every array in resizable chunks: for short episodes, four times the time and three
    times the bytes of the plain arrays written here, which its reader takes just as well. The file is built in
    memory and written last: HDF5 brings the process down when a disk fills up under a file that is open.
    """
    count = steps = 0
    with h5py.File("episodes", "w", driver="core", backing_store=False, block_size=2**24, track_order=True) as file:
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
    dataset.storage.update_metadata({"total_episodes": count, "total_steps": steps, "dataset_size": size})


def _write_group(file: h5py.File, name: str, attributes: dict[str, int], arrays: dict[str, np.ndarray]) -> None:
    """An episode's group, its infos empty, through h5py's low-level calls: half the time of its high-level ones."""
    group = h5py.h5g.create(file.id, name.encode())
    for key, value in attributes.items():
        scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(group, key.encode(), h5py.h5t.NATIVE_INT64, scalar).write(np.array(value))
    h5py.h5g.create(group, b"infos")
    for key, array in arrays.items():
        kind, extent = h5py.h5t.py_create(array.dtype, logical=True), h5py.h5s.create_simple(array.shape)
        dataset = h5py.h5d.create(group, key.encode(), kind, extent)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))


def _counted(episode: minari.EpisodeData, advance: Advance) -> minari.EpisodeData:
    advance(len(episode.rewards))
    return episode


@contextmanager
def _partial_store() -> Iterator[Path]:
    """A hidden folder of the store that Minari takes for the whole of it meanwhile; removed at the end in any case."""
    root, before = store_root(), os.environ.get("MINARI_DATASETS_PATH")
    for stale in root.glob(f"{_PARTIAL}*"):
        if not _is_alive(int(stale.name.removeprefix(_PARTIAL).split("-")[0])):
            shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=root))
    os.environ["MINARI_DATASETS_PATH"] = str(partial)
    try:
        yield partial
    finally:
        os.environ.pop("MINARI_DATASETS_PATH")
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before
        shutil.rmtree(partial, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _adopt_namespaces(partial: Path, dataset_id: str) -> None:
    """Move Minari's description of each namespace above the dataset, where the store has none yet."""
    for parent in (partial / dataset_id).relative_to(partial).parents:
        for description in (partial / parent).glob("*.json"):
            adopted = partial.parent / description.relative_to(partial)
            if not adopted.exists():
                description.rename(adopted)


def _collect(episodes: Iterable[minari.EpisodeData], steps: int, dataset: minari.MinariDataset) -> Columns:
    """All episodes in one set of arrays, allocated once."""
    source = f"minari:{dataset.spec.dataset_id}"
    if steps == 0:
        raise InputError(f"{source}: the dataset holds no transitions")
    action_space = from_gymnasium(dataset.action_space, source)
    discrete = isinstance(action_space, Discrete)
    shape = _observation_shape(dataset.observation_space, source)
    states = np.empty((steps, *shape), np.float32)
    next_states = np.empty_like(states)
    actions = np.empty(steps, np.int32) if discrete else np.empty((steps, action_space.size), np.float32)
    rewards = np.empty(steps, np.float32)
    terminals, timeouts = np.zeros(steps, bool), np.zeros(steps, bool)
    start = 0
    for number, episode in enumerate(episodes):
        rows = slice(start, start + len(episode.rewards))
        start = rows.stop
        observations = _flatten(dataset.observation_space, episode.observations).reshape(-1, *shape)
        if not len(episode.rewards) or len(observations) != len(episode.rewards) + 1 or start > steps:
            raise InputError(
                f"{source}: episode {number} has {len(observations)} observations for {len(episode.rewards)} steps; "
                "it must have at least one step, and one observation more than steps"
            )
        states[rows], next_states[rows] = observations[:-1], observations[1:]
        actions[rows] = np.asarray(episode.actions).reshape(actions[rows].shape)
        rewards[rows] = episode.rewards
        terminals[rows], timeouts[rows] = episode.terminations, episode.truncations
        # An episode that simply stops being recorded is truncated there.
        timeouts[rows.stop - 1] |= not terminals[rows.stop - 1]
    if start != steps:
        raise InputError(f"{source}: its metadata counts {steps} steps, its episodes {start}; it is damaged")
    if isinstance(dataset.action_space, gymnasium.spaces.Discrete):
        actions -= int(dataset.action_space.start)
    return Columns(source, states, actions, rewards, next_states, terminals, timeouts, action_space)


def _observation_shape(space: gymnasium.Space[Any], source: str) -> tuple[int, ...]:
    if isinstance(space, gymnasium.spaces.Box):
        return space.shape
    if not space.is_np_flattenable:
        raise InputError(f"{source}: observations of type {type(space).__name__} have no fixed size")
    return (gymnasium.spaces.flatdim(space),)


def _flatten(space: gymnasium.Space[Any], values: Any) -> Shaped[np.ndarray, "steps *value"]:
    """A whole episode's observations as one array: parts of a dictionary or tuple side by side, integers one-hot."""
    if isinstance(space, gymnasium.spaces.Dict):
        return np.concatenate([_flat(_flatten(part, values[key])) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, gymnasium.spaces.Tuple):
        return np.concatenate([_flat(_flatten(part, value)) for part, value in zip(space, values)], axis=1)
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(values) - space.start]
    return np.asarray(values)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def _cache_of(dataset: minari.MinariDataset) -> tuple[Path, str]:
    """Where the flat copy is kept, and the stamp of the data it was made from."""
    data_path = Path(dataset.spec.data_path)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(data_path.iterdir())]
    return data_path.parent / _CACHE, repr(("1", stats))


def _read_flat(dataset: minari.MinariDataset) -> Transitions | None:
    path, stamp = _cache_of(dataset)
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
        observation_shape=_observation_shape(dataset.observation_space, source),
        action_space=from_gymnasium(dataset.action_space, source),
    )


def _write_flat(dataset: minari.MinariDataset, transitions: Transitions) -> None:
    if dataset.total_episodes < _CACHE_FROM_EPISODES:
        return
    path, stamp = _cache_of(dataset)
    columns = {field: value for field, value in vars(transitions).items() if isinstance(value, np.ndarray)}
    partial = path.with_name(f"{os.getpid()}.npz")
    try:
        path.parent.mkdir(exist_ok=True)
        np.savez(partial, **columns, stamp=np.array(stamp))  # type: ignore[arg-type]
        partial.replace(path)
    except OSError:  # A read-only or full store costs time at the next start, nothing else.
        partial.unlink(missing_ok=True)
