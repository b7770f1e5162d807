"""Read .npz files of any origin: no pickles, every damage is an `InputError`, bounded memory."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from gelato.errors import InputError, first_line
from gelato.runs.memory import check_memory

_ARCHIVE, _ARRAY = b"PK", b"\x93NUMPY"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True)
class Arrays:
    """The named arrays of an open .npz file."""

    path: Path
    archive: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo]

    def read(self, name: str) -> np.ndarray:
        """Read one array."""
        what = f"{self.path}: field {name}"
        try:
            return self._read(self.members[name], what)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # Damage in a zip file surfaces as a dozen kinds of exceptions.
            raise InputError(f"{what} cannot be read ({first_line(error)})") from error

    def _read(self, member: zipfile.ZipInfo, what: str) -> np.ndarray:
        with self.archive.open(member) as file:
            header = _HEADERS.get(npy.read_magic(file))
            if header is None:
                raise InputError(f"{what} cannot be read (unknown version of the format)")
            shape, _, dtype = header(file)
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
        stored = min(member.compress_size, self.path.stat().st_size)
        check_memory(what, claimed, stored)
        with self.archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)


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
