"""Render the tables of the docs from the result files.

`python experiments/docs.py` rewrites the text between

<!-- results/NAME.json -->   and   <!-- end -->

A word after the name selects another format of the table (`<!-- results/locomotion.json grid -->`),
or the records whose first field starts with the word (`<!-- results/speed.json generate -->`).
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from experiments import tables
from gelato.report.policy_table import markdown_table
from gelato.runs.records import Record, read_records

_BLOCK = re.compile(r"(<!-- results/(\w+)\.json ?(.*?) ?-->\n).*?<!-- end -->", flags=re.DOTALL)


def render(text: str, results: Path) -> str:
    """Return the text with every marked table rendered from its result file."""
    return _BLOCK.sub(lambda match: _render_block(match, results), text)


def _render_block(match: re.Match[str], results: Path) -> str:
    marker, name, word = match.groups()
    records = read_records(results / f"{name}.json")
    write = _TABLES.get(f"{name} {word}")
    if write is None:
        write = _TABLES[name]
        records = [row for row in records if str(next(iter(row.values()))).startswith(word)]
    return f"{marker}{write(records)}<!-- end -->"


class _Dashes(Formatter):
    """A formatter that fills the template of a cell and writes a dash for a missing value."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        return "–" if value is None else str(super().format_field(value, format_spec))


def _rows(cells: Mapping[str, str]) -> Callable[[list[Record]], str]:
    """Return a function that writes one row per record; `cells` maps headings to templates."""
    fill = _Dashes().vformat

    def write(records: list[Record]) -> str:
        rows = [[fill(cell, (), record) for cell in cells.values()] for record in records]
        return markdown_table(list(cells), rows)

    return write


def _only(what: str, write: Callable[[list[Record]], str]) -> Callable[[list[Record]], str]:
    """Keep the records of one kind."""
    return lambda records: write([record for record in records if record["what"] == what])


def _having(field: str, write: Callable[[list[Record]], str]) -> Callable[[list[Record]], str]:
    """Keep the records that have a field."""
    return lambda records: write([record for record in records if field in record])


_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "chaos": tables.chaos_table,
    "chaos broken": tables.broken_table,
    "safety": _having(
        "ratio",
        _rows(
            {
                "what": "{what}",
                "seconds": "{seconds:.3f}",
                "times as long": "{ratio:.3f}",
                "95% interval": "{low:.3f} to {high:.3f}",
                "pairs": "{pairs:d}",
            }
        ),
    ),
    "safety import": _having(
        "computing",
        _rows(
            {
                "what": "{what}",
                "steps": "{steps:,d}",
                "seconds": "{seconds:.0f}",
                "of computing": "{computing:.0f}",
                "memory": "{megabytes:,d} MB",
                "waiting processes": "{load:.0f}",
            }
        ),
    ),
    "safety memory": _having(
        "proportional",
        _rows(
            {
                "what": "{what}",
                "memory of each": "{resident:.0f} MB",
                "of it its own, with its share of common pages": "{proportional:.0f} MB",
            }
        ),
    ),
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
    "report_page": _rows(
        {
            "transitions": "{transitions:,d}",
            "seeds × λ": "{seeds:d} × {weights:d}",
            "cores": "{cores:d}",
            "size": "{megabytes:.1f} MB",
            "time to make": "{seconds:.0f} s",
            "of it on a core": "{cpu_seconds:.0f} s",
            "time to open": "{report_open_ms:,.0f} ms",
            "empty Plotly page": "{empty_open_ms:,.0f} ms",
            "waiting processes": "{load_before:.0f}",
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
    "neighbours": _rows(
        {
            "search": "{search}",
            "points": "{points:,d}",
            "queries": "{queries:d}",
            "seconds": "{seconds:.0f}",
            "recall": "{recall:.3f}",
        }
    ),
    "growth": tables.growth_table,
    "growth fit": tables.growth_fit_table,
    "growth extrapolate": tables.growth_extrapolation,
    "devices": _rows(
        {
            "weights": "`{weights}`",
            "devices": "{devices:d}",
            "updates": "{updates:d}",
            "largest difference": "{difference:.1e}",
            "exchanges": "{collectives:d}",
        }
    ),
    "sweeps": _rows(
        {
            "workers": "{workers}",
            "on": "{device}",
            "groups": "{groups:d}",
            "updates each": "{updates:,d}",
            "seconds": "{seconds:.0f}",
            "slowest run": "{slowest:.0f}",
            "speed": "{speed:.2f}",
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
    "geometry_reliability": _rows(
        {
            "manifold": "{manifold}",
            "pairs": "{pairs:d} {range}",
            "tolerance": "{tolerance:.0e}",
            "below the estimate": "{covered:.1%}",
            "estimate / error": "{median_ratio:.1f}",
            "converged": "{converged:.1%}",
            "of these wrong": "{wrong:.1%}",
            "median error": "{median_error:.1e}",
            "largest": "{largest_error:.1e}",
            "largest, converged": "{largest_error_converged:.1e}",
        }
    ),
    "geometry_matrix": _rows(
        {
            "solver": "{solver}",
            "d": "{dimension:d}",
            "CPU hours": "{cpu_hours:.2f}",
            "additional memory": "{additional_gib:.2f} GiB",
        }
    ),
    "geometry_peers": _rows(
        {
            "manifold": "{manifold}",
            "solver": "{solver}",
            "pairs per CPU second": "{per_cpu_second:,.0f}",
            "median error": "{median_error:.1e}",
            "95% error": "{p95_error:.1e}",
            "times as fast": "{times:.1f}",
        }
    ),
    "geometry_throughput": _rows(
        {
            "on": "{device}",
            "d": "{dimension:d}",
            "pairs": "{range}",
            "solver": "{solver}",
            "per second": "{per_second:,.0f}",
            "median error": "{median_error:.3%}",
            "95% error": "{p95_error:.3%}",
            "below the estimate": "{below_the_estimate:.1%}",
            "converged": "{converged:.1%}",
            "10,000 points": "{seconds_matrix:,.0f} s",
        }
    ),
    "identifiability": _rows(
        {
            "data": "{dataset}",
            "decoders": "{decoders:d}",
            "space": "{space}",
            "distance": "{distance}",
            "fits": "{fits:d}",
            "CV": "{cv:.3f} ± {cv_standard_error:.3f}",
            "CV without scale": "{cv_scaled:.3f} ± {cv_scaled_standard_error:.3f}",
            "rank agreement": "{rank_agreement:.3f}",
            "converged": "{converged:.1%}",
        }
    ),
    "histories": tables.histories_table,
    "histories penalties": tables.histories_penalties,
    "uncertainty": tables.uncertainty_table,
    "driving_uncertainty": tables.uncertainty_table,
    "penalty_weights": tables.penalty_weight_table,
    "known_answers": tables.known_answers_table,
    "selection": tables.selection_table,
    "selection rules": tables.ranking_rules_table,
    "selection_choices": tables.choices_table,
    "selection_driving": tables.selection_table,
    "selection_driving_choices": tables.choices_table,
    "own_log": tables.own_log_table,
    "own_log ranking": tables.own_log_ranking,
    "tried": tables.settings_table,
    "driving": tables.driving_table,
    "images": tables.images_table,
    "pendulum_agent": _rows(
        {
            "policy": "{policy}",
            "trained for": "{steps:,} steps",
            "return": "{return:,.0f} ± {return_std:,.0f}",
            "episodes": "{episodes}",
        }
    ),
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
    "conformal": _rows(
        {
            "dataset": "{dataset}",
            "data": "{data}",
            "what": "{what}",
            "calibrated on": "{calibration_episodes} {calibration}",
            "stated": "{stated:.1%}",
            "measured": "{measured:.1%}",
            "test episodes": "{test_episodes}",
            "width": "{width:.3g}",
            "error": "{rmse:.3g}",
            "model": "{model}, {transitions:,} transitions",
        }
    ),
    "trust actions": _only(
        "actions",
        _rows(
            {
                "dataset": "{dataset}",
                "penalty": "{penalty}",
                "AUROC": "{auroc:.3f}",
                "best possible": "{ceiling:.3f}",
                "logged trusted": "{logged_trusted:.0%}",
                "random trusted": "{uniform_trusted:.0%}",
                "out of distribution trusted": "{foreign_trusted:.0%}",
                "model": "{model}, {transitions:,} transitions",
            }
        ),
    ),
    "trust prototypes": _only(
        "prototypes",
        _rows(
            {
                "dataset": "{dataset}",
                "prototypes": "{points:,}",
                "AUROC": "{auroc:.3f}",
                "random": "{uniform_trusted:.0%}",
                "out of distribution": "{foreign_trusted:.0%}",
                "MB": "{megabytes:.1f}",
                "median, ms": "{median_ms:.2f}",
                "99% of computing, ms": "{p99_computing_ms:.2f}",
                "U differs by": "{penalty_difference:.0e}",
                "on": "{device}",
            }
        ),
    ),
    "trust robot": _only(
        "robot",
        _rows(
            {
                "push, rad/s": "{push:.1f}",
                "fails without the guard": "{unguarded_failures:.0%}",
                "fails with the guard": "{guarded_failures:.0%}",
                "steps of the safe controller": "{handed_over:.1%}",
                "episodes": "{episodes}",
            }
        ),
    ),
    "mopo_d4rl": tables.mopo_table,
    "mopo_ensembles": tables.mopo_ensembles_table,
    "critics": tables.critics_table,
    "ablation": tables.ablation_table,
    "ablation datasets": tables.ablation_grid,
    "locomotion_cells": tables.cells_table,
    "locomotion": tables.locomotion_table,
    "locomotion grid": tables.locomotion_grid,
}


def list_pages(root: Path) -> list[Path]:
    """List the README and every page of the docs that people write (tutorials make their pages)."""
    pages = sorted((root / "docs").rglob("*.md"))
    return [root / "README.md", *(page for page in pages if page.parent.name != "tutorials")]


def main(root: Path) -> None:
    """Rewrite the README and every page of the docs."""
    for page in list_pages(root):
        page.write_text(render(page.read_text(), root / "results"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
