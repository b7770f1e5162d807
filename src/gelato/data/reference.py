"""Load data by its reference, on the command line and in Python: `load("hopper-medium")`.

| reference | data |
|---|---|
| `hopper-medium` | a named dataset, made on first use |
| `hopper-medium,transitions=50000,seed=1` | the same recipe, another size or seed |
| `intersection,episodes=20` | driving datasets have their size in episodes |
| `minari:ID` | a Minari dataset, local or remote |
| `d4rl:PATH` | a D4RL HDF5 file |
| `file:PATH` | a plain `.npz`, `.hdf5` or `.h5` file |
| `file:PATH,observations=x,low=-2,high=2` | the same, with field names and action range |
| `file:PATH,environment=Pendulum-v1` | the same, with the environment to evaluate policies in |

`register_source` adds more sources.
"""

from pathlib import Path

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

__all__ = ["list_sources", "load", "register_source"]


def load(reference: str | Path) -> Dataset:
    """Load the data of a reference; a `Path` is a plain file."""
    if isinstance(reference, Path):
        reference = f"file:{reference}"
    return load_reference(parse_reference(reference))


def _load_named(reference: Reference) -> Dataset:
    named = resolve_named(reference)
    make_named(named)
    dataset = store.read(named.dataset_id, download=False)
    return Dataset(named.reference, dataset.environment, dataset.transitions)


def _load_minari(reference: Reference) -> Dataset:
    return store.read(reference.target)


def _load_d4rl(reference: Reference) -> Dataset:
    return load_d4rl(Path(reference.target), str(reference))


def _load_file(reference: Reference) -> Dataset:
    return load_file(Path(reference.target), read_layout(reference.options), str(reference))


register_source(
    NAMED,
    _load_named,
    options=("transitions", "episodes", "seed"),
    help="a dataset of `gelato data list`, made on first use",
)
register_source("minari", _load_minari, help="a Minari dataset, local or remote")
register_source("d4rl", _load_d4rl, is_path=True, help="a D4RL HDF5 file")
register_source(
    "file",
    _load_file,
    options=LAYOUT_OPTIONS,
    is_path=True,
    help="a plain .npz, .hdf5 or .h5 file",
)
