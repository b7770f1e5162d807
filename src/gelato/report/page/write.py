"""`write_report`: the page and its records as two files."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.report.page.collect.run import collect_run, compare_runs
from gelato.report.page.records import Comparison, RunReport, to_plain
from gelato.report.page.render.page import read_plotly, render_page
from gelato.runs.files import read_json, write_atomically
from gelato.runs.folder import Run
from gelato.runs.loggers import Logger, make_loggers
from gelato.runs.outbox import log_files
from gelato.runs.sweeps import expand_sweeps

DEFAULT_NAME = "report.html"


def write_report(
    run: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    *,
    data: Dataset | None = None,
    fitted_to: str | None = None,
    log: str | Logger | Sequence[str | Logger] = (),
) -> Path:
    """Write the report page of a run, or a comparison of several runs; return its path.

    The page is one file that needs no network. A file of the same name that ends in `.json` has
    the same content. Default: `report.html` in the folder of the (first) run. `data` is a new log
    that is judged and drawn on the map; `fitted_to` is the new location of training data that
    moved. `log`: the loggers of the training that also receive the page.
    """
    path, _ = make_report(run, out, data=data, fitted_to=fitted_to, log=log)
    return path


def make_report(
    run: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    *,
    data: Dataset | None = None,
    fitted_to: str | None = None,
    log: str | Logger | Sequence[str | Logger] = (),
) -> tuple[Path, dict[str, Any]]:
    """Do what `write_report` does, and also return the records."""
    runs: Sequence[Path | str] = [run] if isinstance(run, str | Path) else list(run)
    if not runs:
        raise InputError("name the folder of at least one run")
    path = Path(out) if out is not None else Path(runs[0]) / DEFAULT_NAME
    _check_output(path)
    _check_records(path.with_suffix(".json"))
    runs = expand_sweeps(runs)
    loggers = make_loggers(log)
    if loggers:
        if len(runs) > 1:
            raise InputError("--log sends the report of one run; give one run, or leave out --log")
        _ = Run(Path(runs[0])).results  # an error if the training is not finished
    read_plotly()
    report: RunReport | Comparison
    if len(runs) == 1:
        report = collect_run(runs[0], data, fitted_to)
    else:
        if data is not None:
            raise InputError(
                "a report of several runs cannot judge a new log; give one run, or no data"
            )
        report = compare_runs(runs, fitted_to)
    records = to_plain(report)
    page = render_page(report)
    for file, text in ((path, page), (path.with_suffix(".json"), json.dumps(records) + "\n")):
        with write_atomically(file) as partial:
            # A path may hold bytes that are no text.
            partial.write_text(text, "utf-8", "backslashreplace")
    if loggers:
        log_files(runs[0], loggers, [path])
    return path, records


def _check_records(path: Path) -> None:
    """Refuse to replace a JSON file that the user has not named, unless it is of a report."""
    if not path.exists():
        return
    found = read_json(path)
    if not isinstance(found, dict) or not (
        {"verdict", "reproduce"} <= found.keys() or {"runs", "same_data"} <= found.keys()
    ):
        raise InputError(
            f"{path}: the report would replace this file, which is not from a report. Name "
            "another page with --out"
        )


def _check_output(path: Path) -> None:
    """Raise an error early if the page cannot be written."""
    if path.suffix != ".html":
        raise InputError(f"{path}: the name of a report must end in .html")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder")
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{path.parent}: no permission to write to this folder. Name another file with --out"
        )
