"""Measured results: a JSON list of flat records, one a line, that a command writes and the docs are rendered from."""

import csv
import fcntl
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gelato.errors import InputError
from gelato.whole import whole_file

Record = dict[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Settings:
    """What the policies of one method were made with, beside the seed: only those with the same may be averaged."""

    transitions: int
    episodes: int
    discount: float | None
    doubt: float | None
    largest_blur: float | None
    penalty: str
    penalty_weight: float
    real_share: float


def read_records(path: Path) -> list[Record]:
    """The records of a file, none if it does not exist yet."""
    if not path.exists():
        return []
    try:
        records = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: is no JSON file ({error})") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path}: is no list of records")
    return records


def merge_records(path: Path, records: Sequence[Record], keys: Sequence[str]) -> None:
    """Write records, each in place of the one that agrees with it in all `keys`; the others stay.

    One process at a time: two that measure at once lose nothing of each other's.
    """

    def identity(record: Record) -> tuple[object, ...]:
        return tuple(record.get(key) for key in keys)

    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        merged = {identity(record): record for record in [*read_records(path), *records]}
        write_records(path, sorted(merged.values(), key=lambda record: tuple(map(_place, identity(record)))))
    finally:
        os.close(folder)


def _place(value: object) -> tuple[float, str]:
    """Where a value comes in a sorted file: numbers by size, then words."""
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records in place of whatever the file held."""
    with whole_file(path) as partial:
        partial.write_text("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")


def write_csv(path: Path, records: Sequence[Record]) -> None:
    """Write records of the same fields as a table."""
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def device() -> str:
    """What figures are measured on: `CPU`, or the accelerator's name."""
    import jax

    found = jax.devices()[0]
    return "CPU" if found.platform == "cpu" else str(found.device_kind)


def record_speed(path: Path, what: str, value: float, unit: str, against: str, ratio: float) -> Record:
    """Merge one measurement of speed into a file of them, under what it measures and the device."""
    record: Record = {
        "what": what,
        "device": device(),
        "value": value,
        "unit": unit,
        "against": against,
        "ratio": round(ratio, 2),
    }
    merge_records(path, [record], keys=("what", "device"))
    return record
