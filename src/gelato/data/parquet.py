"""Read Parquet files: one file, a folder or a pattern."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gelato.data.arrow_values import is_text
from gelato.data.build import build_dataset
from gelato.data.layout import read_layout
from gelato.data.sources import Reference
from gelato.data.tables import AbstractTables, Batch, TableRecording, list_files
from gelato.data.transitions import Dataset
from gelato.errors import InputError, first_line
from gelato.runs.memory import check_memory

# Rows per piece: small enough for memory, large enough for speed.
_ROWS = 65_536
_BUFFER = 2**20
_BYTES_PER_VALUE = 8


def load_parquet(reference: Reference) -> Dataset:
    """Read Parquet files as `parquet:PATH`."""
    recording, _ = open_parquet(reference)
    return build_dataset(recording, read_layout(reference.options), str(reference))


def open_parquet(reference: Reference) -> tuple[TableRecording, list[Path]]:
    """Open Parquet files together; also return them."""
    files = list_files(reference.target, (".parquet", ".pq"))
    return TableRecording(reference.target, ParquetTables(files)), files


class ParquetTables(AbstractTables):
    """Parquet files, read by row groups."""

    def __init__(self, files: Sequence[Path]):
        self.files = list(files)
        self._rows = 0
        for number, path in enumerate(self.files):
            with _open(path) as file:
                schema = _read_schema(file, path)
                self._rows += file.metadata.num_rows
            if number == 0:
                self.schema = schema
            _check_columns(self.schema, schema, path)

    def estimate_rows(self) -> int:
        return self._rows

    def count_rows(self) -> int | None:
        return self._rows

    def iterate(self, fields: Mapping[str, str]) -> Iterator[Batch]:
        for path in self.files:
            first = 0
            with _open(path, self._list_texts(fields)) as file:
                try:
                    _check_claims(file, set(fields), path)
                except UnicodeDecodeError as error:
                    raise _describe(path, error) from error
                batches = file.iter_batches(_ROWS, columns=list(fields))
                while True:
                    try:
                        batch = next(batches, None)
                    except (pa.ArrowException, OSError, ValueError) as error:
                        raise _describe(path, error) from error
                    if batch is None:
                        break
                    yield path, first, batch
                    first += batch.num_rows

    def _list_texts(self, fields: Mapping[str, str]) -> list[str]:
        return [name for name in fields if is_text(self.schema.field(name).type)]


def _open(path: Path, texts: Sequence[str] = ()) -> pq.ParquetFile:
    try:
        # Without `pre_buffer=False`, pyarrow keeps all row groups in memory. A text that is stored
        # once and repeated in a million rows stays small as a dictionary.
        return pq.ParquetFile(
            path, buffer_size=_BUFFER, pre_buffer=False, read_dictionary=list(texts)
        )
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except (pa.ArrowException, OSError, ValueError) as error:  # Also text that is not UTF-8.
        raise _describe(path, error) from error


def _read_schema(file: pq.ParquetFile, path: Path) -> pa.Schema:
    try:
        return file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _describe(path, error) from error


def _describe(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path}: not a readable Parquet file, perhaps cut short ({first_line(error)})"
    )


def _check_columns(expected: pa.Schema, schema: pa.Schema, path: Path) -> None:
    """Files that are read together must have the same columns."""
    for field in expected:
        place = schema.get_field_index(field.name)
        if place < 0:
            raise InputError(f"{path}: has no column {field.name}, unlike the first file")
        if schema.field(place).type != field.type:
            raise InputError(
                f"{path}: {field.name} holds {schema.field(place).type}, but {field.type} in the "
                "first file"
            )


def _check_claims(file: pq.ParquetFile, tops: set[str], path: Path) -> None:
    """Compare the number of values that the file claims with its size and with free memory."""
    metadata, largest = file.metadata, 0
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        values = 0
        for place in range(described.num_columns):
            column = file.schema.column(place)
            if column.path.split(".")[0] not in tops:
                continue
            # pyarrow ends the process if it opens a damaged column here, so only lists need it.
            flat = column.max_repetition_level == 0
            values += described.num_rows if flat else described.column(place).num_values
        largest = max(largest, values)
    check_memory(str(path), largest * _BYTES_PER_VALUE, path.stat().st_size)
