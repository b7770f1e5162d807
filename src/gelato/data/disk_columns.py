"""Columns that stay on the disk: their rows are read when they are needed.

A `DiskColumn` stands for an array in `Transitions`. Choosing rows by a slice or a mask reads
nothing. Numbers of rows, and everything that NumPy does with a whole array, read into memory.
Reductions read one block after another.

Rows are read with positioned reads and not through a memory map: if a mapped file is cut short
while a process uses it, the system kills the process, and nobody can say why.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from gelato.errors import InputError
from gelato.runs.memory import check_memory

# Blocks of about this size are in memory at a time.
_BLOCK_BYTES = 2**25


@dataclass(frozen=True)
class ColumnFile:
    """A `.npy` file of rows, opened for reading. It must not change while it is open."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    """Place of the first value in the file."""
    fingerprint: tuple[str, str] = ("", "")
    """Fingerprint of the dataset that the column is part of, and what else it depends on."""
    _file: FileIO = field(init=False, repr=False, compare=False)
    _stamp: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_file", FileIO(self.path))
        object.__setattr__(self, "_stamp", self._find_stamp())

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def check(self) -> None:
        """Refuse to go on if the file is no longer the one that was opened."""
        if self._find_stamp() != self._stamp:
            raise InputError(
                f"{self.path}: the file was changed or cut short while it was read. Import the "
                "data again, and repeat the command"
            )

    def read_into(self, target: np.ndarray, first: int) -> None:
        """Read rows from `first` on, as many as the target has."""
        left, place = target.reshape(-1).view(np.uint8).data, self.offset + first * self.row_bytes
        while left:
            count = os.preadv(self._file.fileno(), [left], place)
            if count == 0:
                raise InputError(f"{self.path}: the file was cut short; import the data again")
            left, place = left[count:], place + count

    def _find_stamp(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class RowRanges:
    """Rows of a file in increasing order, as ranges that do not touch."""

    starts: Int[np.ndarray, " ranges"]
    stops: Int[np.ndarray, " ranges"]

    @property
    def edges(self) -> Int[np.ndarray, " edges"]:
        """For each range, how many rows are before it; at the end, how many rows there are."""
        return np.concatenate([[0], np.cumsum(self.stops - self.starts)])

    def choose(
        self, starts: Int[np.ndarray, " parts"], stops: Int[np.ndarray, " parts"]
    ) -> "RowRanges":
        """Return the rows whose places among these rows lie in the given ranges."""
        edges = self.edges
        cuts = np.unique(np.concatenate([edges, starts, stops]))
        part = np.searchsorted(starts, cuts[:-1], side="right") - 1
        inside = cuts[:-1] < np.append(stops, 0)[part]
        begin, size = cuts[:-1][inside], np.diff(cuts)[inside]
        owner = np.searchsorted(edges, begin, side="right") - 1
        begin = self.starts[owner] + begin - edges[owner]
        end = begin + size
        apart = begin[1:] != end[:-1]
        return RowRanges(
            np.concatenate([begin[:1], begin[1:][apart]]),
            np.concatenate([end[:-1][apart], end[-1:]]),
        )


class DiskColumn(np.lib.mixins.NDArrayOperatorsMixin):
    """Some rows of a file, in the form of an array that cannot be written."""

    def __init__(self, file: ColumnFile, ranges: RowRanges | None = None):
        self.file = file
        self._ranges = ranges or RowRanges(np.array([0]), np.array([file.shape[0]]))
        self._edges = self._ranges.edges

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        return self.file.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and the shape of a row."""
        return (int(self._edges[-1]), *self.file.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes."""
        return len(self) * self.file.row_bytes

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of the file."""
        return len(self) == self.file.shape[0]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(len(self))
            return self._choose(np.array([start]), np.array([max(start, stop)]))
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        if isinstance(rows, int | np.integer):
            return self._pick(np.array([rows]))[0]
        rows = np.asarray(rows)
        if rows.dtype == bool:
            return self._choose_mask(rows)
        return self._pick(rows)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read the rows from `start` up to `stop`."""
        self.file.check()
        found = np.empty((stop - start, *self.file.shape[1:]), self.dtype)
        first = int(np.searchsorted(self._edges, start, side="right")) - 1
        last = int(np.searchsorted(self._edges, stop, side="left"))
        for part in range(first, last):
            begin, end = max(start, self._edges[part]), min(stop, self._edges[part + 1])
            row = int(self._ranges.starts[part] + begin - self._edges[part])
            self.file.read_into(found[begin - start : end - start], row)
        return found

    def iterate(self) -> Iterator[np.ndarray]:
        """Read all rows, one block after another."""
        for rows in cut_blocks(len(self), self.file.row_bytes):
            yield self.read(rows.start, rows.stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        check_memory(f"{self.file.path}", self.nbytes, self.nbytes)
        found = self.read(0, len(self))
        return found if dtype is None else found.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce" and ufunc in (np.minimum, np.maximum):
            # NumPy's `ptp` asks for both; without this, they would load the column.
            axis = inputs[1] if len(inputs) > 1 else options.get("axis", 0)
            return self.min(axis) if ufunc is np.minimum else self.max(axis)
        loaded = [np.asarray(each) if isinstance(each, DiskColumn) else each for each in inputs]
        return getattr(ufunc, method)(*loaded, **options)

    # NumPy's functions of the same names call these methods, with all of these arguments.

    def min(self, axis: int | None = None, out: None = None) -> Any:  # noqa: ARG002
        """Return the smallest value, of all values or of each column."""
        return self._reduce(np.minimum, [block.min(axis) for block in self.iterate()], axis)

    def max(self, axis: int | None = None, out: None = None) -> Any:  # noqa: ARG002
        """Return the largest value, of all values or of each column."""
        return self._reduce(np.maximum, [block.max(axis) for block in self.iterate()], axis)

    def any(self, axis: None = None, out: None = None) -> bool:  # noqa: ARG002
        """Return whether any value is set."""
        return any(bool(block.any()) for block in self.iterate())

    def all(self, axis: None = None, out: None = None) -> bool:  # noqa: ARG002
        """Return whether all values are set."""
        return all(bool(block.all()) for block in self.iterate())

    def sum(self, axis: None = None, dtype: Any = None, out: None = None) -> Any:  # noqa: ARG002
        """Return the sum of all values, in double precision or as a whole number."""
        kind = np.float64 if self.dtype.kind == "f" else np.int64
        return sum((block.sum(dtype=kind) for block in self.iterate()), kind(0))

    @staticmethod
    def _reduce(ufunc: np.ufunc, parts: list[Any], axis: int | None) -> Any:
        assert axis in (None, 0)
        return ufunc.reduce(np.stack(parts), axis=0)

    def _choose(
        self, starts: Int[np.ndarray, " parts"], stops: Int[np.ndarray, " parts"]
    ) -> "DiskColumn":
        return DiskColumn(self.file, self._ranges.choose(starts, stops))

    def _choose_mask(self, mask: Bool[np.ndarray, " n"]) -> "DiskColumn":
        if mask.shape != (len(self),):
            raise IndexError(f"a mask of shape {mask.shape} for {len(self)} rows")
        changes = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        edges = np.concatenate([[0], changes, [len(mask)]])
        first = 0 if len(mask) and mask[0] else 1
        starts, stops = edges[first:-1:2], edges[first + 1 :: 2]
        return self._choose(starts, stops)

    def _pick(self, rows: Int[np.ndarray, "*k"]) -> np.ndarray:
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must be below {len(self)}")
        self.file.check()
        owner = np.searchsorted(self._edges, rows, side="right") - 1
        places = self._ranges.starts[owner] + rows - self._edges[owner]
        wanted, back = np.unique(places, return_inverse=True)
        found = np.empty((len(wanted), *self.file.shape[1:]), self.dtype)
        # Rows that follow each other are read together.
        first = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        for start, stop in zip(first.tolist(), [*first[1:].tolist(), len(wanted)], strict=False):
            self.file.read_into(found[start:stop], int(wanted[start]))
        return found[back.reshape(rows.shape)]


def cut_blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield the rows of blocks that fit into memory easily."""
    size = max(1, _BLOCK_BYTES // max(row_bytes, 1))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def find_extremes(column: Any, axis: int | None = 0) -> tuple[Any, Any]:
    """Return the smallest and the largest value of each column; one pass if it is on the disk."""
    if not isinstance(column, DiskColumn):
        rows = np.asarray(column)
        return rows.min(axis=axis), rows.max(axis=axis)
    lows, highs = [], []
    for block in column.iterate():
        lows.append(block.min(axis))
        highs.append(block.max(axis))
    return np.min(lows, axis=0), np.max(highs, axis=0)


def measure_width(column: Any, axis: int | None = 0) -> Any:
    """Return the width of the range of each column; one pass if it is on the disk."""
    low, high = find_extremes(column, axis)
    return high - low


def measure_moments(column: DiskColumn) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column, in one pass.

    Blocks are joined by the formula of Chan, Golub and LeVeque. A single block gives what NumPy
    gives for an array in memory, bit for bit.
    """
    count, mean, deviation = 0, np.zeros(0), np.zeros(0)
    for rows in column.iterate():
        block = rows.reshape(len(rows), -1)
        block_mean = block.mean(axis=0, dtype=np.float64)
        spread = block.std(axis=0, dtype=np.float64, mean=block_mean[None])
        if count == 0:
            count, mean, deviation = len(block), block_mean, spread
            continue
        total, gap = count + len(block), block_mean - mean
        old, new = count / total, len(block) / total
        deviation = np.sqrt(old * deviation**2 + new * spread**2 + old * new * gap**2)
        mean, count = mean + new * gap, total
    return mean, deviation
