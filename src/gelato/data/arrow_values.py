"""Convert Arrow columns to NumPy rows: numbers, lists, tensors, structs, times."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gelato.data.recording import refuse_image
from gelato.errors import InputError

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_DEEPEST = 16


@dataclass(frozen=True)
class Leaf:
    """A column, or a member of a struct: where it is, its type, and its shape if it is a tensor."""

    path: tuple[str, ...]
    type: pa.DataType
    shape: tuple[int, ...]


def flatten_schema(schema: pa.Schema, source: str) -> dict[str, Leaf]:
    """Return the columns by name; the members of structs are columns of their own."""
    leaves: dict[str, Leaf] = {}

    def visit(field: pa.Field, path: tuple[str, ...]) -> None:
        path = (*path, field.name)
        if pa.types.is_struct(field.type) and len(path) < _DEEPEST:
            for place in range(field.type.num_fields):
                visit(field.type.field(place), path)
            return
        name = ".".join(path)
        if name in leaves:
            raise InputError(f"{source}: two columns are called {name}; rename one")
        leaves[name] = Leaf(path, field.type, _tensor_shape(field))

    for field in schema:
        visit(field, ())
    return leaves


def _tensor_shape(field: pa.Field) -> tuple[int, ...]:
    """Return the shape of a column of Arrow's or Ray's tensor type; empty for other types."""
    shape = getattr(field.type, "shape", None)
    if shape is None:
        metadata = field.metadata or {}
        if b"tensor" not in metadata.get(b"ARROW:extension:name", b""):
            return ()
        try:
            shape = json.loads(metadata.get(b"ARROW:extension:metadata", b"null"))
        except (ValueError, RecursionError):
            return ()
    numbers = isinstance(shape, list | tuple) and all(isinstance(size, int) for size in shape)
    return tuple(shape) if numbers else ()


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds text, also as Arrow's dictionary type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def select_leaf(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """Return a column or a member of a struct."""
    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array


def read_rows(
    array: pa.Array,
    name: str,
    path: Path,
    first: int,
    shape: tuple[int, ...] = (),
    *,
    time: bool = False,
) -> np.ndarray:
    """Return an array with one row per row; errors count from `first`, its first row."""
    rows = len(array)
    while isinstance(array, pa.ExtensionArray) or isinstance(array.type, _LISTS):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
            continue
        refuse_nulls(array, name, path, first, len(array) // max(rows, 1))
        if not isinstance(array.type, pa.FixedSizeListType):
            _check_lengths(array, name, path, first, len(array) // max(rows, 1))
        array = array.flatten()
    width = len(array) // max(rows, 1)
    refuse_nulls(array, name, path, first, width)
    values = _read_numbers(array, name, path, first, width, time=time)
    refuse_image(values.dtype, shape, f"{path}: {name}")
    return values.reshape(rows, width)


def _read_numbers(
    array: pa.Array, name: str, path: Path, first: int, width: int, *, time: bool
) -> np.ndarray:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if is_text(kind):
        row, text = find_text(array)
        raise InputError(
            f"{path}: {name} holds text, {text[:40]!r} in row {first + row // max(width, 1)}; it "
            "must hold numbers"
        )
    if time and pa.types.is_temporal(kind):
        return _read_seconds(array)
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        hint = ", perhaps encoded images" if "binary" in str(kind) else ""
        raise InputError(f"{path}: {name} holds {kind}{hint}; it must hold numbers")
    return to_numpy(array)


def to_numpy(array: pa.Array) -> np.ndarray:
    """Return the numbers of an array without nulls.

    pyarrow's own `to_numpy` imports pandas where it is installed, which takes half a second.
    """
    if pa.types.is_boolean(array.type):
        return np.from_dlpack(array.cast(pa.uint8())).view(bool)
    return np.from_dlpack(array)


def _read_seconds(array: pa.Array) -> np.ndarray:
    """Return times of any unit in seconds."""
    kind = array.type
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("s"))
        kind = array.type
    unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
    whole = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    return to_numpy(whole) / unit


def find_text(array: pa.Array) -> tuple[int, str]:
    """Return the first text that is no number, or the first text."""
    texts = array.to_pylist()
    for row, text in enumerate(texts):
        try:
            float(text)
        except (TypeError, ValueError):
            return row, str(text)
    return 0, str(texts[0]) if texts else ""


def refuse_nulls(array: pa.Array, name: str, path: Path, first: int, width: int) -> None:
    """Raise an error that names the first row without a value."""
    if array.null_count:
        row = int(np.argmax(to_numpy(array.is_null()))) // max(width, 1)
        raise InputError(
            f"{path}: {name} has no value in row {first + row}; remove or repair that row"
        )


def _check_lengths(array: pa.Array, name: str, path: Path, first: int, width: int) -> None:
    lengths = to_numpy(pc.list_value_length(array))
    odd = lengths != lengths[:1]
    if odd.any():
        place = int(np.argmax(odd))
        raise InputError(
            f"{path}: {name} has {lengths[place]} values in row {first + place // max(width, 1)}, "
            f"but {lengths[0]} in row {first}; every row must have the same number"
        )
