"""Minari's local store: datasets written whole or not at all, and read into `Transitions`."""

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
from gelato.data.minari_episodes import collect, recorded
from gelato.data.spaces import to_gymnasium
from gelato.data.transitions import Dataset, Transitions
from gelato.envs import quiet_mujoco
from gelato.errors import InputError
from gelato.progress import Advance, progress, working

_PARTIAL = ".gelato-partial-"


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
        raise InputError(
            f"{name!r} is not a Minari id; use letters, digits, - and _, two characters or more before a /, such as "
            "mine/log-v0"
        ) from error
    if exists(versioned):
        raise InputError(f"minari:{versioned} exists already; choose another name or a higher version")
    return versioned


def write(dataset_id: str, episodes: Iterable[Episode], steps: int, **description: Any) -> bool:
    """Write episodes of `steps` steps in all as a Minari dataset; False if another process was first.

    `description` goes to `minari.create_dataset_from_buffers`. The dataset appears under its name only when it is
    whole: it is written to a hidden folder of the same store, which Minari does not list, and moved into place last.
    """
    target = store_root() / dataset_id
    with _partial_store() as partial:
        with warnings.catch_warnings(), quiet_mujoco():
            # Minari warns of each piece of metadata that is left out (author's address, permanent link, …).
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(dataset_id, [], jpeg_encoding=False, **description)
        transitions = assemble(collect(recorded(episodes, dataset), steps, dataset))
        write_copy(minari.load_dataset(dataset_id), transitions)
        target.parent.mkdir(parents=True, exist_ok=True)
        _adopt_namespaces(partial, dataset_id)
        if target.exists() and not (target / "data").exists():
            shutil.rmtree(target)  # A folder of that name that is no dataset.
        try:
            (partial / dataset_id).rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    return True


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

        known = dataset.environment in gymnasium.registry
        environment = {"env": dataset.environment} if known else {}
        if not write(dataset_id, episodes(), len(transitions), description=description, **spaces, **environment):
            raise InputError(f"minari:{dataset_id} was made by another process meanwhile; choose another name")
    return transitions


def read(dataset_id: str, *, download: bool = True) -> Dataset:
    """Read a Minari dataset, from the local store or else from Minari's remote."""
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
            episodes = (_counted(episode, advance) for episode in dataset.iterate_episodes())
            return assemble(collect(episodes, steps, dataset))
    except (OSError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"minari:{dataset_id}: its episodes cannot be read ({_one_line(error)})") from error


def _open(dataset_id: str, *, download: bool) -> minari.MinariDataset:
    if "://" not in dataset_id and not re.search(r"-v\d+$", dataset_id):
        raise InputError(f"minari:{dataset_id}: a Minari id ends in its version, such as {dataset_id}-v0")
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
    # The remote client reports each of its retries; what matters is how they end. It sets its own level when imported.
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()
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


def _counted(episode: minari.EpisodeData, advance: Advance) -> minari.EpisodeData:
    advance(len(episode.rewards))
    return episode


@contextmanager
def _partial_store() -> Iterator[Path]:
    """A hidden folder of the store that Minari takes for the whole of it meanwhile; removed at the end in any case."""
    root, before = store_root(), os.environ.get("MINARI_DATASETS_PATH")
    # Only this machine knows which of its processes live; a store may be shared by several.
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
    """Move Minari's description of each namespace above the dataset, where the store has none yet."""
    for parent in (partial / dataset_id).relative_to(partial).parents:
        for description in (partial / parent).glob("*.json"):
            adopted = partial.parent / description.relative_to(partial)
            if not adopted.exists():
                description.rename(adopted)
