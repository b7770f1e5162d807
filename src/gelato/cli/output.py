"""Output of the commands: tables for people, one JSON object for programs."""

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gelato.errors import InputError, make_printable
from gelato.runs.records import read_records


def _console() -> Console:
    # Print file names literally, also with [brackets] in them.
    return Console(highlight=False, emoji=False, markup=False)


def _clean(text: str) -> str:
    """Return a text without commands for the terminal; names may come from hostile files."""
    return make_printable(text, keep="\n")


def print_json(record: Mapping[str, object]) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


def print_fields(title: str, fields: Mapping[str, str]) -> None:
    """Print names and values, one pair per line."""
    table = Table(show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column()
    for name, value in fields.items():
        table.add_row(_clean(name), _clean(value))
    print_title(title)
    _console().print(table)


def print_title(title: str) -> None:
    """Print one line without wrapping it."""
    _console().print(_clean(title), style="bold", soft_wrap=True)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows under headings; names in the first column are never cut."""
    first, *others = map(_clean, columns)
    cells = [[_clean(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False)
    if cells:
        width = max(20, *(len(row[0]) for row in cells))
        heading = textwrap.fill(first, width, break_long_words=False, break_on_hyphens=False)
        table.add_column(heading, no_wrap=True)
    else:
        table.add_column(first)
    for column in others:
        table.add_column(column)
    for row in cells:
        table.add_row(*row)
    _console().print(table)


def format_number(value: object, form: str) -> str:
    """Write a number, or a dash if there is none."""
    return "-" if value is None else f"{value:{form}}"


def check_picture(path: Path | None) -> None:
    """Raise an error early if no picture can be written to the path."""
    if path is not None and path.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"{path}: a picture must end in .png, .pdf or .svg")
    check_output(path)


def check_records(path: Path | None) -> None:
    """Raise an error early if records cannot be merged into the file."""
    check_output(path)
    if path is not None:
        read_records(path)


def check_output(path: Path | None) -> None:
    """Raise an error early if no file can be written to the path."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: no permission to write to the folder {path.parent}")
