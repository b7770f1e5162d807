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

import numpy as np

from gelato.data import store
from gelato.data.files import FIELD_NAMES, load_d4rl, load_file
from gelato.data.named import make_named, resolve_named
from gelato.data.sources import (
    NAMED,
    Reference,
    list_sources,
    load_reference,
    parse_reference,
    register_source,
)
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.tasks.task import find_task

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
    path = Path(reference.target)
    environment = path.stem if find_task(path.stem) else None
    return Dataset(str(reference), environment, load_d4rl(path))


def _load_file(reference: Reference) -> Dataset:
    options = reference.options
    names = {field: options[field] for field in FIELD_NAMES if field in options}
    transitions = load_file(Path(reference.target), names, _read_action_space(options))
    return Dataset(str(reference), options.get("environment"), transitions)


def _read_action_space(options: dict[str, str]) -> ActionSpace | None:
    if "discrete" in options:
        if not options["discrete"].isdecimal() or int(options["discrete"]) < 2:
            raise InputError(
                f"discrete={options['discrete']} must be the number of actions, at least 2"
            )
        return Discrete(int(options["discrete"]))
    if ("low" in options) != ("high" in options):
        raise InputError("the action range needs both low= and high=")
    if "low" not in options:
        return None
    try:
        # Round like actions and Gymnasium's spaces, so that equal bounds compare as equal.
        low, high = (
            tuple(float(np.float32(part)) for part in options[key].split("/"))
            for key in ("low", "high")
        )
    except ValueError as error:
        raise InputError(
            "low= and high= take numbers, one for each action dimension, separated by /"
        ) from error
    if len(low) != len(high) or not all(a < b for a, b in zip(low, high)):
        raise InputError(
            f"low={options['low']} must lie below high={options['high']} in every dimension"
        )
    return Continuous(low, high)


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
    options=(*FIELD_NAMES, "low", "high", "discrete", "environment"),
    is_path=True,
    help="a plain .npz, .hdf5 or .h5 file",
)
