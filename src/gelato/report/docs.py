"""Render the tables of the docs from the result files: `python -m gelato.report.docs` rewrites what stands between

<!-- results/NAME.json -->   and   <!-- end -->

A word after the name keeps the records whose first field begins with it, `<!-- results/speed.json generate -->`, or
names another form of the table, `<!-- results/locomotion.json grid -->`.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from gelato.report.driving import as_table
from gelato.report.policy_table import DATASETS, as_grid, as_text, markdown_table
from gelato.results import Record, read_records

_BLOCK = re.compile(r"(<!-- results/(\w+)\.json ?(.*?) ?-->\n).*?<!-- end -->", flags=re.DOTALL)


def render(text: str, results: Path) -> str:
    """The text with every marked table rendered anew."""

    def table(match: re.Match[str]) -> str:
        marker, name, beginning = match.groups()
        records = read_records(results / f"{name}.json")
        form = f"{name} {beginning}"
        if form in _TABLES:
            return f"{marker}{_TABLES[form](records)}<!-- end -->"
        chosen = [record for record in records if str(next(iter(record.values()))).startswith(beginning)]
        return f"{marker}{_TABLES[name](chosen)}<!-- end -->"

    return _BLOCK.sub(table, text)


class _Dashes(Formatter):
    """Fills a cell's template from a record, with a dash for what the record does not hold."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        return "–" if value is None else str(super().format_field(value, format_spec))


def _rows(cells: Mapping[str, str]) -> Callable[[list[Record]], str]:
    """A table with a row for each record, from headings and the templates of their cells."""
    fill = _Dashes().vformat
    return lambda records: markdown_table(
        list(cells), [[fill(cell, (), record) for cell in cells.values()] for record in records]
    )


def _uncertainty(records: list[Record]) -> str:
    """A row for each dataset and penalty, best first: rank correlation / AUROC by shift, means over model seeds."""
    shifts = list(dict.fromkeys(str(record["shift"]) for record in records))

    def mean(dataset: str, penalty: str, score: str, shift: str | None = None) -> float | None:
        found = [
            float(record[score] or 0)
            for record in records
            if (record["dataset"], record["penalty"]) == (dataset, penalty)
            and shift in (None, record["shift"])
            and record[score] is not None
        ]
        return sum(found) / len(found) if found else None

    def cell(dataset: str, penalty: str, shift: str | None) -> str:
        scores = (mean(dataset, penalty, score, shift) for score in ("spearman", "auroc"))
        return " / ".join("–" if score is None else f"{score:.2f}" for score in scores)

    rows = []
    for dataset in dict.fromkeys(str(record["dataset"]) for record in records):
        names = dict.fromkeys(str(record["penalty"]) for record in records if record["dataset"] == dataset)
        for name in sorted(names, key=lambda name: -(mean(dataset, name, "spearman") or 0)):
            cells = [cell(dataset, name, shift) for shift in (*shifts, None)]
            rows.append((dataset, name, *cells, f"{mean(dataset, name, 'microseconds') or 0:,.0f}"))
    return markdown_table(("dataset", "penalty", *shifts, "mean", "µs"), rows)


def _penalty_weights(records: list[Record]) -> str:
    """A row for each dataset, penalty and λ, best first: means over seeds."""

    def mean(rows: list[Record], name: str) -> float:
        return sum(float(row[name] or 0) for row in rows) / len(rows)

    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = tuple(str(record[name]) for name in ("dataset", "penalty", "penalty_weight", "real_share", "updates"))
        groups.setdefault(key, []).append(record)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -mean(item[1], "return_late")))
    rows = [
        (
            *key[:4],
            f"{int(key[4]):,}",
            f"{mean(own, 'return_late'):,.0f}",
            f"{mean(own, 'return_last'):,.0f}",
            str(len(own)),
        )
        for key, own in ordered
    ]
    columns = ("dataset", "penalty", "λ", "logged share", "updates", "return, last three evaluations", "last", "seeds")
    return markdown_table(columns, rows)


def _tried(records: list[Record]) -> str:
    """A row for each setting of a method, a column for each dataset: mean ± standard deviation over seeds."""
    columns = {
        "method": "{method}",
        "λ": "{penalty_weight:g}",
        "logged": "{real_share:.0%}",
        "branches × steps": "{branches:,d} × {horizon:d}",
        "ring": "{replay:,d}",
        "updates": "{updates:,d}",
    }
    datasets = [name for name in DATASETS if any(record["dataset"] == name for record in records)]
    cells: dict[tuple[str, ...], dict[str, list[Record]]] = {}
    for record in records:
        setting = tuple(template.format(**record) for template in columns.values())
        cells.setdefault(setting, {}).setdefault(str(record["dataset"]), []).append(record)

    def cell(own: list[Record]) -> str:
        if not own:
            return "–"
        returns, low, all_of_them = (
            np.array([row[name] or 0 for row in own], float) for name in ("return", "low_evaluations", "evaluations")
        )
        often = f" ({low.sum():.0f}/{all_of_them.sum():.0f})" if all_of_them.any() else ""
        return f"{returns.mean():,.0f} ± {returns.std(ddof=1):,.0f}{often}"

    rows = [(*setting, *(cell(own.get(name, [])) for name in datasets)) for setting, own in cells.items()]
    return markdown_table((*columns, *datasets), rows)


_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "model": _rows(
        {
            "dataset": "{dataset}",
            "preset": "{preset}",
            "seed": "{seed}",
            "R² of change": "{delta_r2:.4f}",
            "worst dim.": "{delta_r2_worst_dimension:.3f}",
            "reward R²": "{reward_r2:.4f}",
            "90% cover": "{coverage_90:.1%}",
            "active": "{active_latents:d}",
            "updates/s": "{updates_per_second:,.0f}",
            "on": "{device}",
        }
    ),
    "behaviour": _rows(
        {
            "policy": "{policy}",
            "return when trained": "{trained:,d}",
            "return here": "{return_mean:,.0f} ± {return_std:,.0f}",
            "ratio": "{ratio:.3f}",
            "episodes": "{episodes:d}",
        }
    ),
    "speed": _rows(
        {
            "what": "{what}",
            "on": "{device}",
            "measured": "{value:,} {unit}",
            "against": "{against}",
            "ratio": "{ratio:.2f}",
        }
    ),
    "scaling": _rows(
        {
            "on": "{device}",
            "dataset": "{dataset}",
            "transitions": "{transitions:,d}",
            "K": "{neighbours:d}",
            "seeds": "{seeds:d}",
            "updates": "{updates:,d}",
            "an epoch": "{epoch_seconds:.3g} s",
            "until the first is done": "{until_first_epoch_seconds:.0f} s",
            "memory at most": "{peak_gigabytes:.1f} GB",
        }
    ),
    "four_rooms": _rows(
        {
            "seed": "{seed}",
            "distance": "{distance}",
            "rank correlation with land": "{spearman_land:.3f}",
            "AUROC of a wall": "{auroc_wall:.3f}",
        }
    ),
    "geometry": _rows(
        {
            "on": "{device}",
            "d": "{dimension:d}",
            "pairs": "{range}",
            "solver": "{solver}",
            "per second": "{per_second:,.0f}",
            "median error": "{median_error:.3%}",
            "95% error": "{p95_error:.3%}",
            "× stochman": "{times_stochman:.1f}",
        }
    ),
    "uncertainty": _uncertainty,
    "driving_uncertainty": _uncertainty,
    "penalty_weights": _penalty_weights,
    "tried": _tried,
    "driving": as_table,
    "driving_agents": _rows(
        {
            "task": "{dataset}",
            "policy": "{policy}",
            "trained for": "{steps:,} steps",
            "begun from": "{begun_from}",
            "return": "{return:.2f} ± {return_std:.2f}",
            "length": "{length:.1f}",
            "episodes": "{episodes}",
        }
    ),
    "locomotion": lambda records: as_text(records, "md"),
    "locomotion grid": as_grid,
}


def main(root: Path) -> None:
    """Rewrite the README and every page of the docs."""
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        page.write_text(render(page.read_text(), root / "results"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
