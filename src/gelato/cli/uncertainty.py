"""`gelato uncertainty`: which penalty knows where the model is wrong; `gelato trust`: on which rows to believe it."""

from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from gelato.cli.data import Ref
from gelato.cli.model import fitted_model
from gelato.cli.output import check_file, check_picture, check_records, print_json, print_table

# Episodes that are shown.
_LEAST_KNOWN = 5


def uncertainty(
    run: Positional[Path],
    penalties: tuple[
        Literal[
            "transport", "extrapolation", "geodesic", "euclidean", "ensemble", "aleatoric", "forward", "ambient", "none"
        ],
        ...,
    ] = ("transport", "geodesic", "euclidean", "ensemble", "aleatoric", "forward", "ambient"),
    rows: int = 500,
    points: int | None = None,
    calibration: Literal["default", "paper"] = "default",
    simulator: bool = True,
    json: bool = False,
    plot: Path | None = None,
    results: Path | None = None,
    fitted_to: str | None = None,
) -> None:
    """Judge penalties against the model's true one-step error, on the data and on graded departures from it.

    The real simulator is put into the state (MuJoCo tasks, Four Rooms). Where that is not possible, or with
    `--no-simulator`, the error is taken on held-out transitions alone, and the output says so.

    Args:
        run: The folder of a fitted model (`gelato model fit`).
        penalties: Which penalties to judge.
        rows: State-actions in each shift.
        points: Seek neighbours among at most so many transitions, spread evenly over the data (all unless told).
        calibration: `default` subtracts the level on the data, `paper` divides by the maximum.
        simulator: Whether to ask the simulator at all.
        json: Print one JSON object and nothing else.
        plot: Also draw risk against coverage, and penalty against error, into this file (.png, .pdf or .svg).
        results: Also merge the records into this JSON file.
        fitted_to: The data that the model was fitted to, where it is no longer where it was.
    """
    from gelato.errors import InputError
    from gelato.uncertainty.instrument import measure

    if rows < 20:
        raise InputError(f"rows is {rows}; ranks of fewer than 20 rows say nothing")
    if not penalties:
        raise InputError("name at least one penalty after --penalties, or leave it out for all of them")
    check_picture(plot)
    check_records(results)
    fitted = fitted_model(run, fitted_to)
    reports = measure(
        fitted, penalties=penalties, rows=rows, simulate=simulator, calibration=calibration, points=points
    )
    records = [record for report in reports for record in report.records()]
    if results is not None:
        from gelato.results import merge_records

        merge_records(results, records, keys=("dataset", "model_seed", "penalty", "shift", "truth", "points"))
    if plot is not None:
        from gelato.report.uncertainty_figure import draw_uncertainty

        draw_uncertainty(reports[0], plot)
    if json:
        print_json({"run": str(run), "calibration": [_constants(report) for report in reports], "records": records})
    else:
        _print_records(records)


def trust(
    run: Positional[Path],
    data: Positional[Ref],
    penalty: Literal["transport", "geodesic", "euclidean", "ensemble", "ambient"] | None = None,
    rows: int = 2_000,
    seed: int = 0,
    json: bool = False,
    out: Path | None = None,
    fitted_to: str | None = None,
) -> None:
    """Say on which state-actions of other data a fitted model can be trusted.

    A state-action is trusted where its penalty is as low as on 95% of the model's own held-out data. Penalties are 0
    on typical data and about 1 on pairs foreign to it.

    Args:
        run: The folder of a fitted model (of `gelato model fit`, or `RUN/model` of `gelato train`).
        data: The data to judge, by its reference (`file:log.npz`, `hopper-medium`, …).
        penalty: What measures how far a state-action is from the model's data; `transport` unless told, and
            `geodesic` where that would trust most pairs foreign to the data.
        rows: Judge at most so many rows, spread evenly over the data.
        seed: Of which seed's model.
        json: Print one JSON object and nothing else.
        out: Also write every judged row (episode, step, penalty, trusted) into this CSV file.
        fitted_to: The data that the model was fitted to, where it is no longer where it was.
    """
    import numpy as np

    from gelato.cli.output import print_fields
    from gelato.data.reference import load
    from gelato.errors import InputError
    from gelato.progress import working
    from gelato.results import write_csv
    from gelato.uncertainty.trust import Trust, check_spaces

    if rows < 1:
        raise InputError(f"rows is {rows}; judge at least one")
    check_file(out)
    if out is not None and out.suffix != ".csv":
        raise InputError(f"{out}: rows are written as a table; name a file that ends in .csv")
    fitted, dataset = fitted_model(run, fitted_to), load(data)
    check_spaces(fitted, dataset)
    with working("measuring distances to the model's data"):
        judge = Trust(fitted, penalty=penalty, seed=seed)
    with working("judging"):
        judged = judge.of_data(dataset, rows)
    if out is not None:
        write_csv(out, judged)
    penalties = np.array([row["penalty"] for row in judged], float)
    share = sum(bool(row["trusted"]) for row in judged) / len(judged)
    if json:
        about = {"run": str(run), "data": data, "penalty": judge.penalty, "foreign_trusted": judge.foreign_trusted}
        print_json({**about, "trusted": share, "rows": judged})
    else:
        median, high, largest = np.quantile(penalties, (0.5, 0.95, 1.0))
        print_fields(
            f"{data}: the model can be trusted on {share:.0%} of {len(judged):,} rows",
            {
                f"{judge.penalty} penalty": f"median {median:.2f}, 95% {high:.2f}, largest {largest:.2f}",
                "trusted where at most": f"{judge.limit:.2f} (95% of held-out data)",
                "pairs foreign to its data": f"{judge.foreign_trusted:.0%} would be trusted",
            },
        )
        _print_least_known(judged)


def _print_least_known(judged: list[dict[str, Any]]) -> None:
    """The episodes with the largest mean penalty, and the step where each is worst."""
    import numpy as np

    by_episode: dict[int, list[dict[str, Any]]] = {}
    for row in judged:
        by_episode.setdefault(row["episode"], []).append(row)
    mean = {episode: float(np.mean([row["penalty"] for row in own])) for episode, own in by_episode.items()}
    rows = []
    for episode in sorted(mean, key=lambda episode: -mean[episode])[:_LEAST_KNOWN]:
        own = by_episode[episode]
        trusted = f"{np.mean([row['trusted'] for row in own]):.0%}"
        worst = max(own, key=lambda row: row["penalty"])
        at = f"{worst['penalty']:.2f} at step {worst['step']}"
        rows.append((str(episode), f"{len(own):,}", trusted, f"{mean[episode]:.2f}", at))
    print_table(("least known episodes", "rows judged", "trusted", "mean penalty", "largest"), rows)


def _constants(report: Any) -> dict[str, Any]:
    scales = {name: {"level": float(scale.level), "unit": float(scale.unit)} for name, scale in report.scales.items()}
    return {"model_seed": report.model_seed, "truth": report.truth, "penalties": scales}


def _print_records(records: list[dict[str, Any]]) -> None:
    """Rank correlation and AUROC, a row for each penalty, a column for each shift; means over model seeds."""
    import numpy as np

    shifts = list(dict.fromkeys(record["shift"] for record in records))
    seeds = len({record["model_seed"] for record in records})

    def cell(penalty: str, shift: str) -> str:
        chosen = [record for record in records if (record["penalty"], record["shift"]) == (penalty, shift)]
        parts = []
        for score in ("spearman", "auroc"):
            values = [record[score] for record in chosen if record[score] is not None]
            parts.append(f"{np.mean(values):.2f}" if values else "-")
        return " / ".join(parts)

    def cost(penalty: str) -> str:
        return f"{np.mean([r['microseconds'] for r in records if r['penalty'] == penalty]):,.0f}"

    rows = [
        (penalty, *(cell(penalty, shift) for shift in shifts), cost(penalty))
        for penalty in dict.fromkeys(record["penalty"] for record in records)
    ]
    first = records[0]
    title = f"{first['dataset']}, truth: {first['truth']}, {seeds} model seed{'s' if seeds > 1 else ''}"
    print_table((title, *shifts, "µs"), rows)
    print_table(("rank correlation with the true error / AUROC of an error above the data's 95% level",), [])
