"""Run folders, the training loop that resumes in them, and atomic file writes."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use

if TYPE_CHECKING:
    from gelato.runs.folder import Run, open_run
    from gelato.runs.loop import run_blocks
    from gelato.runs.records import Record, merge_records, read_records, write_records

__all__ = [
    "Record",
    "Run",
    "merge_records",
    "open_run",
    "read_records",
    "run_blocks",
    "write_records",
]

_HOMES = {
    "Record": "gelato.runs.records",
    "Run": "gelato.runs.folder",
    "merge_records": "gelato.runs.records",
    "open_run": "gelato.runs.folder",
    "read_records": "gelato.runs.records",
    "run_blocks": "gelato.runs.loop",
    "write_records": "gelato.runs.records",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
