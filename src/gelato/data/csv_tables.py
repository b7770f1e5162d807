"""Read CSV files: one file, a folder or a pattern."""

import csv as csv_module
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from gelato.data.arrow_values import find_text
from gelato.data.build import build_dataset
from gelato.data.layout import read_layout
from gelato.data.sources import Reference
from gelato.data.tables import AbstractTables, Batch, TableRecording, list_files
from gelato.data.transitions import Dataset
from gelato.errors import InputError, first_line

_BLOCK = 2**23
_LONGEST_HEADER = 2**20
_SEPARATORS = {"tab": "\t", "semicolon": ";", "space": " ", "comma": ","}
_DECIMALS = {"point": ".", "comma": ","}
# Fields whose integers and texts stay as they are; all other columns are read as numbers.
_OWN_TYPE = ("episode", "time")


def load_csv(reference: Reference) -> Dataset:
    """Read CSV files as `csv:PATH`."""
    files = list_files(reference.target, (".csv", ".tsv", ".csv.gz"))
    decimal = reference.options.get("decimal", "point")
    if decimal not in _DECIMALS:
        raise InputError(f"decimal={decimal} must be point or comma")
    tables = CsvTables(files, reference.options.get("separator"), _DECIMALS[decimal])
    recording = TableRecording(reference.target, tables)
    return build_dataset(recording, read_layout(reference.options), str(reference))


class CsvTables(AbstractTables):
    """CSV files with a line of column names; types come from the first rows."""

    def __init__(self, files: Sequence[Path], separator: str | None = None, decimal: str = "."):
        self.files = list(files)
        header = _read_header(self.files[0])
        self._separator = _SEPARATORS.get(separator or "", separator) or _guess_separator(header)
        self._decimal = decimal
        if len(self._separator) != 1 or not self._separator.isascii():
            raise InputError(
                f"separator={separator} must be one ASCII character, or {', '.join(_SEPARATORS)}"
            )
        if _looks_like_values(self._list_names(self.files[0])):
            raise InputError(
                f"{self.files[0]}: the first line holds numbers; it must hold the column names"
            )
        try:
            self._inspect()
        except (pa.ArrowException, OSError) as error:
            raise _describe(self.files[0], error) from error

    def _inspect(self) -> None:
        """Find the types of the columns and the length of a row in the first rows."""
        path = self.files[0]
        with self._open(path, {}) as reader:
            self.schema = reader.schema
            batch = next(iter(reader), None)
        rows = 0 if batch is None else batch.num_rows
        self._bytes_per_row = min(path.stat().st_size, _BLOCK) / max(rows, 1)

    def estimate_rows(self) -> int:
        return int(1.02 * self.stored_bytes / self._bytes_per_row) + 1

    def iterate(self, fields: Mapping[str, str]) -> Iterator[Batch]:
        types = {}
        for name, field in fields.items():
            types[name] = self._choose_type(name, field)
        for path in self.files:
            try:
                for first, batch in self._read(path, types):
                    yield path, first, batch
            except (pa.ArrowException, OSError) as error:
                numbers = [name for name, kind in types.items() if kind == pa.float64()]
                raise self._find_text(path, numbers) or _describe(path, error) from error

    def _choose_type(self, name: str, field: str) -> pa.DataType:
        kind = self.schema.field(name).type
        if field in _OWN_TYPE or pa.types.is_boolean(kind):
            return kind
        # Later rows may hold fractions where the first ones hold none.
        if field == "actions" and pa.types.is_integer(kind) and self._has_only_integers(name):
            return kind
        return pa.float64()

    def _has_only_integers(self, name: str) -> bool:
        """Return whether a column holds whole numbers in every row of every file."""
        try:
            for path in self.files:
                for _ in self._read(path, {name: pa.int64()}):
                    pass
        except pa.ArrowException:
            return False
        return True

    def _list_names(self, path: Path) -> list[str]:
        header = _read_header(path)
        try:
            names = next(csv_module.reader([header], delimiter=self._separator))
        except csv_module.Error as error:
            raise _describe(path, error) from error
        return [name.strip() for name in names]

    def _open(
        self, path: Path, types: Mapping[str, pa.DataType], columns: Sequence[str] = ()
    ) -> csv.CSVStreamingReader:
        return csv.open_csv(
            path,
            read_options=csv.ReadOptions(
                block_size=_BLOCK, column_names=self._list_names(path), skip_rows=1
            ),
            parse_options=csv.ParseOptions(delimiter=self._separator),
            convert_options=csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(columns),
                decimal_point=self._decimal,
            ),
        )

    def _read(
        self, path: Path, types: Mapping[str, pa.DataType]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the columns of these types in pieces, each with the number of its first row."""
        first = 0
        with self._open(path, types, list(types)) as reader:
            for batch in reader:
                yield first, batch
                first += batch.num_rows

    def _find_text(self, path: Path, columns: Sequence[str]) -> InputError | None:
        """Find the first text in columns of numbers."""
        try:
            for name in columns:
                for first, batch in self._read(path, {name: pa.string()}):
                    row, text = find_text(batch.column(0))
                    if text and not _is_number(text):
                        return InputError(
                            f"{path}: {name} holds text, {text[:40]!r} in row {first + row} "
                            f"(line {first + row + 2}); it must hold numbers{_hint(text)}"
                        )
        except pa.ArrowException:
            return None
        return None


def _read_header(path: Path) -> str:
    """Return the first line, which holds the names of the columns."""
    try:
        with pa.input_stream(path, compression="detect") as file:
            line, newline, _ = file.read(_LONGEST_HEADER).partition(b"\n")
        if not newline and len(line) == _LONGEST_HEADER:
            raise InputError(f"{path}: the first line, with the column names, is longer than 1 MiB")
        header = line.decode("utf-8-sig").rstrip("\r")
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except (pa.ArrowException, OSError) as error:
        raise _describe(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text; save it as a UTF-8 file") from error
    if not header.strip():
        raise InputError(f"{path}: the first line is empty; it must hold the column names")
    return header


def _guess_separator(header: str) -> str:
    """Return the character that separates the names of the columns."""
    return max(",;\t", key=header.count) if any(map(header.count, ",;\t")) else ","


def _looks_like_values(names: Sequence[str]) -> bool:
    """Return whether most names are numbers, other than 0, 1, 2, … as pandas numbers columns."""
    numbers = [name for name in names if _is_number(name)]
    counted = numbers == [str(place) for place in range(len(numbers))]
    return len(numbers) > len(names) / 2 and not counted


def _hint(text: str) -> str:
    """Explain a number with a decimal comma."""
    comma = text.count(",") == 1 and _is_number(text.replace(",", "."))
    return ". Add ,decimal=comma if the comma is a decimal sign" if comma else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a readable CSV file ({first_line(error)})")
