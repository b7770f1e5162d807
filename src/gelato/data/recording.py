"""An opened file of logged data: named columns, of which the chosen ones are read."""

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from gelato.data.observations import is_image
from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.memory import check_ratio

# Warn if single precision divides the range of a column into fewer steps than this.
_FEWEST_STEPS = 1_000
# A row of bytes with two axes of at least this length is an image.
_IMAGE_SIDE = 16
# Fields that keep double precision or their own type; all others become single precision.
EXACT_FIELDS = ("time", "episode", "splits")
# Fields that may be images.
IMAGE_FIELDS = ("observations", "next_observations")


class AbstractRecording(abc.ABC):
    """The named columns of a file. Errors name it by `source`."""

    source: str
    names: list[str]
    labels: Mapping[str, Sequence[str]]
    """Names of the entries of vector columns, where the file has them."""
    widths: dict[str, int]
    """Number of values per row of each column that was read."""
    texts: Collection[str] = ()
    """Columns of text."""

    @abc.abstractmethod
    def read(self, chosen: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        """Read the columns of each field; several columns become one array."""

    def count_rows(self, chosen: Mapping[str, Sequence[str]]) -> int | None:  # noqa: ARG002
        """Return the number of rows of these columns; None if they differ in it, or if the
        recording is not read in blocks."""
        return None

    def iterate(
        self, chosen: Mapping[str, Sequence[str]], start: int, rows: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield blocks of about `rows` rows, from row `start` on."""
        raise NotImplementedError

    def name_values(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return a name for every value per row of these columns.

        A single vector without names of its entries has no names; the task may know some.
        """
        if len(columns) == 1 and self.widths[columns[0]] > 1 and columns[0] not in self.labels:
            return ()
        names: list[str] = []
        for column in columns:
            width = self.widths[column]
            labels = self.labels.get(column, ())
            if width == 1:
                names.append(labels[0] if len(labels) == 1 else column)
            elif len(labels) == width:
                names += labels
            else:
                names += [f"{column}[{place}]" for place in range(width)]
        return tuple(names)


class ArrayRecording(AbstractRecording):
    """A file that holds one array for each column, such as .npz and HDF5."""

    def __init__(
        self,
        source: str,
        names: Sequence[str],
        read: Callable[[str], np.ndarray],
        stored: int,
        find_shape: Callable[[str], tuple[int, ...]],
        read_rows: Callable[[str, int, int], np.ndarray],
    ):
        self.source, self._stored, self._claimed = source, stored, 0
        self.names = list(names)
        self.labels: dict[str, Sequence[str]] = {}
        self.widths: dict[str, int] = {}
        self._read_one, self._find_shape, self._read_rows = read, find_shape, read_rows

    def read(self, chosen: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        return {field: self._read_field(field, names) for field, names in chosen.items()}

    def count_rows(self, chosen: Mapping[str, Sequence[str]]) -> int | None:
        shapes = [self._find_shape(name) for names in chosen.values() for name in names]
        lengths = {shape[0] if shape else -1 for shape in shapes}
        return None if len(lengths) > 1 or -1 in lengths else lengths.pop()

    def iterate(
        self, chosen: Mapping[str, Sequence[str]], start: int, rows: int
    ) -> Iterator[dict[str, np.ndarray]]:
        length = self.count_rows(chosen) or 0
        for first in range(start, length, rows):
            stop = min(first + rows, length)
            yield {field: self._cut(names, first, stop) for field, names in chosen.items()}

    def _cut(self, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        parts = []
        for name in names:
            array = self._read_rows(name, start, stop)
            refuse_image(array.dtype, array.shape[1:], f"{self.source}: {name}")
            if array.dtype == np.float64:
                with np.errstate(over="ignore", invalid="ignore"):
                    array = array.astype(np.float32)
            self.widths[name] = int(np.prod(array.shape[1:], dtype=np.int64))
            parts.append(array if len(names) == 1 else array.reshape(len(array), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _read_field(self, field: str, names: Sequence[str]) -> np.ndarray:
        parts: list[np.ndarray] = []
        for name in names:
            what = f"{self.source}: {name}"
            array = self._read_one(name)
            # Small columns are always read, but thousands of them are not small.
            self._claimed += array.nbytes
            check_ratio(self.source, self._claimed, self._stored)
            alone = field in IMAGE_FIELDS and len(names) == 1
            if not (alone and is_image(array.dtype, array.shape[1:])):
                refuse_image(array.dtype, array.shape[1:], what)
            if field not in EXACT_FIELDS:
                array = compact(array, what)
            self.widths[name] = int(np.prod(array.shape[1:], dtype=np.int64))
            if parts and len(np.atleast_1d(array)) != len(parts[0]):
                raise InputError(
                    f"{what} has {len(np.atleast_1d(array)):,} rows, {names[0]} "
                    f"{len(parts[0]):,}; every column must have one row per step"
                )
            parts.append(array if len(names) == 1 else array.reshape(len(array), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def refuse_image(dtype: np.dtype, shape: Sequence[int], what: str) -> None:
    """Refuse a column of images where images cannot be read."""
    large = [size for size in shape if size >= _IMAGE_SIDE]
    if dtype == np.uint8 and len(large) >= 2:
        size = "×".join(map(str, shape))
        raise InputError(
            f"{what} holds images ({size}), which can only be read from .npz, HDF5 and Minari as "
            "the only observations; choose the other columns with ,observations=NAME|NAME, or read "
            "both with gelato.make_dataset"
        )


def compact(array: np.ndarray, what: str) -> np.ndarray:
    """Convert doubles to single precision early, so that large columns fit into memory."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        if array.ndim and array.size:
            warn_if_coarse(array.min(axis=0).ravel(), array.max(axis=0).ravel(), what)
        return array.astype(np.float32)


def warn_if_coarse(low: np.ndarray, high: np.ndarray, what: str) -> None:
    """Warn about a column that single precision cannot resolve, such as a date in seconds."""
    with np.errstate(over="ignore", invalid="ignore"):
        width, step = high - low, np.spacing(np.maximum(-low, high).astype(np.float32))
    for column in np.flatnonzero((width > 0) & (width < _FEWEST_STEPS * step))[:1]:
        note(
            f"{what}: column {column} varies by {width[column]:.3g}, but single precision stores "
            f"its values in steps of {step[column]:.2g}. Subtract the first value from the whole "
            "column before you save the file"
        )
