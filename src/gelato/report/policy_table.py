"""Tables of returns: mean ± standard deviation over seeds, and IQM with bootstrap intervals."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from scipy.stats import t as student
from scipy.stats import trim_mean

from gelato.errors import InputError
from gelato.report.references import shorten_reference
from gelato.runs.folder import Run
from gelato.runs.records import Record, Settings, read_records

Published = Callable[[str, str], int | float | None]
"""The return that a paper reports for a dataset and a method, or None."""
_RESAMPLES = 2000
_NEEDED = {"dataset", "method", "seed", "return", "score", "steps"}
_LARGEST = 1e300
_LABEL = ("dataset", "method", "penalty_weight")


def gather(runs: Sequence[Path]) -> list[Record]:
    """Read the records of training runs: folders, or JSON files of records."""
    found: list[Record] = []
    for run in runs:
        if not run.exists():
            raise InputError(f"{run}: no such file or folder")
        path = Run(run).results if run.is_dir() else run
        records = read_records(path)
        missing = sorted({key for record in records for key in _NEEDED - record.keys()})
        if missing:
            raise InputError(
                f"{path}: not results of `gelato train`: the records lack the fields "
                f"{', '.join(missing)}"
            )
        for record in records:
            _check_values(path, record)
        found += records
    if not found:
        raise InputError("the runs contain no results yet. Finish `gelato train` first")
    _check_cells(found)
    return found


def _check_values(path: Path, record: Record) -> None:
    """Raise an error if a value cannot be shown in a table; the file may be someone else's."""
    for name in ("dataset", "method"):
        value = record[name]
        if not isinstance(value, str) or not value.isprintable():
            raise InputError(f"{path}: {name} {value!r} is not a line of text")
    for name in ("seed", "steps"):
        if not isinstance(record[name], int):
            raise InputError(f"{path}: {name} {record[name]!r} is not a whole number")
    for name in ("return", "score", "penalty_weight"):
        value = record.get(name)
        if value is not None and not (isinstance(value, int | float) and abs(value) < _LARGEST):
            raise InputError(f"{path}: {name} {str(value)[:50]!r} is not a number")


def _check_cells(records: Sequence[Record]) -> None:
    """Raise an error if records of one cell (dataset, method, λ) differ in more than the seed.

    A cell of the table averages seeds of one setting.
    """
    firsts: dict[tuple[object, ...], Record] = {}
    known: set[tuple[object, ...]] = set()
    for record in records:
        cell = tuple(record.get(name) for name in _LABEL)
        name = f"{shorten_reference(str(record['dataset']))}, {record['method']}"
        if (*cell, record["seed"]) in known:
            raise InputError(
                f"{name}: seed {record['seed']} occurs twice with the same penalty weight. List "
                "each run only once"
            )
        known.add((*cell, record["seed"]))
        first = firsts.setdefault(cell, record)
        for setting in ("steps", *(field.name for field in fields(Settings))):
            if record.get(setting) != first.get(setting):
                raise InputError(
                    f"{name}: runs differ in {setting} ({first.get(setting)}, "
                    f"{record.get(setting)}); make one table for each setting"
                )


def label_methods(records: Sequence[Record]) -> list[Record]:
    """Add the penalty weight to the names of methods that have several on one dataset.

    For example `gelato λ=3` and `gelato λ=10`. Weights that differ only between datasets are part
    of the method and are not shown.
    """
    weights: dict[tuple[str, str], set[object]] = {}
    for record in records:
        key = str(record["dataset"]), str(record["method"])
        weights.setdefault(key, set()).add(record.get("penalty_weight"))
    swept = {method for (_, method), found in weights.items() if len(found) > 1}
    labelled = []
    for record in records:
        weight = record.get("penalty_weight")
        if record["method"] in swept and weight is not None:
            record = {**record, "method": f"{record['method']} λ={weight:g}"}
        labelled.append(record)
    return labelled


def summarise_policies(
    records: Sequence[Record], published: Published | None = None
) -> list[Record]:
    """Average over seeds: a record for each dataset and method, in order of appearance.

    With `published`, each record also has a field `paper` with the published return.
    """
    cells: dict[str, dict[str, list[Record]]] = {}
    for record in label_methods(records):
        by_method = cells.setdefault(str(record["dataset"]), {})
        by_method.setdefault(str(record["method"]), []).append(record)
    rows: list[Record] = []
    for dataset, by_method in cells.items():
        for method, seeds in by_method.items():
            row: Record = {
                "dataset": shorten_reference(dataset),
                "method": method,
                "seeds": len(seeds),
                "steps": seeds[0]["steps"],
                **_describe_spread(seeds, "return"),
                **_describe_spread(seeds, "score"),
                "data_return": seeds[0].get("data_return"),
            }
            if published is not None:
                row["paper"] = published(dataset, method)
            rows.append(row)
    return rows


def _describe_spread(records: Sequence[Record], name: str) -> Record:
    found = [record[name] for record in records]
    values = [float(value) for value in found if value is not None]
    if not values:
        return {f"{name}_mean": None, f"{name}_std": None}
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {f"{name}_mean": float(np.mean(values)), f"{name}_std": spread}


def aggregate(records: Sequence[Record]) -> list[Record]:
    """Average normalised scores over datasets and seeds: mean and IQM of each method.

    Definitions follow rliable: the IQM is the mean of the middle half of all runs; 95% intervals
    come from a bootstrap over the seeds of each dataset.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for record in label_methods(records):
        if record["score"] is not None:
            by_dataset = scores.setdefault(str(record["method"]), {})
            by_dataset.setdefault(str(record["dataset"]), []).append(float(record["score"]))
    rows: list[Record] = []
    for method, by_dataset in scores.items():
        # Sorted by name, so that the bootstrap does not depend on the order of the runs.
        groups = [np.array(by_dataset[name]) for name in sorted(by_dataset)]
        low = high = None
        if max(map(len, groups)) > 1:
            low, high = np.quantile(_resample_iqm(groups), (0.025, 0.975)).tolist()
        row: Record = {
            "method": method,
            "datasets": len(groups),
            "mean_score": float(np.mean([group.mean() for group in groups])),
            "iqm": float(trim_mean(np.concatenate(groups), 0.25)),
            "iqm_low": low,
            "iqm_high": high,
        }
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["mean_score"] or 0))


def _resample_iqm(groups: Sequence[np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = [group[rng.integers(len(group), size=(_RESAMPLES, len(group)))] for group in groups]
    return trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1)


def as_text(records: Sequence[Record], form: str, published: Published | None = None) -> str:
    """Write both tables in Markdown (`md`) or LaTeX (`latex`)."""
    write = _write_latex if form == "latex" else markdown_table
    text = write(*_list_returns(records, published))
    columns, rows = _list_scores(records)
    return text + "\n" + write(columns, rows) if rows else text


Table = tuple[list[str], list[list[str]]]


def _list_returns(records: Sequence[Record], published: Published | None) -> Table:
    cells = summarise_policies(records, published)
    columns = ["dataset", "method", "return", "score", "data", "seeds", "steps"]
    if published is not None:
        columns.insert(5, "paper")
    rows = []
    for cell in cells:
        form = choose_format([other for other in cells if other["dataset"] == cell["dataset"]])
        row = [
            str(cell["dataset"]),
            str(cell["method"]),
            format_spread(cell, "return", form),
            format_spread(cell, "score", ".1f"),
            format_value(cell["data_return"], form),
            str(cell["seeds"]),
            f"{cell['steps']:,}",
        ]
        if published is not None:
            row.insert(5, format_value(cell["paper"], form))
        rows.append(row)
    return columns, rows


def _list_scores(records: Sequence[Record]) -> Table:
    rows = []
    for row in aggregate(records):
        interval = "–"
        if row["iqm_low"] is not None:
            interval = f"{row['iqm_low']:.1f} to {row['iqm_high']:.1f}"
        numbers = [f"{row['mean_score']:.1f}", f"{row['iqm']:.1f}", interval]
        rows.append([str(row["method"]), str(row["datasets"]), *numbers])
    return ["method", "datasets", "mean score", "IQM", "95% interval"], rows


def choose_format(cells: Sequence[Record]) -> str:
    """Choose the format of the returns in one row or dataset."""
    returns = []
    for cell in cells:
        for value in (cell["return_mean"], cell["data_return"]):
            if value is not None:
                returns.append(float(value))
    return return_form(*returns)


def return_form(*returns: float) -> str:
    """Choose the format of returns: whole numbers, or two decimals if all are below 100."""
    return ",.0f" if max(map(abs, returns), default=0) >= 100 else ".2f"


def show_return(record: Record) -> str:
    """Write the mean return of one policy with its 95% interval over episodes, if that is known."""
    mean, deviation, episodes = record["return"], record.get("return_std"), record["episodes"]
    if mean is None:
        return "-"
    form = return_form(float(mean))
    if deviation is None or episodes is None or int(episodes) < 2:
        return f"{float(mean):{form}}"
    # `deviation` divides by the number of episodes, and the interval of a mean by one less.
    half = student.ppf(0.975, int(episodes) - 1) * float(deviation) / np.sqrt(int(episodes) - 1)
    return f"{float(mean):{form}} ± {half:{form}}"


def format_value(value: str | int | float | None, form: str) -> str:
    """Write a number, or a dash if there is none."""
    return "–" if value is None else f"{value:{form}}"


def format_spread(cell: Record, name: str, form: str) -> str:
    """Write mean ± standard deviation, or a dash if there is none."""
    mean, std = cell[f"{name}_mean"], cell[f"{name}_std"]
    if mean is None or std is None:
        return format_value(mean, form)
    return f"{mean:{form}} ± {std:{form}}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table, one line for each row."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _write_latex(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        # A name from someone else's run may hold commands of LaTeX.
        plain = [cell.replace("\\", "/") for cell in cells]
        text = " & ".join(re.sub(r"([%&#$_{}])", r"\\\1", cell) for cell in plain)
        for sign, latex in (("±", r"$\pm$"), ("–", "--"), ("λ", r"$\lambda$")):
            text = text.replace(sign, latex)
        return text + r" \\"

    begin = rf"\begin{{tabular}}{{{'l' * len(columns)}}}"
    body = [line(row) for row in rows]
    rule = r"\hline"
    lines = [begin, rule, line(columns), rule, *body, rule, r"\end{tabular}"]
    return "\n".join(lines) + "\n"
