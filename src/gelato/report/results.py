"""Measured results: a JSON list of flat records, one a line, that a command writes and the docs are rendered from."""

import json
from collections.abc import Sequence
from pathlib import Path

Record = dict[str, str | int | float | bool | None]


def read_records(path: Path) -> list[Record]:
    """The records of a file, none if it does not exist yet."""
    return json.loads(path.read_text()) if path.exists() else []


def merge_records(path: Path, records: Sequence[Record], keys: Sequence[str]) -> None:
    """Write records, each in place of the one that agrees with it in all `keys`; the others stay."""

    def identity(record: Record) -> tuple[object, ...]:
        return tuple(record.get(key) for key in keys)

    merged = {identity(record): record for record in [*read_records(path), *records]}
    ordered = sorted(merged.values(), key=lambda record: tuple(map(str, identity(record))))
    partial = path.with_suffix(".partial")
    partial.write_text("[\n" + ",\n".join(json.dumps(record) for record in ordered) + "\n]\n")
    partial.replace(path)
