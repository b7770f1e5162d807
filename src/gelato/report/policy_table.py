"""Tables of returns: mean ± standard deviation over seeds, IQM with bootstrap intervals, the paper's numbers beside."""

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import trim_mean

from gelato.errors import InputError
from gelato.results import Record, Settings, read_records
from gelato.runs import Run

# Table 1 of the paper: mean return over five seeds, D4RL v0 data.
_TASKS = ("hopper", "walker2d", "halfcheetah")
_KINDS = ("random", "medium", "medium-expert")
_PAPER = {
    "gelato": (685, 1676, 574, 412, 1269, 1515, 2560, 5168, 7989),
    "gelato-l2": (544, 1320, 815, 388, 312, 1255, 512, 4096, 7304),
    "mopo": (677, 1202, 1063, 396, 518, 1296, 4114, 4974, 7594),
    "mbpo": (444, 457, 2105, 251, 370, 222, 3527, 3228, 907),
    "sac": (664, 325, 1850, 120, 27, -2, 3502, -839, -78),
    "bc": (615, 1234, 3907, 47, 193, 329, -41, 4201, 4164),
}
DATASETS = tuple(f"{task}-{kind}" for task in _TASKS for kind in _KINDS)
_RESAMPLES = 2000
_NEEDED = {"dataset", "method", "seed", "return", "score", "steps"}


def paper_return(dataset: str, method: str) -> int | None:
    """What the paper reports, if anything."""
    if method not in _PAPER or dataset not in DATASETS:
        return None
    return _PAPER[method][DATASETS.index(dataset)]


def gather(runs: Sequence[Path]) -> list[Record]:
    """The records of training runs' folders, or of files of records."""
    found: list[Record] = []
    for run in runs:
        if not run.exists():
            raise InputError(f"{run}: no such file or folder")
        path = Run(run).results if run.is_dir() else run
        records = read_records(path)
        missing = sorted({key for record in records for key in _NEEDED - record.keys()})
        if missing:
            raise InputError(f"{path}: its records are not those of policies; they have no {', '.join(missing)}")
        found += records
    if not found:
        raise InputError("the runs hold no records yet")
    _check_cells(found)
    return found


def _check_cells(records: Sequence[Record]) -> None:
    """Only seeds may tell the records of a cell apart."""
    firsts: dict[tuple[object, ...], Record] = {}
    seen: set[tuple[object, ...]] = set()
    for record in records:
        cell = (record["dataset"], record["method"])
        if (*cell, record["seed"]) in seen:
            raise InputError(f"{cell[0]}, {cell[1]}: seed {record['seed']} is there twice; name each run once")
        seen.add((*cell, record["seed"]))
        first = firsts.setdefault(cell, record)
        for name in ("steps", *(field.name for field in fields(Settings))):
            if record.get(name) != first.get(name):
                raise InputError(
                    f"{cell[0]}, {cell[1]}: runs differ in {name} ({first.get(name)}, {record.get(name)}); a table's "
                    "cell holds seeds of one setting"
                )


def summarise_policies(records: Sequence[Record]) -> list[Record]:
    """A record for each dataset and method: mean and standard deviation over seeds, and the paper's number."""
    rows: list[Record] = []
    pairs = dict.fromkeys((str(record["dataset"]), str(record["method"])) for record in records)
    for dataset, method in sorted(pairs, key=_order):
        own = [record for record in records if (record["dataset"], record["method"]) == (dataset, method)]
        returns = [float(record["return"]) for record in own if record["return"] is not None]
        scores = [float(record["score"]) for record in own if record["score"] is not None]
        rows.append(
            {
                "dataset": dataset,
                "method": method,
                "seeds": len(own),
                "steps": own[0]["steps"],
                **_spread("return", returns),
                **_spread("score", scores),
                "data_return": own[0].get("data_return"),
                "paper": paper_return(dataset, method),
            }
        )
    return rows


def as_grid(records: Sequence[Record]) -> str:
    """Mean returns ± deviation over seeds in Markdown, datasets down and methods across.

    Beside them the mean return of the data itself, and the paper's GELATO.
    """
    cells = {(str(cell["dataset"]), str(cell["method"])): cell for cell in summarise_policies(records)}
    datasets, methods = (list(dict.fromkeys(names)) for names in zip(*cells))
    means = {row["method"]: row for row in aggregate(records)}

    def row(dataset: str) -> list[str]:
        found = [cells.get((dataset, method)) for method in methods]
        own = [cell for cell in found if cell is not None]
        form = _form_of(own)
        returns = ["–" if cell is None else _number(cell, "return", form) for cell in found]
        return [dataset, *returns, _value(own[0]["data_return"], form), _value(paper_return(dataset, "gelato"), form)]

    scores = [
        f"{means[method]['mean_score']:.1f} ({means[method]['datasets']})" if method in means else "–"
        for method in methods
    ]
    last = ["mean score (of so many)", *scores, "–", "–"]
    columns = ["dataset", *methods, "the data itself", "paper's GELATO"]
    return markdown_table(columns, [*map(row, datasets), last])


def _order(pair: tuple[str, str]) -> tuple[int, int, str, str]:
    dataset, method = pair
    known = DATASETS.index(dataset) if dataset in DATASETS else len(DATASETS)
    methods = ("gelato", "gelato-l2", "gelato-ensemble", *_PAPER)
    return known, methods.index(method) if method in methods else len(methods), dataset, method


def _spread(name: str, values: Sequence[float]) -> Record:
    if not values:
        return {f"{name}_mean": None, f"{name}_std": None}
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {f"{name}_mean": float(np.mean(values)), f"{name}_std": spread}


def aggregate(records: Sequence[Record]) -> list[Record]:
    """For each method the mean and IQM of normalised scores over datasets and seeds, with 95% intervals.

    As rliable defines them: the middle half of all runs, and a bootstrap that draws seeds within each dataset.
    """
    rows: list[Record] = []
    for method in dict.fromkeys(str(record["method"]) for record in records):
        by_dataset: dict[str, list[float]] = {}
        for record in records:
            if record["method"] == method and record["score"] is not None:
                by_dataset.setdefault(str(record["dataset"]), []).append(float(record["score"]))
        if not by_dataset:
            continue
        groups = [np.array(values) for values in by_dataset.values()]
        scores = np.concatenate(groups)
        several = max(map(len, groups)) > 1
        low, high = np.quantile(_resampled(groups), (0.025, 0.975)).tolist() if several else (None, None)
        rows.append(
            {
                "method": method,
                "datasets": len(groups),
                "mean_score": float(np.mean([group.mean() for group in groups])),
                "iqm": float(trim_mean(scores, 0.25)),
                "iqm_low": low,
                "iqm_high": high,
            }
        )
    return sorted(rows, key=lambda row: -float(row["mean_score"] or 0))


def _resampled(groups: Sequence[np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = [group[rng.integers(len(group), size=(_RESAMPLES, len(group)))] for group in groups]
    return trim_mean(np.concatenate(drawn, axis=1), 0.25, axis=1)


def as_text(records: Sequence[Record], form: str) -> str:
    """Both tables in Markdown or LaTeX."""
    cells = summarise_policies(records)
    names = {cell["dataset"] for cell in cells}
    forms = {name: _form_of([cell for cell in cells if cell["dataset"] == name]) for name in names}
    tables: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [
        (
            ("dataset", "method", "return", "score", "data", "paper", "seeds", "steps"),
            [
                (
                    str(cell["dataset"]),
                    str(cell["method"]),
                    _number(cell, "return", forms[cell["dataset"]]),
                    _number(cell, "score", ".1f"),
                    _value(cell["data_return"], forms[cell["dataset"]]),
                    _value(cell["paper"], forms[cell["dataset"]]),
                    str(cell["seeds"]),
                    f"{cell['steps']:,}",
                )
                for cell in cells
            ],
        ),
        (
            ("method", "datasets", "mean score", "IQM", "95% interval"),
            [
                (
                    str(row["method"]),
                    str(row["datasets"]),
                    f"{row['mean_score']:.1f}",
                    f"{row['iqm']:.1f}",
                    "–" if row["iqm_low"] is None else f"{row['iqm_low']:.1f} to {row['iqm_high']:.1f}",
                )
                for row in aggregate(records)
            ],
        ),
    ]
    writer = _latex if form == "latex" else markdown_table
    return "\n".join(writer(columns, rows) for columns, rows in tables if rows)


def _form_of(cells: Sequence[Record]) -> str:
    names = ("return_mean", "data_return")
    return return_form(*(float(value) for cell in cells for name in names if (value := cell[name]) is not None))


def return_form(*returns: float) -> str:
    """How returns that stand together are written: whole, unless all are small."""
    return ",.0f" if max(map(abs, returns), default=0) >= 100 else ".2f"


def _value(value: Any, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _number(cell: Record, name: str, form: str) -> str:
    if cell[f"{name}_mean"] is None:
        return "–"
    mean, std = cell[f"{name}_mean"], cell[f"{name}_std"]
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of the docs, a line for each row."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _latex(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        escaped = (re.sub(r"([%&#$_{}])", r"\\\1", cell) for cell in cells)
        return " & ".join(cell.replace("±", r"$\pm$").replace("–", "--") for cell in escaped) + r" \\"

    body = "\n".join(line(row) for row in rows)
    layout = "l" * len(columns)
    return f"\\begin{{tabular}}{{{layout}}}\n\\hline\n{line(columns)}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n"
