"""Load data by its reference, on the command line and in Python: `load("hopper-medium")`.

| reference | data |
|---|---|
| `hopper-medium` | a named dataset, made on first use |
| `hopper-medium,transitions=50000,seed=1` | the same recipe, another size or seed |
| `intersection,episodes=20` | driving datasets have their size in episodes |
| `hopper-medium,observe=positions` | the same without velocities |
| `minari:ID` | a Minari dataset, local or remote |
| `d4rl:PATH` | a D4RL HDF5 file |
| `file:PATH` | a plain `.npz`, `.hdf5` or `.h5` file |
| `csv:PATH`, `parquet:PATH` | a table: one file, a folder of them, or a pattern |
| `lerobot:PATH` | a LeRobot folder |
| `columns:PATH` | a column store of `gelato data import --columns` |
| `file:PATH,observations=x,low=-2,high=2` | the same, with field names and action range |
| `file:PATH,environment=Pendulum-v1` | the same, with the environment to evaluate policies in |
| `…,history=4` | any of these; models and policies read the last 4 observations and actions |

`register_source` adds more sources.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gelato.data import store
from gelato.data.files import load_d4rl, load_file
from gelato.data.layout import LAYOUT_OPTIONS, read_layout
from gelato.data.named import make_named, resolve_named
from gelato.data.sources import (
    NAMED,
    Reference,
    list_sources,
    load_reference,
    parse_reference,
    register_source,
)
from gelato.data.transitions import Dataset
from gelato.tasks.partial import PartialView, find_view

__all__ = ["list_sources", "load", "register_source"]


def load(reference: str | Path) -> Dataset:
    """Load the data of a reference; a `Path` is a plain file."""
    if isinstance(reference, Path):
        reference = f"file:{reference}"
    return load_reference(parse_reference(reference))


def load_stored(reference: str) -> Dataset:
    """Load the data of a reference that a file names, such as `run.json` of somebody's run.

    It does not run a reward function that the user has not named before.
    """
    return load_reference(parse_reference(reference), trusted=False)


def _load_named(reference: Reference) -> Dataset:
    options = dict(reference.options)
    view = options.pop("observe", None)
    named = resolve_named(replace(reference, options=options))
    shown = None
    if view is not None:
        shown = find_view(named.recipe.environment, view, str(reference))
    make_named(named)
    dataset = store.read(named.dataset_id, download=False)
    dataset = replace(dataset, reference=named.reference)
    return dataset if shown is None else _hide_columns(dataset, shown)


def _hide_columns(dataset: Dataset, view: PartialView) -> Dataset:
    """Return a dataset as its recorder would have logged it without the hidden columns."""
    columns, transitions = list(view.columns), dataset.transitions
    states, following = np.asarray(transitions.states), np.asarray(transitions.next_states)
    shown = replace(
        transitions,
        states=np.ascontiguousarray(states[:, columns]),
        next_states=np.ascontiguousarray(following[:, columns]),
        observation_shape=(len(columns),),
    )
    reference = f"{dataset.reference},observe={view.name}"
    return Dataset(reference, view.environment, shown, whole_states=states)


def _load_minari(reference: Reference) -> Dataset:
    return store.read(reference.target)


def _load_d4rl(reference: Reference) -> Dataset:
    return load_d4rl(Path(reference.target), str(reference))


def _load_file(reference: Reference) -> Dataset:
    return load_file(Path(reference.target), read_layout(reference.options), str(reference))


def _load_csv(reference: Reference) -> Dataset:
    # pyarrow takes a moment to import, and other sources do not need it.
    from gelato.data.csv_tables import load_csv

    return load_csv(reference)


def _load_parquet(reference: Reference) -> Dataset:
    from gelato.data.parquet import load_parquet

    return load_parquet(reference)


def _load_columns(reference: Reference) -> Dataset:
    from gelato.data.column_store import open_store

    return open_store(Path(reference.target), str(reference))


def _load_lerobot(reference: Reference) -> Dataset:
    from gelato.data.lerobot import load_lerobot

    return load_lerobot(reference)


register_source(
    NAMED,
    _load_named,
    options=("transitions", "episodes", "seed", "observe"),
    help="a dataset of `gelato data list`, made on first use",
)
register_source("minari", _load_minari, help="a Minari dataset, local or remote")
register_source(
    "csv",
    _load_csv,
    options=(*LAYOUT_OPTIONS, "separator", "decimal"),
    is_path=True,
    help="a CSV file, a folder of them or a pattern",
)
register_source(
    "parquet",
    _load_parquet,
    options=LAYOUT_OPTIONS,
    is_path=True,
    help="a Parquet file, a folder of them or a pattern",
)
register_source(
    "lerobot",
    _load_lerobot,
    options=LAYOUT_OPTIONS,
    is_path=True,
    help="a LeRobot folder of version 2 or 3",
)
register_source(
    "columns",
    _load_columns,
    is_path=True,
    help="a column store, for data larger than memory",
)
register_source("d4rl", _load_d4rl, is_path=True, help="a D4RL HDF5 file")
register_source(
    "file",
    _load_file,
    options=LAYOUT_OPTIONS,
    is_path=True,
    help="a plain .npz, .hdf5 or .h5 file",
)
