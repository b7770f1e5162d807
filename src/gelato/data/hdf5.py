"""Read HDF5 files of any origin: every damage is an `InputError`, and no other file is opened."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from gelato.errors import InputError, first_line
from gelato.runs.memory import check_memory

_INSIDE = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)
# Finding an object takes a step per level.
_DEEPEST = 100


@contextmanager
def open_hdf5(path: Path, source: str | None = None) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; errors begin with `source`. Default: its path."""
    try:
        file = h5py.File(path, "r")
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except Exception as error:  # h5py raises a dozen kinds of exceptions for damage.
        raise InputError(
            f"{source or path}: not a readable HDF5 file, perhaps cut short ({first_line(error)})"
        ) from error
    with file:
        yield file


def list_datasets(file: h5py.File, path: Path) -> set[str]:
    """Return the names of all datasets; links to other files are not followed."""
    try:
        return {name.decode(errors="surrogateescape") for name in _visit(file)}
    except Exception as error:
        raise InputError(
            f"{path}: not a readable HDF5 file, it is damaged ({first_line(error)})"
        ) from error


def _visit(file: h5py.File) -> list[bytes]:
    """Return the names of all datasets, without opening each: that takes long in deep files."""
    names: list[bytes] = []

    def visit(name: bytes, info: h5py.h5o.ObjInfo) -> bool | None:
        if name.count(b"/") > _DEEPEST:
            return True
        if info.type == h5py.h5o.TYPE_DATASET:
            names.append(name)
        return None

    if h5py.h5o.visit(file.id, visit, info=True):
        raise ValueError(f"groups are nested more than {_DEEPEST} levels deep")
    return names


def read_dataset(file: h5py.File, name: str, path: Path) -> np.ndarray:
    """Read one dataset whose values are stored in this file."""
    what = f"{path}: field {name}"
    try:
        dataset = file[name]
        _refuse_other_files(dataset.id, what)
        stored = min(dataset.id.get_storage_size(), path.stat().st_size)
        check_memory(what, math.prod(dataset.shape) * dataset.dtype.itemsize, stored)
        return np.asarray(dataset[()])
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be read, the file is damaged ({first_line(error)})"
        ) from error


def find_shape(file: h5py.File, name: str, path: Path) -> tuple[int, ...]:
    """Return the shape of a dataset."""
    try:
        return tuple(file[name].shape)
    except Exception as error:
        raise InputError(f"{path}: field {name} is damaged ({first_line(error)})") from error


def read_dataset_rows(file: h5py.File, name: str, path: Path, start: int, stop: int) -> np.ndarray:
    """Read some rows of a dataset whose values are stored in this file."""
    what = f"{path}: field {name}"
    try:
        dataset = file[name]
        _refuse_other_files(dataset.id, what)
        size = (stop - start) * math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
        check_memory(what, size, min(dataset.id.get_storage_size(), path.stat().st_size))
        return np.asarray(dataset[start:stop])
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be read, the file is damaged ({first_line(error)})"
        ) from error


def refuse_links(file: h5py.File, path: Path, source: str) -> None:
    """Refuse a file with links to other files, or with very deep groups."""

    def find_link(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
        return name if info.type not in _INSIDE or name.count(b"/") > _DEEPEST else None

    found = file.id.links.visit(find_link, info=True)
    if found is None:
        return
    if found.count(b"/") > _DEEPEST:
        raise InputError(f"{source}: {path} has groups nested more than {_DEEPEST} levels deep")
    raise InputError(
        f"{source}: {found.decode(errors='replace')} in {path} is a link to another file; "
        "copy the values into this file"
    )


def read_values(group: h5py.h5g.GroupID, name: str, what: str, stored: int) -> np.ndarray:
    """Read one dataset of a group whose values are stored in this file of `stored` bytes.

    h5py's high-level functions take four times as long, and Minari files have many datasets.
    """
    found = h5py.h5d.open(group, name.encode())
    _refuse_other_files(found, what)
    shape, dtype = found.shape, found.dtype
    if dtype.hasobject:
        raise InputError(f"{what} holds texts or lists, not real numbers")
    check_memory(what, math.prod(shape) * dtype.itemsize, min(found.get_storage_size(), stored))
    values = np.empty(shape, dtype)
    found.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def _refuse_other_files(dataset: h5py.h5d.DatasetID, what: str) -> None:
    """Refuse a dataset that takes its values from other files, which may be private."""
    layout = dataset.get_create_plist()
    virtual = layout.get_layout() == h5py.h5d.VIRTUAL
    if virtual or layout.get_external_count() > 0:
        how = "a virtual dataset" if virtual else "external storage"
        raise InputError(
            f"{what} takes its values from other files ({how}); copy the values into this file"
        )
