"""Records of speed: `results/speed.json`."""

from pathlib import Path

from gelato.runs.records import Record, device, merge_records


def record_speed(
    path: Path, what: str, value: float, unit: str, against: str, ratio: float
) -> Record:
    """Merge one speed measurement into a file of records."""
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
