"""Render the tables of the docs from the result files: `python -m gelato.report.docs` rewrites what stands between

<!-- results/NAME.json -->   and   <!-- end -->

A word after the name keeps the records whose first field begins with it: `<!-- results/speed.json generate -->`.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gelato.report.results import Record, read_records

_BLOCK = re.compile(r"(<!-- results/(\w+)\.json ?(.*?) ?-->\n).*?<!-- end -->", flags=re.DOTALL)


def render(text: str, results: Path) -> str:
    """The text with every marked table rendered anew."""

    def table(match: re.Match[str]) -> str:
        marker, name, beginning = match.groups()
        records = read_records(results / f"{name}.json")
        chosen = [record for record in records if str(next(iter(record.values()))).startswith(beginning)]
        return f"{marker}{_TABLES[name](chosen)}<!-- end -->"

    return _BLOCK.sub(table, text)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(record: Record, field: str, form: str) -> str:
    value = record.get(field)
    return "–" if value is None else format(value, form)


def _model(records: list[Record]) -> str:
    columns = (
        "dataset",
        "preset",
        "seed",
        "R² of change",
        "worst dim.",
        "reward R²",
        "90% cover",
        "active",
        "updates/s",
        "on",
    )
    rows = [
        (
            str(record["dataset"]),
            str(record["preset"]),
            str(record["seed"]),
            _number(record, "delta_r2", ".4f"),
            _number(record, "delta_r2_worst_dimension", ".3f"),
            _number(record, "reward_r2", ".4f"),
            _number(record, "coverage_90", ".1%"),
            _number(record, "active_latents", "d"),
            _number(record, "updates_per_second", ",.0f"),
            str(record["device"]),
        )
        for record in records
    ]
    return _markdown(columns, rows)


def _behaviour(records: list[Record]) -> str:
    columns = ("policy", "return when trained", "return here", "ratio", "episodes")
    rows = [
        (
            str(record["policy"]),
            _number(record, "trained", ",d"),
            f"{_number(record, 'return_mean', ',.0f')} ± {_number(record, 'return_std', ',.0f')}",
            _number(record, "ratio", ".3f"),
            _number(record, "episodes", "d"),
        )
        for record in records
    ]
    return _markdown(columns, rows)


def _speed(records: list[Record]) -> str:
    columns = ("what", "on", "measured", "against", "ratio")
    rows = [
        (
            str(record["what"]),
            str(record["device"]),
            f"{_number(record, 'value', ',')} {record['unit']}",
            str(record["against"]),
            _number(record, "ratio", ".2f"),
        )
        for record in records
    ]
    return _markdown(columns, rows)


def _four_rooms(records: list[Record]) -> str:
    columns = ("seed", "distance", "rank correlation with land", "AUROC of a wall")
    rows = [
        (
            str(record["seed"]),
            str(record["distance"]),
            _number(record, "spearman_land", ".3f"),
            _number(record, "auroc_wall", ".3f"),
        )
        for record in records
    ]
    return _markdown(columns, rows)


def _geometry(records: list[Record]) -> str:
    columns = ("on", "d", "pairs", "solver", "per second", "median error", "95% error", "× stochman")
    rows = [
        (
            str(record["device"]),
            _number(record, "dimension", "d"),
            str(record["range"]),
            str(record["solver"]),
            _number(record, "per_second", ",.0f"),
            _number(record, "median_error", ".3%"),
            _number(record, "p95_error", ".3%"),
            _number(record, "times_stochman", ".1f"),
        )
        for record in records
    ]
    return _markdown(columns, rows)


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
    return _markdown(("dataset", "penalty", *shifts, "mean", "µs"), rows)


_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "model": _model,
    "behaviour": _behaviour,
    "speed": _speed,
    "four_rooms": _four_rooms,
    "geometry": _geometry,
    "uncertainty": _uncertainty,
}


def main(root: Path) -> None:
    """Rewrite the README and every page of the docs."""
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        page.write_text(render(page.read_text(), root / "results"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
