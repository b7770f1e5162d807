"""Read .npz files of any origin: no pickles, every damage is an `InputError`, bounded memory."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from gelato.errors import InputError, first_line
from gelato.runs.memory import check_memory

_ARCHIVE, _ARRAY = b"PK", b"\x93NUMPY"
# Bytes that are decompressed at a time.
_PART = 2**20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Arrays:
    """The named arrays of an open .npz file."""

    path: Path
    archive: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo]
    _open: dict[str, tuple[IO[bytes], tuple[int, ...], np.dtype, int, bool]] = field(
        default_factory=dict
    )

    def read(self, name: str) -> np.ndarray:
        """Read one array."""
        what = f"{self.path}: field {name}"
        with report_member(what):
            return self._read(self.members[name], what)

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one array."""
        what = f"{self.path}: field {name}"
        with report_member(what):
            return self._read_header(self.members[name], what)[0]

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Read some rows of one array; it is fastest to read them in order."""
        what = f"{self.path}: field {name}"
        with report_member(what):
            if name not in self._open:
                member = self.members[name]
                self._open[name] = self.archive.open(member), *self._read_header(member, what)
            file, shape, dtype, begin, fortran = self._open[name]
            if fortran or not shape:
                return self.read(name)[start:stop]
            size = dtype.itemsize * math.prod(shape[1:])
            check_memory(what, (stop - start) * size, self.members[name].compress_size)
            file.seek(begin + start * size)
            values = np.empty((stop - start, *shape[1:]), dtype)
            left = values.reshape(-1).view(np.uint8).data
            while left:
                part = file.read(min(len(left), _PART))
                if not part:
                    raise ValueError("it is cut short")
                left[: len(part)] = part
                left = left[len(part) :]
            return values

    def _read(self, member: zipfile.ZipInfo, what: str) -> np.ndarray:
        shape, dtype, _, _ = self._read_header(member, what)
        stored = min(member.compress_size, self.path.stat().st_size)
        check_memory(what, math.prod(shape) * dtype.itemsize, stored)
        with self.archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)

    def _read_header(
        self, member: zipfile.ZipInfo, what: str
    ) -> tuple[tuple[int, ...], np.dtype, int, bool]:
        """Return shape, type, the place of the first value, and whether columns come first."""
        with self.archive.open(member) as file:
            header = _HEADERS.get(npy.read_magic(file))
            if header is None:
                raise InputError(f"{what} cannot be read (unknown version of the format)")
            shape, fortran, dtype = header(file)
            begin = file.tell()
        if dtype.hasobject:
            raise InputError(f"{what} holds Python objects; write it as one array of numbers")
        count = 1
        for size in shape:
            count *= int(size)
        claimed = count * dtype.itemsize
        if min(shape, default=0) < 0 or begin + claimed != member.file_size:
            raise InputError(
                f"{what} cannot be read (its shape {shape} needs {claimed:,} bytes, but it has "
                f"{member.file_size - begin:,})"
            )
        return tuple(map(int, shape)), dtype, begin, fortran


@contextmanager
def report_member(what: str) -> Iterator[None]:
    """Convert what damage in a zip file causes into an `InputError`."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Damage surfaces as a dozen kinds of exceptions.
        raise InputError(f"{what} cannot be read ({first_line(error)})") from error


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """Open a .npz file."""
    try:
        with path.open("rb") as file:
            kind = file.read(len(_ARRAY))
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    if kind == _ARRAY:
        raise InputError(f"{path}: a single array, not an .npz archive of named arrays")
    if not kind.startswith(_ARCHIVE):
        raise InputError(f"{path}: not a readable .npz file; it has another format")
    try:
        archive = zipfile.ZipFile(path)
        members = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:  # Other programs would read the other one.
                raise ValueError(f"it has two fields {name}")
            members[name] = member
    except Exception as error:  # As in `Arrays.read`.
        raise InputError(
            f"{path}: not a readable .npz file, perhaps cut short ({first_line(error)})"
        ) from error
    with archive:
        yield Arrays(path, archive, members)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of a file of ours, each under its path in the tree."""
    try:
        with open_arrays(path) as arrays:
            # Many members can share the same bytes of the file.
            claimed = sum(member.file_size for member in arrays.members.values())
            check_memory(f"{path}", claimed, path.stat().st_size)
            return {name: arrays.read(name) for name in arrays.members}
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; the run is not finished") from error
    except (InputError, OSError) as error:
        raise InputError(f"{path}: damaged or cut short ({first_line(error)})") from error
