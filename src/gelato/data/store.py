"""Write datasets to Minari's local store atomically, and read them as `Transitions`."""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.dataset.minari_dataset import parse_dataset_id
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from gelato.data.columns import assemble
from gelato.data.flat_copy import read_copy, write_copy
from gelato.data.generate import Episode
from gelato.data.minari_episodes import (
    collect,
    name_observations,
    read_episodes,
    write_episodes,
)
from gelato.data.spaces import to_gymnasium
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError
from gelato.progress import Advance, note, progress, working
from gelato.runs.files import (
    flush_file,
    flush_folder,
    has_locks,
    hide_name,
    is_leftover,
    lock_file,
    read_json,
    try_lock,
    warn_without_locks,
    write_atomically,
)
from gelato.runs.memory import LARGEST_RATIO
from gelato.tasks.environments import make_environment

_NAMESPACE = "namespace_metadata.json"
# An id of the local store is a relative path below it. Remote ids have a scheme.
_LOCAL_ID = re.compile(r"[-\w]+(/[-\w]+)*")
# A progress bar is updated once for so many steps.
_STEPS_PER_UPDATE = 10_000


def store_root() -> Path:
    """Return Minari's folder: `MINARI_DATASETS_PATH`, or its folder in the home directory."""
    return Path(get_dataset_path())


def exists(dataset_id: str) -> bool:
    """Return whether the store has a dataset with this id."""
    return (store_root() / dataset_id / "data").exists()


def check_id(name: str) -> str:
    """Return the full Minari id of a new dataset; `-v0` is added if the version is missing."""
    versioned = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    try:
        parse_dataset_id(versioned)
        known = _LOCAL_ID.fullmatch(versioned) is not None
    except (TypeError, ValueError):
        known = False
    if not known:
        raise InputError(
            f"{name!r} is not a Minari id; use letters, digits, - and _, and at least two "
            "characters before a /, such as mine/log-v0"
        )
    remove_stale()
    if exists(versioned):
        raise InputError(
            f"minari:{versioned} exists already; choose another name or a higher version"
        )
    _refuse_target(versioned)
    return versioned


def _refuse_target(dataset_id: str) -> None:
    """Refuse a place in the store that holds other files, or that lies inside a dataset."""
    root = store_root()
    target = root / dataset_id
    for parent in target.parents:
        if parent == root:
            break
        if (parent / "data").exists():
            raise InputError(
                f"minari:{dataset_id}: {parent} is a dataset and cannot hold another one; choose "
                "another name"
            )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"minari:{dataset_id}: {target} is a file; choose another name")
    if target.is_dir():
        inside = sorted(entry.name for entry in target.iterdir())
        if inside:
            raise InputError(
                f"minari:{dataset_id}: {target} is not empty (it has {inside[0]}), and gelato "
                "removes nothing there; choose another name"
            )


def write(
    dataset_id: str,
    episodes: Iterable[Episode],
    steps: int,
    transitions: Transitions | None = None,
    *,
    env: str | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    **description: Any,
) -> bool:
    """Write episodes with `steps` steps in total as a Minari dataset.

    Return False if another process was first. `transitions` are those of the episodes, if they are
    known. `description` becomes part of Minari's metadata. The dataset is written to a hidden
    folder of the store, which Minari does not list, and renamed when it is complete.
    """
    target = store_root() / dataset_id
    _refuse_target(dataset_id)
    with _open_partial() as partial:
        dataset = _create(partial, dataset_id, env, observation_space, action_space, description)
        written = write_episodes(episodes, dataset)
        if transitions is None:
            transitions = assemble(collect(written, steps, dataset))
        else:
            for _ in written:
                pass
        write_copy(minari.MinariDataset(partial / dataset_id / "data"), transitions)
        _flush_all(partial / dataset_id)
        target.parent.mkdir(parents=True, exist_ok=True)
        _describe_namespaces(dataset_id)
        try:
            (partial / dataset_id).rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        flush_folder(target.parent)
    return True


def _create(
    root: Path,
    dataset_id: str,
    env: str | None,
    observation_space: gymnasium.Space[Any] | None,
    action_space: gymnasium.Space[Any] | None,
    description: dict[str, Any],
) -> minari.MinariDataset:
    """Create an empty dataset below `root`, as `minari.create_dataset_from_buffers` does.

    Minari's function finds its folder in an environment variable, which threads share.
    """
    if env is not None:
        simulator = make_environment(env)
        observation_space = observation_space or simulator.observation_space
        action_space = action_space or simulator.action_space
        simulator.close()
    data = root / dataset_id / "data"
    data.mkdir(parents=True)
    spec = None if env is None else gymnasium.spec(env)
    storage = MinariStorage.new(data, observation_space, action_space, spec, jpeg_encoding=False)
    if "author" in description:
        description = {**description, "author": {description["author"]}}
    identity = {"dataset_id": dataset_id, "minari_version": version("minari")}
    storage.update_metadata({**identity, **description})
    return minari.MinariDataset(storage)


def _describe_namespaces(dataset_id: str) -> None:
    """Give every namespace of a dataset the file by which Minari knows it."""
    for parent in (store_root() / dataset_id).parents:
        if parent == store_root():
            return
        if not (parent / _NAMESPACE).exists():
            with write_atomically(parent / _NAMESPACE) as partial:
                partial.write_text("{}")


def _flush_all(folder: Path) -> None:
    """Wait until every file of a folder is on the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            flush_file(Path(place) / name)
        flush_folder(Path(place))


def write_transitions(dataset_id: str, dataset: Dataset, description: str) -> Transitions:
    """Write the transitions with a known successor as a Minari dataset, and return them."""
    transitions = dataset.transitions.with_successors()
    if len(transitions) == 0:
        raise InputError(
            f"{dataset.reference}: no step has a successor, so there is nothing to import"
        )
    if transitions.images and transitions.observed.numbers:
        raise InputError(
            f"{dataset.reference}: images next to numbers cannot be written to Minari yet; keep "
            "them in your own file, and make the dataset with gelato.make_dataset"
        )
    shape = transitions.observation_shape
    spaces = {
        "observation_space": gymnasium.spaces.Box(0, 255, shape, np.uint8)
        if transitions.images
        else gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32),
        "action_space": to_gymnasium(transitions.action_space),
    }
    stored = _as_stored(transitions)
    with progress("importing", len(transitions)) as advance:
        # Minari stores the environment as text, so its entry point must be a string.
        spec = gymnasium.registry.get(dataset.environment or "")
        named = spec is not None and isinstance(spec.entry_point, str)
        if not write(
            dataset_id,
            _cut_episodes(transitions, advance),
            len(transitions),
            stored,
            env=dataset.environment if named else None,
            description=description,
            **spaces,
        ):
            raise InputError(
                f"minari:{dataset_id} was just made by another process; choose another name"
            )
    return transitions


def _cut_episodes(transitions: Transitions, advance: Advance) -> Iterator[Episode]:
    """Yield the episodes of transitions whose successors are known."""
    states, next_states = np.asarray(transitions.states), np.asarray(transitions.next_states)
    actions, rewards = np.asarray(transitions.actions), np.asarray(transitions.rewards)
    terminated = np.asarray(transitions.terminated)
    waiting = 0
    for rows in transitions.episode_slices:
        last = rows.stop - 1
        observations = np.concatenate([states[rows], next_states[last : rows.stop]])
        waiting += rows.stop - rows.start
        if waiting >= _STEPS_PER_UPDATE:
            advance(waiting)
            waiting = 0
        yield Episode(
            observations.reshape(-1, *transitions.observation_shape),
            actions[rows],
            rewards[rows],
            bool(terminated[last]),
            seed=None,
        )
    advance(waiting)


def _as_stored(transitions: Transitions) -> Transitions:
    """Return the transitions as they are read from the store.

    An episode is stored as its states, so that every successor is the next state.
    """
    ends = np.asarray(transitions.ends).copy()
    ends[-1] = True
    next_states = np.array(transitions.next_states)
    next_states[:-1][~ends[:-1]] = np.asarray(transitions.states)[1:][~ends[:-1]]
    truncated = ends & ~np.asarray(transitions.terminated)
    return replace(transitions, next_states=next_states, truncated=truncated)


def read(dataset_id: str, *, download: bool = True) -> Dataset:
    """Read a Minari dataset from the local store; download it first if it is missing."""
    dataset = open_dataset(dataset_id, download=download)
    environment = find_environment_id(dataset)
    transitions = read_copy(dataset)
    if transitions is None:
        transitions = _read_episodes(dataset)
        write_copy(dataset, transitions)
    source = f"minari:{dataset_id}"
    names = name_observations(dataset.observation_space, source)
    return Dataset(source, environment, transitions, state_names=names)


def find_environment_id(dataset: minari.MinariDataset) -> str | None:
    """Return the environment that a dataset names; one that names a module is ignored."""
    environment = dataset.env_spec.id if dataset.env_spec is not None else None
    if environment is not None and ":" in environment:
        note(
            f"minari:{dataset.spec.dataset_id}: names the environment {environment}, whose module "
            "would be imported; it is ignored"
        )
        return None
    return environment


def _read_episodes(dataset: minari.MinariDataset) -> Transitions:
    steps, dataset_id = int(dataset.total_steps), dataset.spec.dataset_id
    with report_episodes(dataset_id), progress(f"reading {dataset_id}", steps) as advance:
        episodes = (_count(episode, advance) for episode in read_episodes(dataset))
        return assemble(collect(episodes, steps, dataset))


@contextmanager
def report_episodes(dataset_id: str) -> Iterator[None]:
    """Convert what damaged episodes cause into an `InputError`."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Storage libraries raise many kinds of exceptions for damage.
        raise InputError(
            f"minari:{dataset_id}: the episodes cannot be read ({_one_line(error)})"
        ) from error


def open_dataset(dataset_id: str, *, download: bool = True) -> minari.MinariDataset:
    """Open a dataset of the local store; download it first if it is missing."""
    if "://" not in dataset_id and not re.search(r"-v\d+$", dataset_id):
        raise InputError(
            f"minari:{dataset_id}: a Minari id ends in its version, such as {dataset_id}-v0"
        )
    remote = dataset_id.partition("://")[2] or dataset_id
    if not _LOCAL_ID.fullmatch(remote):
        raise InputError(
            f"minari:{dataset_id}: not a Minari id; it has letters, digits, -, _ and /, such as "
            "mine/log-v0"
        )
    try:
        if download and not exists(dataset_id):
            _download(dataset_id)
        data = store_root() / dataset_id / "data"
        if not data.exists():
            raise InputError(f"minari:{dataset_id}: not in the local store {store_root()}")
        _check_metadata(data, f"minari:{dataset_id}")
        dataset = minari.MinariDataset(data)
        _ = dataset.spec  # Minari checks the id of the dataset here.
        return dataset
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Minari raises many kinds of exceptions for a damaged dataset.
        raise InputError(
            f"minari:{dataset_id}: Minari cannot open it ({_one_line(error)})"
        ) from error


def _check_metadata(data: Path, source: str) -> None:
    """Check what Minari would believe: it makes an environment, or arrays of any size."""
    path = data / "metadata.json"
    for file in data.iterdir():
        if file.is_symlink():
            raise InputError(
                f"{source}: {file} is a symbolic link, and a dataset is read from its own files "
                "only. Replace the link by what it points to"
            )
        if not (file.is_file() or file.is_dir()):
            raise InputError(f"{source}: {file} is not a plain file; remove it")
    metadata = read_json(path)
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: damaged (not an object)")
    for field in ("observation_space", "action_space"):
        text = metadata.get(field)
        if not isinstance(text, str):
            # Minari would take the space from the environment, whose code the file may choose.
            raise InputError(f"{source}: {path.name} has no {field}; write the dataset again")
        _check_space(json.loads(text), len(text), source)
    stored = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
    for field in ("total_episodes", "total_steps"):
        count = metadata.get(field)
        if not isinstance(count, int) or not 0 <= count <= max(stored * LARGEST_RATIO, 1):
            raise InputError(f"{source}: {path.name} has {field} {count}; the dataset is damaged")


def _check_space(space: Any, length: int, source: str) -> None:
    """Refuse a space with more values than the text that describes it has characters."""
    if isinstance(space, dict):
        shape = space.get("shape")
        if isinstance(shape, list) and math.prod(map(int, shape)) > length:
            raise InputError(f"{source}: a space has shape {shape}; its bounds are missing")
        for part in space.values():
            _check_space(part, length, source)
    elif isinstance(space, list):
        for part in space:
            if isinstance(part, dict):
                _check_space(part, length, source)


def _download(dataset_id: str) -> None:
    # Hide the client's messages about retries. Importing the client resets its log level.
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
    try:
        with working(f"asking Minari's remote for {dataset_id}"):
            minari.download_dataset(dataset_id)
    except Exception as error:  # Each remote client raises its own kinds of exceptions.
        raise InputError(
            f"minari:{dataset_id}: not in the local store {store_root()}, and the download failed "
            f"({_one_line(error)}); check the id and the connection"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _count(episode: minari.EpisodeData, advance: Advance) -> minari.EpisodeData:
    advance(len(episode.rewards))
    return episode


@contextmanager
def _open_partial() -> Iterator[Path]:
    """Yield a hidden folder of the store that is locked until the block ends; then remove it."""
    root = store_root()
    warn_without_locks(root)
    remove_stale()
    with ExitStack() as stack:
        locked = False
        while not locked:
            partial = root / hide_name()
            partial.mkdir()
            # Another process may take the folder for a leftover before it is locked.
            with suppress(FileNotFoundError):
                locked = stack.enter_context(lock_file(partial / ".lock"))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def remove_stale() -> None:
    """Remove the hidden folders of killed processes. A living process holds a lock on its own.

    Locks also work between containers, where the numbers of processes mean nothing.
    """
    root = store_root()
    if not has_locks(root):
        return
    for folder in root.iterdir():
        if not is_leftover(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        with suppress(OSError):
            folder.rmdir()  # It was killed before it made its lock.
        with suppress(OSError):
            lock = os.open(folder / ".lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
