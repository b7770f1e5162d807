"""A run folder: everything that a later command needs to read or resume a run. No pickles.

run.json            kind, configuration, data and its fingerprint, versions
manifest.json       sizes and digests of the other files
metrics.csv         metrics of the training
checkpoints/        the last two states of an unfinished run, each written atomically
*.npz, *.json       results

Every file is written by `Run.write` and read after `Run.check`, which finds damage.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.description import FORMAT, list_versions, read_description
from gelato.runs.files import (
    digest_file,
    flush_file,
    flush_folder,
    is_leftover,
    lock_file,
    read_json,
    remove_leftovers,
    warn_without_locks,
    write_together,
)
from gelato.runs.manifest import LOG, NAME, Manifest, check_file, read_manifest, write_manifest
from gelato.runs.memory import check_memory
from gelato.runs.npz import read_arrays
from gelato.runs.records import Record, format_records, read_records

_DESCRIPTION = "run.json"
_KEPT_CHECKPOINTS = 2
# Rows as dictionaries need so much more memory than their text.
_ROWS_RATIO = 8
_REMOVE_LOG = "restore it from a copy, or remove it and repeat the command"
Tree = TypeVar("Tree")


class InUseError(InputError):
    """Another process uses the folder."""


@dataclass(frozen=True)
class Run:
    """A run folder with its description in `run.json`."""

    folder: Path
    resumed: bool = False
    """Whether `open_run` found the run in its folder."""

    @property
    def description(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        path = self.folder / _DESCRIPTION
        if not path.exists():
            what = (
                "not a run folder (no run.json in it)" if self.folder.exists() else "no such folder"
            )
            raise InputError(f"{self.folder}: {what}")
        return read_description(self.check(_DESCRIPTION))

    @property
    def results(self) -> Path:
        """The path of the results of a finished training."""
        path = self.folder / "results.json"
        if not path.exists():
            kind = self.description["kind"]
            why = (
                "is not finished"
                if kind in ("policies", "sweep")
                else f"is a {kind} run, not a training. Give the folder of a `gelato train` run"
            )
            raise InputError(f"{self.folder}: has no results; this run {why}")
        return self.check("results.json")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process, and remove what killed processes left there."""
        if self.folder.is_file():
            raise InputError(f"{self.folder}: is a file; name a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.refuse_links()
        warn_without_locks(self.folder)
        with lock_file(self.folder / ".lock") as locked:
            if not locked:
                raise InUseError(
                    f"{self.folder}: in use by another process; wait for it or use another folder"
                )
            for folder in (self.folder, self.folder / "checkpoints"):
                remove_leftovers(folder)
            yield

    def refuse_other_files(self) -> None:
        """Refuse a folder without a run in which someone keeps other files."""
        if not self.folder.is_dir() or (self.folder / _DESCRIPTION).exists():
            return
        for entry in self.folder.iterdir():
            if entry.name == ".lock" or is_leftover(entry.name):
                continue
            # A run that was killed before it was described may have a manifest.
            if entry.name != NAME or read_manifest(self.folder) is None:
                raise InputError(f"{self.folder}: contains other files; use another folder")

    def refuse_links(self) -> None:
        """Refuse links and devices in the folder: a run could write to other places."""
        for place, folders, files in os.walk(self.folder):
            for name in folders + files:
                path = Path(place) / name
                if path.is_symlink():
                    raise InputError(
                        f"{path}: is a symbolic link, and a run may write to its files only. "
                        "Replace the link by what it points to"
                    )
                if name in files and path.exists() and not path.is_file():
                    raise InputError(f"{path}: is not a plain file; remove it")

    def begin(self, kind: str, **settings: Any) -> bool:
        """Describe a new run, or check that an old one has the same settings.

        Returns whether the run existed before.
        """
        settings = json.loads(json.dumps(settings))
        path = self.folder / _DESCRIPTION
        if not path.exists():
            self.refuse_other_files()
            description = {"format": FORMAT, "kind": kind, **settings, "versions": list_versions()}
            self.write_json("run", description)
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

    def check(self, name: str, remedy: str = "restore it from a copy, or use a new folder") -> Path:
        """Return the path of a file; raise an error if its content is not what we wrote."""
        return check_file(self.folder, name, remedy)

    @contextmanager
    def write(self, name: str) -> Iterator[Path]:
        """Yield a hidden file that replaces the file `name` when it is complete."""
        with self.write_together(name) as (partial,):
            yield partial

    @contextmanager
    def write_together(self, *names: str) -> Iterator[list[Path]]:
        """Yield hidden files that replace the files of these names, in this order, when complete.

        The manifest lists the new contents first, unless the run was made without a manifest. It is
        written once for all of them, because every write waits for the disk.
        """

        def announce(partials: Sequence[Path]) -> None:
            manifest = read_manifest(self.folder)
            if manifest is None:
                if names != (_DESCRIPTION,) or (self.folder / _DESCRIPTION).exists():
                    return
                manifest = Manifest()  # The run begins.
            manifest.forget_missing(self.folder)
            for name, partial in zip(names, partials, strict=True):
                manifest.expect(self.folder, name, digest_file(partial))
            if names[0].startswith("checkpoints/"):
                # The rows up to this step are on the disk before the checkpoint is.
                self._flush_log()
                manifest.keep_log(self.folder)
            write_manifest(self.folder, manifest)

        with write_together([self.folder / name for name in names], announce) as partials:
            yield partials

    def record(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Write values to `name`.json once; later calls return the stored values."""
        if (self.folder / f"{name}.json").exists():
            return self.read_json(name)
        self.write_json(name, values)
        return values

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write values to `name`.json."""
        with self.write(f"{name}.json") as partial:
            partial.write_text(format_json(values))

    def read_json(self, name: str) -> dict[str, Any]:
        """Read the values of `name`.json."""
        remedy = "remove the file and repeat the command"
        path = self.check(f"{name}.json", remedy)
        try:
            values = read_json(path)
        except InputError as error:
            raise InputError(f"{error}; {remedy}") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}: damaged (not an object); {remedy}")
        return values

    def write_records(self, records: Sequence[Record]) -> None:
        """Write results.json."""
        with self.write("results.json") as partial:
            partial.write_text(format_records(records))

    def read_records(self) -> list[Record]:
        """Read results.json."""
        return read_records(self.check("results.json"))

    def save(self, name: str, tree: Any) -> None:
        """Write the arrays of a pytree to `name`.npz, each under its path in the tree."""
        with self.write(f"{name}.npz") as partial:
            save_arrays(partial, tree)

    def load(self, name: str, like: Tree) -> Tree:
        """Read `name`.npz into the structure of `like`."""
        return load_arrays(self.check(f"{name}.npz"), like)

    def has(self, name: str) -> bool:
        """Return whether `name`.npz exists."""
        return (self.folder / f"{name}.npz").exists()

    def save_checkpoint(self, step: int, tree: Any) -> None:
        """Save the checkpoint of this step.

        Keep also the checkpoint before it. Remove all others, also those of later steps.
        """
        folder = self.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        self.save(f"checkpoints/{step:012d}", tree)
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
        try:
            return self.load(f"checkpoints/{step:012d}", like)
        except InputError as error:
            note(f"{error}; using the previous checkpoint")
            return None

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints; a finished run needs none.

        A run that was killed meanwhile still has some, so its next reader calls this too.
        """
        for step in self.checkpoints:
            (self.folder / "checkpoints" / f"{step:012d}.npz").unlink()

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to metrics.csv.

        The first row sets the columns. A later row leaves missing columns empty.
        """
        path = self.folder / LOG
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        opened = os.open(path, flags, 0o666)
        with os.fdopen(opened, "r+", encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file), None)
            text = _as_csv(rows, columns or list(rows[0]), header=columns is None)
            file.seek(0, io.SEEK_END)
            file.write(text)

    @property
    def metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv, without an incomplete last row (the disk may have been full)."""
        path = self.check(LOG, _REMOVE_LOG)
        if not path.exists():
            return []
        size = path.stat().st_size
        check_memory(str(path), _ROWS_RATIO * size, size)
        try:
            whole, newline, _ = path.read_text("utf-8").rpartition("\n")
            rows = list(csv.DictReader(io.StringIO(whole + newline, newline=""), strict=True))
            for row in rows:
                if None in row or None in row.values():
                    raise ValueError(f"step {row.get('step')} has too many or too few values")
                int(row["step"])
        except KeyError as error:
            raise InputError(f"{path}: damaged (no column {error}); {_REMOVE_LOG}") from error
        except (ValueError, csv.Error) as error:
            raise InputError(f"{path}: damaged ({error}); {_REMOVE_LOG}") from error
        return rows

    def forget_metrics_after(self, step: int) -> None:
        """Drop the rows that an interrupted run logged after its last checkpoint."""
        path = self.folder / LOG
        kept = [row for row in self.metrics if int(row["step"]) <= step]
        if not kept:
            path.unlink(missing_ok=True)
        manifest = read_manifest(self.folder)
        if manifest is not None and not (manifest.grows and (kept or LOG not in manifest.files)):
            manifest.grows = True
            manifest.forget_missing(self.folder)
            write_manifest(self.folder, manifest)
        if kept:
            with self.write(LOG) as partial:
                text = _as_csv(kept, list(kept[0]), header=True)
                partial.write_text(text, "utf-8", newline="")

    def close_log(self) -> None:
        """Tell the manifest that the log is complete."""
        manifest = read_manifest(self.folder)
        if manifest is not None:
            self._flush_log()
            manifest.keep_log(self.folder, finished=True)
            write_manifest(self.folder, manifest)

    def _flush_log(self) -> None:
        if (self.folder / LOG).exists():
            flush_file(self.folder / LOG)
            flush_folder(self.folder)


@contextmanager
def open_run(path: Path | str, kind: str, **settings: Any) -> Iterator[Run]:
    """Lock a run's folder, describe a new run or check that an old one is the same, and yield it.

    Other processes get an error until the block ends.
    """
    run = Run(Path(path))
    run.refuse_other_files()
    with run.lock():
        yield replace(run, resumed=run.begin(kind, **settings))


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


def format_json(values: Mapping[str, Any]) -> str:
    """Return values as the text of a JSON file of ours."""
    return json.dumps(values, indent=2) + "\n"


def save_arrays(path: Path, tree: Any) -> None:
    """Write the arrays of a pytree to a .npz file, each under its path in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in leaves}
    np.savez(path, **arrays)  # type: ignore[arg-type]


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
        if array.dtype.kind != np.dtype(leaf.dtype).kind:
            raise InputError(
                f"{path}: {jax.tree_util.keystr(place)} holds {array.dtype} instead of {leaf.dtype}"
            )
        loaded.append(array)
    return jax.tree_util.tree_unflatten(structure, loaded)


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
