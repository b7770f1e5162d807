"""Run folders, the training loop that resumes in them, and atomic file writes."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use

if TYPE_CHECKING:
    from gelato.runs.folder import Run, open_run
    from gelato.runs.loggers import (
        Block,
        LoggedRun,
        Logger,
        list_loggers,
        register_logger,
    )
    from gelato.runs.loop import run_blocks
    from gelato.runs.outbox import log_files
    from gelato.runs.records import Record, merge_records, read_records, write_records

__all__ = [
    "Block",
    "LoggedRun",
    "Logger",
    "Record",
    "Run",
    "list_loggers",
    "log_files",
    "merge_records",
    "open_run",
    "read_records",
    "register_logger",
    "run_blocks",
    "write_records",
]

_HOMES = {
    "Block": "gelato.runs.loggers",
    "LoggedRun": "gelato.runs.loggers",
    "Logger": "gelato.runs.loggers",
    "Record": "gelato.runs.records",
    "Run": "gelato.runs.folder",
    "list_loggers": "gelato.runs.loggers",
    "log_files": "gelato.runs.outbox",
    "merge_records": "gelato.runs.records",
    "open_run": "gelato.runs.folder",
    "read_records": "gelato.runs.records",
    "register_logger": "gelato.runs.loggers",
    "run_blocks": "gelato.runs.loop",
    "write_records": "gelato.runs.records",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
