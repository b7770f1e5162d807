"""A dataset as a folder of `.npy` columns, for data that does not fit into memory.

    PATH/columns.json        shapes, types, digests of all blocks, the fingerprint
    PATH/states.npy, …       one file per column, with the row as first axis

NumPy opens every column with `np.load(file, mmap_mode="r")`. A store is written once and never
changed. Until it is complete it has a hidden name, and `import.json` lists its finished blocks, so
that an import that was killed continues after the last one.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from gelato.data.disk_columns import ColumnFile, DiskColumn
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset, Transitions, describe_kind
from gelato.errors import InputError
from gelato.progress import progress
from gelato.runs.files import (
    flush_file,
    flush_folder,
    lock_file,
    read_json,
    report_damage,
    write_atomically,
)

FORMAT = 1
DESCRIPTION, _UNFINISHED = "columns.json", "import.json"
_REQUIRED = ("states", "actions", "rewards", "next_states", "terminated", "truncated")
_COLUMNS = (*_REQUIRED, "has_successor", "action_probabilities")


@dataclass(frozen=True)
class StoredBlock:
    """Rows that were written together. The next block starts at `token` of the source."""

    rows: int
    token: int
    digests: Mapping[str, str]
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts that the source needs when all rows are written."""


def find_partial(target: Path) -> Path:
    """Return the hidden folder in which a store is written."""
    return target.with_name(f".{target.name}.unfinished")


class StoreWriter:
    """Writes a store block by block, into its hidden folder. Use `open_writer`."""

    def __init__(self, target: Path, source: Mapping[str, Any], rows: int):
        self.target, self.folder, self.rows = target, find_partial(target), rows
        self._source = dict(source)
        self.blocks: list[StoredBlock] = []
        self._kind: tuple[tuple[int, ...], ActionSpace, str] | None = None
        self._begin()

    @property
    def done(self) -> int:
        """Number of rows that are written."""
        return sum(block.rows for block in self.blocks)

    @property
    def token(self) -> int:
        """Where the source continues."""
        return self.blocks[-1].token if self.blocks else 0

    def _begin(self) -> None:
        path = self.folder / _UNFINISHED
        if not path.exists():
            return
        found = read_json(path)
        with report_damage(path):
            if found["source"] != self._source:
                raise InputError(
                    f"{self.folder}: holds an unfinished import of other data, or the data changed "
                    "since. Remove this folder, or choose another path"
                )
            self.blocks = [StoredBlock(**block) for block in found["blocks"]]
            shape, space, code = found["kind"]
            self._kind = tuple(shape), _read_space(space), code
        start, sound = 0, []
        for block in self.blocks:
            # After a power failure, a block may be missing.
            if _digest_block(self.folder, block, start) != block.digests:
                break
            sound.append(block)
            start += block.rows
        self.blocks = sound

    def append(self, block: Transitions, token: int, notes: Mapping[str, int]) -> None:
        """Write the next rows. Afterwards an interrupted import continues behind them."""
        if block.images:
            raise InputError(
                f"{self.target}: column stores hold numbers, and this data has images; use the "
                "data itself"
            )
        kind = block.observation_shape, block.action_space, block.reward_code
        start, columns = self.done, _list_columns(block)
        if self._kind is not None and (self._kind != kind):
            raise InputError(f"{self.target}: the data changed while it was imported; start again")
        if start + len(block) > self.rows:
            raise InputError(f"{self.target}: the data has more rows than it says")
        self._kind = kind
        for name, values in columns.items():
            write_rows(self.folder / f"{name}.npy", values, start, self.rows)
        digests = {name: _digest(values) for name, values in columns.items()}
        self.blocks.append(StoredBlock(len(block), token, digests, notes))
        self._save()

    def replace_column(self, name: str, change: Callable[[int, np.ndarray], np.ndarray]) -> None:
        """Write a column again: `change` receives the first row and the values of each block."""
        path, start = self.folder / f"{name}.npy", 0
        for number, block in enumerate(self.blocks):
            values = change(start, _read_block(path, start, block.rows))
            write_rows(path, values, start, self.rows)
            digests = {**block.digests, name: _digest(values)}
            self.blocks[number] = StoredBlock(block.rows, block.token, digests, block.notes)
            start += block.rows
        self._save()

    def open_columns(self) -> Transitions:
        """Return the rows that were written."""
        assert self._kind is not None
        shape, space, code = self._kind
        names = self.blocks[0].digests
        columns: dict[str, Any] = {}
        for name in names:
            columns[name] = DiskColumn(open_column(self.folder / f"{name}.npy"))
        return Transitions(**columns, observation_shape=shape, action_space=space, reward_code=code)

    def finish(self, dataset: Mapping[str, Any]) -> None:
        """Compute the fingerprint, describe the store and give it its name."""
        if self.done != self.rows:
            raise InputError(
                f"{self.target}: the data has {self.done:,} rows, but it says {self.rows:,}"
            )
        assert self._kind is not None
        shape, space, code = self._kind
        transitions = self.open_columns()
        stamps = {}
        for name in self.blocks[0].digests:
            flush_file(self.folder / f"{name}.npy")
            stamps[name] = _stamp(self.folder / f"{name}.npy")
        description = {
            "format": FORMAT,
            "rows": self.rows,
            "columns": {
                name: {"dtype": column.dtype.str, "shape": list(column.shape)}
                for name, column in _list_columns(transitions).items()
            },
            "observation_shape": list(shape),
            "action_space": _describe_space(space),
            "reward_code": code,
            **dataset,
            "fingerprint": _compute_fingerprint(transitions),
            "stamps": stamps,
            "blocks": [{"rows": b.rows, "digests": dict(b.digests)} for b in self.blocks],
        }
        with write_atomically(self.folder / DESCRIPTION) as path:
            path.write_text(json.dumps(description))
        (self.folder / _UNFINISHED).unlink()
        _refuse_existing(self.target)
        self.folder.rename(self.target)
        flush_folder(self.target.parent)

    def _save(self) -> None:
        assert self._kind is not None
        shape, space, code = self._kind
        state = {
            "source": self._source,
            "kind": [list(shape), _describe_space(space), code],
            "blocks": [vars(block) for block in self.blocks],
        }
        with write_atomically(self.folder / _UNFINISHED) as path:
            path.write_text(json.dumps(state))


@contextmanager
def open_writer(target: Path, source: Mapping[str, Any], rows: int) -> Iterator[StoreWriter]:
    """Open a store for writing, or continue one; only one process at a time may write it."""
    _refuse_existing(target)
    folder = find_partial(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from error
    with lock_file(folder / ".lock") as locked:
        if not locked:
            raise InputError(f"{target}: another process is importing into it; wait for it")
        try:
            yield StoreWriter(target, source, rows)
        except OSError as error:
            raise InputError(
                f"{target}: cannot be written ({error.strerror}). Finished blocks are kept; repeat "
                "the command when there is room"
            ) from error
    (target / ".lock").unlink(missing_ok=True)


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise InputError(f"{target}: exists already; choose another path, or remove it")


def open_store(path: Path, reference: str) -> Dataset:
    """Open a store; no rows are read unless the files look different from those written."""
    description = _read_description(path)
    with report_damage(path / DESCRIPTION):
        shape, code = tuple(description["observation_shape"]), description["reward_code"]
        space, names = _read_space(description["action_space"]), list(description["columns"])
        kind = description["fingerprint"], describe_kind(shape, space, code)
        _check_files(path, description)
        columns: dict[str, Any] = {}
        for name in names:
            columns[name] = DiskColumn(open_column(path / f"{name}.npy", kind))
        transitions = Transitions(
            **columns, observation_shape=shape, action_space=space, reward_code=code
        )
        used = {name: tuple(values) for name, values in description["field_columns"].items()}
        return Dataset(
            reference,
            description["environment"],
            transitions,
            used,
            tuple(description["state_names"]),
            tuple(description["action_names"]),
        )


def _read_description(path: Path) -> dict[str, Any]:
    if not (path / DESCRIPTION).exists():
        if find_partial(path).exists():
            raise InputError(f"{path}: its import was interrupted; repeat `gelato data import`")
        raise InputError(
            f"{path}: not a column store. Make one with gelato data import REFERENCE --columns PATH"
        )
    description = read_json(path / DESCRIPTION)
    with report_damage(path / DESCRIPTION):
        if description["format"] != FORMAT:
            raise InputError(
                f"{path}: has format {description['format']}, and this version reads {FORMAT}"
            )
        missing = {*_REQUIRED, "has_successor"} - set(description["columns"])
        if missing or set(description["columns"]) - set(_COLUMNS):
            raise InputError(f"{path / DESCRIPTION}: damaged (its columns are not those of gelato)")
    return description


def _check_files(path: Path, description: Mapping[str, Any]) -> None:
    """Check sizes and times of the files; where times differ, as in a copy, check all values."""
    moved = []
    for name, column in description["columns"].items():
        file = path / f"{name}.npy"
        if file.is_symlink() or not file.is_file():
            raise InputError(f"{file}: missing, or not a plain file; import the data again")
        size, when = _stamp(file)
        if size != description["stamps"][name][0]:
            raise InputError(
                f"{file}: has {size:,} bytes, but {description['stamps'][name][0]:,} were written; "
                "it was cut short or changed. Import the data again"
            )
        found = open_column(file)
        if (found.dtype.str, list(found.shape)) != (column["dtype"], column["shape"]):
            raise InputError(f"{file}: its header was changed; import the data again")
        if when != description["stamps"][name][1]:
            moved.append(name)
    if not moved:
        return
    with progress(f"checking {path.name}", description["rows"]) as advance:
        start = 0
        for block in description["blocks"]:
            for name in moved:
                values = _read_block(path / f"{name}.npy", start, block["rows"])
                if _digest(values) != block["digests"][name]:
                    raise InputError(
                        f"{path / name}.npy: rows {start:,} to {start + block['rows']:,} were "
                        "changed after the import. Import the data again"
                    )
            start += block["rows"]
            advance(block["rows"])
    stamps = {name: _stamp(path / f"{name}.npy") for name in description["columns"]}
    try:
        with write_atomically(path / DESCRIPTION) as partial_file:
            partial_file.write_text(json.dumps({**description, "stamps": stamps}))
    except (OSError, InputError):
        return  # In a store that cannot be written, every command checks again.


def open_column(path: Path, kind: tuple[str, str] = ("", "")) -> ColumnFile:
    """Open a `.npy` file, and check that it has as many bytes as its header says."""
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
        if fortran or dtype.hasobject or not shape:
            raise ValueError("not a column of numbers")
        column = ColumnFile(path, dtype, shape, offset, kind)
        size = offset + shape[0] * column.row_bytes
        if path.stat().st_size != size:
            raise ValueError(f"it should have {size:,} bytes")
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cut short or damaged ({error})") from error
    return column


def write_rows(path: Path, values: np.ndarray, start: int, rows: int) -> None:
    """Write rows of a column into its file, which has room for `rows` of them."""
    header = _make_header(values, rows)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        if os.fstat(descriptor).st_size < len(header):
            os.pwrite(descriptor, header, 0)
        size = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
        if os.fstat(descriptor).st_size != len(header) + rows * size:
            os.ftruncate(descriptor, len(header) + rows * size)
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        place = len(header) + start * size
        while left:
            count = os.pwrite(descriptor, left, place)
            left, place = left[count:], place + count
    finally:
        os.close(descriptor)


def _make_header(values: np.ndarray, rows: int) -> bytes:
    file = BytesIO()
    shape = (rows, *values.shape[1:])
    about = {"descr": npy.dtype_to_descr(values.dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, about)
    return file.getvalue()


def _list_columns(transitions: Transitions) -> dict[str, Any]:
    columns = {name: getattr(transitions, name) for name in _COLUMNS}
    return {name: column for name, column in columns.items() if column is not None}


def _compute_fingerprint(transitions: Transitions) -> str:
    """Compute the fingerprint, with a progress bar."""
    with progress("computing the fingerprint", transitions.nbytes) as advance:
        return transitions.fingerprint(lambda block: advance(block.nbytes))


def _read_block(path: Path, start: int, rows: int) -> np.ndarray:
    return DiskColumn(open_column(path)).read(start, start + rows)


def _digest_block(folder: Path, block: StoredBlock, start: int) -> dict[str, str]:
    """Return the digests of a block's columns; of a column that cannot be read, an empty one."""
    found = {}
    for name in block.digests:
        try:
            found[name] = _digest(_read_block(folder / f"{name}.npy", start, block.rows))
        except InputError:
            found[name] = ""
    return found


def _digest(values: np.ndarray) -> str:
    digest = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=16)
    return digest.hexdigest()


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _describe_space(space: ActionSpace) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"discrete": space.n}
    return {"low": list(space.low), "high": list(space.high)}


def _read_space(described: Mapping[str, Any]) -> ActionSpace:
    if "discrete" in described:
        return Discrete(int(described["discrete"]))
    low, high = described["low"], described["high"]
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))
