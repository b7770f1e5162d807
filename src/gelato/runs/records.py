"""Results as flat JSON records, one per line.

Commands write them; `experiments/docs.py` makes tables from them.
"""

import csv
import fcntl
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gelato.errors import InputError
from gelato.runs.files import read_json, write_atomically

Record = dict[str, str | int | float | bool | None]
"""A flat result that JSON can hold."""
# Names in records of version 0.1, and the names that replaced them.
_OLD_NAMES = {
    "doubt": "state_noise",
    "largest_blur": "largest_noise",
    "real_share": "real_fraction",
}


@dataclass(frozen=True)
class Settings:
    """The settings of a method's policies. Only policies with equal settings are averaged."""

    transitions: int
    episodes: int
    discount: float | None
    state_noise: float | None
    largest_noise: float | None
    penalty: str
    penalty_weight: float
    real_fraction: float


def read_records(path: Path) -> list[Record]:
    """Read the records of a file; a missing file has none."""
    if not path.exists():
        return []
    records = read_json(path, "not a JSON file")
    if not isinstance(records, list) or not all(map(_is_record, records)):
        raise InputError(f"{path}: not a list of records")
    return [_rename_fields(record) for record in records]


def _is_record(record: object) -> bool:
    """Return whether a value is a record: its values are text, numbers, flags or nothing."""
    if not isinstance(record, dict):
        return False
    return all(isinstance(value, str | int | float | None) for value in record.values())


def _rename_fields(record: Record) -> Record:
    """Rename the fields of a record written by version 0.1 to their current names."""
    return {_OLD_NAMES.get(name, name): value for name, value in record.items()}


def merge_records(path: Path, records: Sequence[Record], keys: Sequence[str]) -> None:
    """Add records to a file; each one replaces the record with equal `keys`, if any.

    A lock makes this safe for several processes.
    """

    def identity(record: Record) -> tuple[object, ...]:
        return tuple(record.get(key) for key in keys)

    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        merged = {identity(record): record for record in [*read_records(path), *records]}
        write_records(
            path, sorted(merged.values(), key=lambda record: tuple(map(_place, identity(record))))
        )
    finally:
        os.close(folder)


def _place(value: object) -> tuple[int | float, str]:
    """Return a sort key: numbers by size, then words."""
    return (value, "") if isinstance(value, int | float) else (math.inf, str(value))


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Replace the records of a file."""
    with write_atomically(path) as partial:
        partial.write_text(format_records(records))


def format_records(records: Sequence[Record]) -> str:
    """Return records as JSON, one per line."""
    return "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"


def write_csv(path: Path, records: Sequence[Record]) -> None:
    """Write records with equal fields as a CSV table."""
    with write_atomically(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def device() -> str:
    """Return the device of this process: `CPU`, or the accelerator's name."""
    import jax

    found = jax.devices()[0]
    return "CPU" if found.platform == "cpu" else str(found.device_kind)
