"""Read Parquet and CSV tables in pieces, so that memory holds the arrays and little more."""

import abc
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import has_magic
from pathlib import Path

import numpy as np
import pyarrow as pa

from gelato.data.arrow_values import (
    flatten_schema,
    is_text,
    read_rows,
    refuse_nulls,
    select_leaf,
    to_numpy,
)
from gelato.data.recording import EXACT_FIELDS, AbstractRecording, warn_if_coarse
from gelato.errors import InputError
from gelato.progress import progress
from gelato.runs.memory import check_memory

Batch = tuple[Path, int, pa.RecordBatch]
"""A piece of a file: the file, the number of its first row in the file, and the rows."""


class AbstractTables(abc.ABC):
    """Files with equal columns that are read one after another."""

    files: list[Path]
    schema: pa.Schema

    @abc.abstractmethod
    def estimate_rows(self) -> int:
        """Return the number of rows, or a guess."""

    def count_rows(self) -> int | None:
        """Return the number of rows; None if only reading shows it."""
        return None

    @abc.abstractmethod
    def iterate(self, fields: Mapping[str, str]) -> Iterator[Batch]:
        """Yield these columns in pieces; `fields` says for what each of them is used."""

    @property
    def stored_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.files)


class TableRecording(AbstractRecording):
    """Tables as a recording; a struct's members are columns named `struct.member`."""

    def __init__(
        self, source: str, tables: AbstractTables, labels: Mapping[str, Sequence[str]] | None = None
    ):
        self.source = source
        self.labels = labels or {}
        self.widths: dict[str, int] = {}
        self._tables = tables
        self._leaves = flatten_schema(tables.schema, source)
        self.names = list(self._leaves)
        self.texts = {name for name, leaf in self._leaves.items() if is_text(leaf.type)}

    def read(self, chosen: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        used = {}
        for field, names in chosen.items():
            for name in names:
                used[self._leaves[name].path[0]] = field
        targets = {field: _Target(self, field, names) for field, names in chosen.items()}
        rows, expected = 0, self._tables.estimate_rows()
        with progress(f"reading {Path(self.source).name}", expected) as advance:
            for path, first, batch in _read_ahead(self._tables.iterate(used)):
                if rows == 0:
                    self._check_size(targets, expected, path, first, batch)
                for target in targets.values():
                    target.append(path, first, rows, batch, expected)
                rows += batch.num_rows
                advance(batch.num_rows)
        if rows == 0:
            raise InputError(f"{self.source}: the table has no rows")
        return {field: target.finish(rows) for field, target in targets.items()}

    def count_rows(self, chosen: Mapping[str, Sequence[str]]) -> int | None:  # noqa: ARG002
        return self._tables.count_rows()

    def iterate(
        self, chosen: Mapping[str, Sequence[str]], start: int, rows: int
    ) -> Iterator[dict[str, np.ndarray]]:
        used = {self._leaves[name].path[0]: field for field in chosen for name in chosen[field]}
        targets = {field: _Target(self, field, names) for field, names in chosen.items()}
        waiting: list[dict[str, np.ndarray]] = []
        place = count = 0
        for path, first, batch in _read_ahead(self._tables.iterate(used)):
            place += batch.num_rows
            if place <= start and self.widths:
                continue
            # The rows before the start belong to blocks that were read earlier.
            skipped = max(batch.num_rows - max(place - start, 0), 0)
            values = {name: target.convert(path, first, batch) for name, target in targets.items()}
            for begin in range(skipped, batch.num_rows, rows):
                part = slice(begin, begin + rows)
                waiting.append({name: array[part] for name, array in values.items()})
                count += len(next(iter(waiting[-1].values())))
                if count >= rows:
                    yield _join(waiting)
                    waiting, count = [], 0
        if count:
            yield _join(waiting)

    def leaf(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        """Return the values of a column in a piece."""
        return select_leaf(batch, self._leaves[name].path)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor column, as its file says; empty for other columns."""
        return self._leaves[name].shape

    def _check_size(
        self,
        targets: Mapping[str, "_Target"],
        expected: int,
        path: Path,
        first: int,
        batch: pa.RecordBatch,
    ) -> None:
        size = sum(target.measure(path, first, batch) for target in targets.values())
        check_memory(self.source, expected * size, self._tables.stored_bytes)


def _read_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield every piece while a thread reads the next one."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


def _join(blocks: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {field: np.concatenate([block[field] for block in blocks]) for field in blocks[0]}


class _Target:
    """The growing array of one field."""

    def __init__(self, recording: TableRecording, field: str, names: Sequence[str]):
        self._recording, self._field, self._names = recording, field, names
        self._array: np.ndarray = np.empty((0, 0))
        self._codes: dict[object, int] = {}
        self._low: dict[str, np.ndarray] = {}
        self._high: dict[str, np.ndarray] = {}

    def measure(self, path: Path, first: int, batch: pa.RecordBatch) -> int:
        """Return the bytes per row, and prepare an empty array."""
        parts = [self._read(name, path, first, batch) for name in self._names]
        width = sum(part.shape[1] for part in parts)
        for name, part in zip(self._names, parts, strict=True):
            self._recording.widths[name] = part.shape[1]
        dtype = np.result_type(*parts)
        if self._field not in EXACT_FIELDS and dtype.kind not in "bi":
            dtype = np.dtype(np.float32)
        self._array = np.empty((0, width), dtype)
        return width * dtype.itemsize

    def convert(self, path: Path, first: int, batch: pa.RecordBatch) -> np.ndarray:
        """Return the values of a piece, with the type that the whole array would have."""
        if self._array.shape[1] == 0:
            self.measure(path, first, batch)
        found = np.empty((batch.num_rows, self._array.shape[1]), self._array.dtype)
        self._fill(found, path, first, batch)
        return found

    def append(
        self, path: Path, first: int, rows: int, batch: pa.RecordBatch, expected: int
    ) -> None:
        needed = rows + batch.num_rows
        if needed > len(self._array):
            length = max(needed, expected if rows == 0 else 2 * len(self._array))
            size = (length - rows) * self._array.itemsize * self._array.shape[1]
            check_memory(self._recording.source, size, size)
            # The system hands out the pages of an empty array when they are written.
            larger = np.empty((length, self._array.shape[1]), self._array.dtype)
            larger[:rows] = self._array[:rows]
            self._array = larger
        self._fill(self._array[rows:needed], path, first, batch)

    def _fill(self, found: np.ndarray, path: Path, first: int, batch: pa.RecordBatch) -> None:
        start = 0
        for name in self._names:
            part = self._read(name, path, first, batch)
            width = self._recording.widths[name]
            if part.shape[1] != width:
                raise InputError(
                    f"{path}: {name} has {part.shape[1]} values in row {first}, but {width} in "
                    "the first row; every row must have the same number"
                )
            if part.dtype == np.float64 and self._field not in EXACT_FIELDS:
                self._widen_range(name, part)
            with np.errstate(over="ignore", invalid="ignore"):
                found[:, start : start + width] = part
            start += width

    def finish(self, rows: int) -> np.ndarray:
        """Return the array, without the room that was left."""
        for name, low in self._low.items():
            warn_if_coarse(low, self._high[name], f"{self._recording.source}: {name}")
        self._array.resize((rows, self._array.shape[1]), refcheck=False)
        return self._array

    def _read(self, name: str, path: Path, first: int, batch: pa.RecordBatch) -> np.ndarray:
        array = self._recording.leaf(name, batch)
        if self._field == "episode" and is_text(array.type):
            refuse_nulls(array, name, path, first, 1)
            return self._number_texts(array)
        return read_rows(
            array, name, path, first, self._recording.shape(name), time=self._field == "time"
        )

    def _number_texts(self, array: pa.Array) -> np.ndarray:
        """Replace every text by a number, in order of appearance."""
        encoded = array.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        codes = np.array([self._codes.setdefault(value, len(self._codes)) for value in values])
        return codes[to_numpy(encoded.indices)][:, None]

    def _widen_range(self, name: str, part: np.ndarray) -> None:
        low, high = part.min(axis=0), part.max(axis=0)
        self._low[name] = np.fmin(self._low.get(name, low), low)
        self._high[name] = np.fmax(self._high.get(name, high), high)


def list_files(target: str, endings: Sequence[str]) -> list[Path]:
    """Return one file, the files of a folder, or those that match a pattern, in natural order."""
    path = Path(target)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [each for each in path.rglob("*") if each.name.lower().endswith(tuple(endings))]
        found = [each for each in found if not each.name.startswith((".", "_"))]
        missing = f"the folder has no file that ends with {' or '.join(endings)}"
    elif has_magic(target):
        found, missing = (
            list(Path(path.anchor).glob(str(path.relative_to(path.anchor)))),
            "no file matches",
        )
    else:
        found, missing = [], "no such file"
    found = [each for each in found if each.is_file()]
    if not found:
        raise InputError(f"{target}: {missing}")
    return sorted(found, key=lambda each: _split_numbers(str(each)))


def _split_numbers(text: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts part-2 before part-10."""
    parts = re.split(r"(\d+)", text)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
