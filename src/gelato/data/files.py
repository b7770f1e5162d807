"""Read files of transitions: D4RL's HDF5 layouts (v0, v1, v2) and plain .npz, .hdf5 and .h5."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gelato.data.build import build_dataset
from gelato.data.hdf5 import find_shape, list_datasets, open_hdf5, read_dataset, read_dataset_rows
from gelato.data.layout import Layout
from gelato.data.recording import AbstractRecording, ArrayRecording
from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.runs.npz import open_arrays
from gelato.tasks.task import find_task

FILE_TYPES = (".npz", ".hdf5", ".h5")
# Other endings, and the source that reads them.
_OTHER_SOURCES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
# So many bytes at the beginning of a JSON file show who wrote it.
_BEGINNING = 2**16


def load_d4rl(path: Path, reference: str) -> Dataset:
    """Read a D4RL HDF5 file of any layout; actions of these tasks lie in `[−1, 1]`."""
    layout, limit = find_d4rl_settings(path)
    with open_file(path) as recording:
        return build_dataset(recording, layout, reference, episode_limit=limit)


def find_d4rl_settings(path: Path) -> tuple[Layout, int | None]:
    """Return the layout of a D4RL file, and the time limit of its task if the task is known."""
    task, known = find_task(path.name), find_task(path.stem)
    layout = Layout(
        action_space=Continuous((-1.0,), (1.0,)), environment=path.stem if known else None
    )
    return layout, None if task is None else task.steps


def load_file(path: Path, layout: Layout, reference: str) -> Dataset:
    """Read a plain file."""
    with open_file(path) as recording:
        return build_dataset(recording, layout, reference)


@contextmanager
def open_file(path: Path) -> Iterator[AbstractRecording]:
    """Open a file of named arrays."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the file inside it")
    if not path.is_file():
        raise InputError(f"{path}: is not a plain file; copy its content into one")
    kind, stored = path.suffix.lower(), path.stat().st_size
    if kind == ".npz":
        with open_arrays(path) as arrays:
            yield ArrayRecording(
                str(path),
                sorted(arrays.members),
                arrays.read,
                stored,
                arrays.find_shape,
                arrays.read_rows,
            )
    elif kind in (".hdf5", ".h5"):
        with open_hdf5(path) as file:
            names = sorted(list_datasets(file, path))
            yield ArrayRecording(
                str(path),
                names,
                lambda name: read_dataset(file, name, path),
                stored,
                lambda name: find_shape(file, name, path),
                lambda name, start, stop: read_dataset_rows(file, name, path, start, stop),
            )
    else:
        raise InputError(f"{path}: {_explain_type(path, kind)}")


def _explain_type(path: Path, kind: str) -> str:
    """Say why a file of this type is not read, and what to do."""
    if kind in _OTHER_SOURCES:
        return f"write {_OTHER_SOURCES[kind]}:{path}"
    if kind in _PICKLES:
        return (
            "a pickle can run any program when it is opened, so it is never read. Save its arrays "
            "with np.savez (docs/guide/own_log.md)"
        )
    if kind in (".json", ".jsonl"):
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        if b"SampleBatch" in beginning or b"MultiAgentBatch" in beginning:
            return (
                "RLlib's JSON holds pickles, which can run any program, so it is never read. "
                "Record Parquet with RLlib, or convert the file on a machine where you trust it "
                "(docs/guide/own_log.md)"
            )
        return "JSON is not read; save the arrays with np.savez, or a table as CSV or Parquet"
    return f"unknown file type {path.suffix or '(none)'}; use .npz, .hdf5 or .h5, .csv or .parquet"
