"""A run folder: everything that a later command needs to read or resume a run. No pickles.

run.json            kind, configuration, data and its fingerprint, versions
metrics.csv         metrics of the training
checkpoints/        the last two states of an unfinished run, each written atomically
*.npz               results
"""

import csv
import fcntl
import io
import json
import platform
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.files import write_atomically

FORMAT = 1
_KEPT_CHECKPOINTS = 2
_PACKAGES = (
    "gelato-rl",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "gymnasium",
    "mujoco",
    "minari",
)

Tree = TypeVar("Tree")


class _Description(dict[str, Any]):
    """The contents of a run.json. A missing field is reported as damage."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{self._path}: damaged (the field {name} is missing)")


@dataclass(frozen=True)
class Run:
    """A run folder with its description in `run.json`."""

    folder: Path
    resumed: bool = False
    """Whether `open_run` found the run in its folder."""

    @property
    def description(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        path = self.folder / "run.json"
        if not path.exists():
            what = (
                "not a run folder (no run.json in it)" if self.folder.exists() else "no such folder"
            )
            raise InputError(f"{self.folder}: {what}")
        try:
            description = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path}: damaged ({error})") from error
        if not isinstance(description, dict) or not {"format", "kind"} <= description.keys():
            raise InputError(f"{path}: is not a run.json of gelato")
        description = _Description(path, description)
        if description["format"] != FORMAT:
            raise InputError(
                f"{path}: has format {description['format']} of a newer gelato; upgrade gelato"
            )
        return description

    @property
    def results(self) -> Path:
        """The path of the results of a finished training."""
        path = self.folder / "results.json"
        if not path.exists():
            kind = self.description["kind"]
            why = (
                "is not finished"
                if kind == "policies"
                else f"is a {kind} run, not a training. Give the folder of a `gelato train` run"
            )
            raise InputError(f"{self.folder}: has no results; this run {why}")
        return path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process."""
        if self.folder.is_file():
            raise InputError(f"{self.folder}: is a file; name a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(
                    f"{self.folder}: in use by another process; wait for it or use another folder"
                ) from error
            yield

    def begin(self, kind: str, **settings: Any) -> bool:
        """Describe a new run, or check that an old one has the same settings.

        Returns whether the run existed before.
        """
        settings = json.loads(json.dumps(settings))
        path = self.folder / "run.json"
        if not path.exists():
            lock, *others = sorted(self.folder.iterdir(), key=lambda entry: entry.name != ".lock")
            if others:
                lock.unlink()
                raise InputError(f"{self.folder}: contains other files; use another folder")
            description = {"format": FORMAT, "kind": kind, **settings, "versions": _versions()}
            _write_json(path, description)
            return False
        before = self.description
        for name, value in {"kind": kind, **settings}.items():
            if before.get(name) == value:
                continue
            if name == "fingerprint":
                raise InputError(
                    f"{self.folder}: the dataset changed since this run started "
                    "(fingerprints differ). Restore it or use a new folder"
                )
            raise InputError(
                f"{self.folder}: this run was started with another {name}: "
                f"{_difference(before.get(name), value)}. Use the same settings or a new folder"
            )
        return True

    def record(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Write values to `name`.json once; later calls return the stored values."""
        if (self.folder / f"{name}.json").exists():
            return self.read_json(name)
        self.write_json(name, values)
        return values

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write values to `name`.json."""
        _write_json(self.folder / f"{name}.json", values)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read the values of `name`.json."""
        path = self.folder / f"{name}.json"
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise InputError(
                f"{path}: damaged ({error}); remove the file and repeat the command"
            ) from error

    def save(self, name: str, tree: Any) -> None:
        """Write the arrays of a pytree to `name`.npz atomically."""
        save_arrays(self.folder / f"{name}.npz", tree)

    def load(self, name: str, like: Tree) -> Tree:
        """Read `name`.npz and return its arrays in the tree structure of `like`."""
        return load_arrays(self.folder / f"{name}.npz", like)

    def has(self, name: str) -> bool:
        """Return whether `name`.npz exists."""
        return (self.folder / f"{name}.npz").exists()

    def save_checkpoint(self, step: int, tree: Any) -> None:
        """Save the checkpoint of this step.

        Keep also the checkpoint before it. Remove all others, also those of later steps.
        """
        folder = self.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        save_arrays(folder / f"{step:012d}.npz", tree)
        kept = [old for old in self.checkpoints if old <= step][-_KEPT_CHECKPOINTS:]
        for other in set(self.checkpoints) - set(kept):
            (folder / f"{other:012d}.npz").unlink()

    @property
    def checkpoints(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        files = (self.folder / "checkpoints").glob("*.npz")
        return sorted(int(file.stem) for file in files if re.fullmatch(r"\d{12}", file.stem))

    def load_checkpoint(self, step: int, like: Tree) -> Tree | None:
        """Read the state of a step. Return None, with a note, if the file is damaged."""
        path = self.folder / "checkpoints" / f"{step:012d}.npz"
        try:
            return load_arrays(path, like)
        except InputError as error:
            note(f"{error}; using the previous checkpoint")
            return None

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints; a finished run needs none."""
        for step in self.checkpoints:
            (self.folder / "checkpoints" / f"{step:012d}.npz").unlink()

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to metrics.csv.

        The first row sets the columns. A later row leaves missing columns empty.
        """
        path = self.folder / "metrics.csv"
        if path.exists():
            with path.open(newline="") as file:
                columns = next(csv.reader(file))
            text = _as_csv(rows, columns)
        else:
            text = _as_csv(rows, list(rows[0]), header=True)
        with path.open("a", newline="") as file:
            file.write(text)

    @property
    def metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv, without an incomplete last row (the disk may have been full)."""
        path = self.folder / "metrics.csv"
        if not path.exists():
            return []
        whole, newline, _ = path.read_text().rpartition("\n")
        return list(csv.DictReader(io.StringIO(whole + newline, newline="")))

    def forget_metrics_after(self, step: int) -> None:
        """Drop the rows that an interrupted run logged after its last checkpoint."""
        path = self.folder / "metrics.csv"
        kept = [row for row in self.metrics if int(row["step"]) <= step]
        if not kept:
            path.unlink(missing_ok=True)
            return
        with write_atomically(path) as partial:
            partial.write_text(_as_csv(kept, list(kept[0]), header=True), newline="")


@contextmanager
def open_run(path: Path | str, kind: str, **settings: Any) -> Iterator[Run]:
    """Lock a run's folder, describe a new run or check that an old one is the same, and yield it.

    Other processes get an error until the block ends.
    """
    run = Run(Path(path))
    with run.lock():
        yield replace(run, resumed=run.begin(kind, **settings))


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    with write_atomically(path) as partial:
        partial.write_text(json.dumps(fields, indent=2) + "\n")


def _as_csv(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, header: bool = False
) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def list_seeds(seeds: int, first_seed: int) -> tuple[int, ...]:
    """Return `seeds` consecutive numbers from `first_seed`."""
    if seeds < 1 or first_seed < 0 or first_seed + seeds > 2**31:
        raise InputError(
            f"seeds={seeds}, first_seed={first_seed}: use at least one seed, and seeds from 0 to "
            "2³¹ − 1"
        )
    return tuple(range(first_seed, first_seed + seeds))


def save_arrays(path: Path, tree: Any) -> None:
    """Write the arrays of a pytree, each under its path in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    with write_atomically(path) as partial:
        arrays = {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in leaves}
        np.savez(partial, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file, each under its path in the tree."""
    try:
        with np.load(path) as saved:
            return {name: saved[name] for name in saved.files}
    except FileNotFoundError as error:
        raise InputError(f"{path}: does not exist; the run is not finished") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged or cut short") from error


def load_arrays(path: Path, like: Tree) -> Tree:
    """Read arrays into the structure of `like`, whose leaves are arrays or their shapes."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    arrays = read_arrays(path)
    loaded = []
    for place, leaf in leaves:
        array = arrays.get(jax.tree_util.keystr(place))
        if array is None or array.shape != leaf.shape:
            found = "nothing" if array is None else f"shape {array.shape}"
            raise InputError(
                f"{path}: has {found} instead of {jax.tree_util.keystr(place)} with shape "
                f"{leaf.shape}"
            )
        loaded.append(array)
    return jax.tree_util.tree_unflatten(structure, loaded)


def _versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except ModuleNotFoundError:
            installed[package] = "not installed"
    return installed


def _difference(before: Any, now: Any) -> str:
    """Say briefly where two settings differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(
            f"{name} {_difference(before.get(name), now.get(name))}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        )
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return ", ".join(_difference(old, new) for old, new in zip(before, now) if old != new)
    return f"{before}, not {now}"
