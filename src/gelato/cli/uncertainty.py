"""`gelato uncertainty`: which penalty predicts the error of a model best?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from gelato.cli.arguments import ModelRun, MovedData
from gelato.cli.model import load_fitted
from gelato.cli.output import check_picture, check_records, print_json, print_table, print_title
from gelato.errors import InputError
from gelato.uncertainty.registry import describe_penalties, find_penalty

if TYPE_CHECKING:
    from gelato.uncertainty.judge import Report

_PENALTIES = describe_penalties("latent")


def uncertainty(
    run: Positional[ModelRun],
    penalties: Annotated[tuple[str, ...], arg(help=f"Penalties to judge: {_PENALTIES}.")] = (
        "transport",
        "geodesic",
        "euclidean",
        "ensemble",
        "aleatoric",
        "forward",
        "ambient",
    ),
    rows: int = 500,
    points: int | None = None,
    calibration: Literal["default", "paper"] = "default",
    simulator: bool = True,
    json: bool = False,
    plot: Path | None = None,
    results: Path | None = None,
    fitted_to: MovedData = None,
) -> None:
    """Measure how well each penalty predicts the model's one-step error on data and shifted data.

    The true next state comes from the real simulator, which is set to each state (MuJoCo tasks,
    Four Rooms). Without a simulator, or with `--no-simulator`, the error is measured on held-out
    transitions only, and the output says so.

    Args:
        rows: Number of state-actions per shift (a set of state-actions away from the data).
        points: Number of transitions that are searched for neighbours, spread evenly over the data.
            Default: all.
        calibration: `default` subtracts the median penalty on the data and divides by how far the
            median on out-of-distribution pairs lies above it; `paper` divides by the maximum.
        simulator: Measure the error on held-out transitions only, without a simulator.
        json: Print one JSON object and nothing else.
        plot: Also plot risk–coverage curves, and the error for each penalty value (.png, .pdf or
            .svg).
        results: Also merge the records into this JSON file.
    """
    from gelato.uncertainty.judge import judge_penalties

    if rows < 20:
        raise InputError(
            f"--rows {rows}: must be at least 20; a rank correlation of fewer rows is not "
            "meaningful"
        )
    if not penalties:
        raise InputError(
            "give at least one penalty after --penalties, or leave out the option for the default "
            "list"
        )
    for name in penalties:
        find_penalty(name, "latent")
    check_picture(plot)
    check_records(results)
    fitted = load_fitted(run, fitted_to)
    reports = judge_penalties(
        fitted,
        penalties=penalties,
        rows=rows,
        simulate=simulator,
        calibration=calibration,
        points=points,
    )
    records = [record for report in reports for record in report.records()]
    if results is not None:
        from gelato.runs.records import merge_records

        merge_records(
            results, records, keys=("dataset", "model_seed", "penalty", "shift", "truth", "points")
        )
    if plot is not None:
        from gelato.report.uncertainty_figure import draw_uncertainty

        draw_uncertainty(reports[0], plot)
    if json:
        print_json(
            {
                "run": str(run),
                "calibration": [_list_scales(report) for report in reports],
                "records": records,
            }
        )
    else:
        print_records(records)


def _list_scales(report: "Report") -> dict[str, Any]:
    scales = {
        name: {"level": float(scale.level), "unit": float(scale.unit)}
        for name, scale in report.scales.items()
    }
    return {"model_seed": report.model_seed, "truth": report.truth, "penalties": scales}


def print_records(records: list[dict[str, Any]]) -> None:
    """Print rank correlation and AUROC of each penalty and shift, averaged over model seeds."""
    import numpy as np

    from gelato.report.references import shorten_reference

    shifts = list(dict.fromkeys(record["shift"] for record in records))
    seeds = len({record["model_seed"] for record in records})

    def average(chosen: list[dict[str, Any]], field: str, form: str) -> str:
        values = [record[field] for record in chosen if record[field] is not None]
        return f"{np.mean(values):{form}}" if values else "-"

    rows = []
    for penalty in dict.fromkeys(record["penalty"] for record in records):
        of_penalty = [record for record in records if record["penalty"] == penalty]
        row = [penalty]
        for shift in shifts:
            chosen = [record for record in of_penalty if record["shift"] == shift]
            row.append(f"{average(chosen, 'spearman', '.2f')} / {average(chosen, 'auroc', '.2f')}")
        rows.append((*row, average(of_penalty, "microseconds", ",.0f")))
    first = records[0]
    title = (
        f"{shorten_reference(first['dataset'])}, true error from: {first['truth']}, {seeds} model "
        f"seed{'s' if seeds > 1 else ''}"
    )
    print_table((title, *shifts, "µs"), rows)
    print_title(
        "rank correlation with the true error / AUROC of errors above the data's 95th percentile"
    )
