"""Write datasets to Minari's local store atomically, and read them as `Transitions`."""

import errno
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.dataset.minari_dataset import parse_dataset_id
from minari.storage import get_dataset_path

from gelato.data.columns import assemble
from gelato.data.flat_copy import read_copy, write_copy
from gelato.data.generate import Episode
from gelato.data.minari_episodes import collect, write_episodes
from gelato.data.spaces import to_gymnasium
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError
from gelato.progress import Advance, progress, working
from gelato.tasks.environments import silence_mujoco

_PARTIAL = ".gelato-partial-"


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
    except ValueError as error:
        raise InputError(
            f"{name!r} is not a Minari id; use letters, digits, - and _, and at least two "
            "characters before a /, such as mine/log-v0"
        ) from error
    if exists(versioned):
        raise InputError(
            f"minari:{versioned} exists already; choose another name or a higher version"
        )
    return versioned


def write(dataset_id: str, episodes: Iterable[Episode], steps: int, **description: Any) -> bool:
    """Write episodes with `steps` steps in total as a Minari dataset.

    Return False if another process has already written this dataset. `description` is passed to
    `minari.create_dataset_from_buffers`. The dataset is written to a hidden folder of the store,
    which Minari does not list, and renamed when it is complete.
    """
    target = store_root() / dataset_id
    with _partial_store() as partial:
        with warnings.catch_warnings(), silence_mujoco():
            # Minari warns about missing metadata, such as the author's address.
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id, [], jpeg_encoding=False, **description
            )
        transitions = assemble(collect(write_episodes(episodes, dataset), steps, dataset))
        write_copy(minari.load_dataset(dataset_id), transitions)
        target.parent.mkdir(parents=True, exist_ok=True)
        _adopt_namespaces(partial, dataset_id)
        if target.exists() and not (target / "data").exists():
            shutil.rmtree(target)  # This folder is not a dataset.
        try:
            (partial / dataset_id).rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    return True


def write_transitions(dataset_id: str, dataset: Dataset, description: str) -> Transitions:
    """Write the transitions with a known successor as a Minari dataset, and return them."""
    transitions = dataset.transitions.with_successors()
    if len(transitions) == 0:
        raise InputError(
            f"{dataset.reference}: no step has a successor, so there is nothing to import"
        )
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
                observations = np.concatenate([part.states, part.next_states[-1:]]).reshape(
                    -1, *shape
                )
                advance(len(part))
                terminated = bool(part.terminated[-1])
                yield Episode(
                    observations,
                    np.asarray(part.actions),
                    np.asarray(part.rewards),
                    terminated,
                    seed=None,
                )

        # Minari stores the environment as text, so its entry point must be a string.
        spec = gymnasium.registry.get(dataset.environment or "")
        stored = spec is not None and isinstance(spec.entry_point, str)
        environment = {"env": dataset.environment} if stored else {}
        if not write(
            dataset_id,
            episodes(),
            len(transitions),
            description=description,
            **spaces,
            **environment,
        ):
            raise InputError(
                f"minari:{dataset_id} was just made by another process; choose another name"
            )
    return transitions


def read(dataset_id: str, *, download: bool = True) -> Dataset:
    """Read a Minari dataset from the local store; download it first if it is missing."""
    dataset = _open(dataset_id, download=download)
    environment = dataset.env_spec.id if dataset.env_spec is not None else None
    transitions = read_copy(dataset)
    if transitions is None:
        transitions = _read_episodes(dataset)
        write_copy(dataset, transitions)
    return Dataset(f"minari:{dataset_id}", environment, transitions)


def _read_episodes(dataset: minari.MinariDataset) -> Transitions:
    steps, dataset_id = int(dataset.total_steps), dataset.spec.dataset_id
    try:
        with progress(f"reading {dataset_id}", steps) as advance:
            episodes = (_count(episode, advance) for episode in dataset.iterate_episodes())
            return assemble(collect(episodes, steps, dataset))
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            f"minari:{dataset_id}: the episodes cannot be read ({_one_line(error)})"
        ) from error


def _open(dataset_id: str, *, download: bool) -> minari.MinariDataset:
    if "://" not in dataset_id and not re.search(r"-v\d+$", dataset_id):
        raise InputError(
            f"minari:{dataset_id}: a Minari id ends in its version, such as {dataset_id}-v0"
        )
    try:
        if download and not exists(dataset_id):
            _download(dataset_id)
        return minari.load_dataset(dataset_id)
    except FileNotFoundError as error:
        raise InputError(f"minari:{dataset_id}: not in the local store {store_root()}") from error
    except InputError:
        raise
    except Exception as error:  # Minari raises many kinds of exceptions for a damaged dataset.
        raise InputError(
            f"minari:{dataset_id}: Minari cannot open it ({_one_line(error)})"
        ) from error


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
def _partial_store() -> Iterator[Path]:
    """Yield a hidden folder that Minari uses as its store until the block ends; then remove it."""
    root, before = store_root(), os.environ.get("MINARI_DATASETS_PATH")
    # Machines may share a store. Each machine removes only folders of its dead processes.
    mine = f"{_PARTIAL}{platform.node()}-"
    for stale in root.glob(f"{mine}*"):
        process = stale.name.removeprefix(mine).split("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-", dir=root))
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
    """Move the metadata files of the dataset's namespaces to the store, if they are missing."""
    for parent in (partial / dataset_id).relative_to(partial).parents:
        for description in (partial / parent).glob("*.json"):
            adopted = partial.parent / description.relative_to(partial)
            if not adopted.exists():
                description.rename(adopted)
