"""`gelato uncertainty` judges penalties; `gelato trust` says on which rows to trust a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from gelato.cli.data import Ref
from gelato.cli.model import load_fitted
from gelato.cli.output import (
    check_file,
    check_picture,
    check_records,
    print_json,
    print_table,
    print_title,
)
from gelato.uncertainty.registry import describe_penalties, find_penalty

if TYPE_CHECKING:
    from gelato.uncertainty.judge import Report

_PENALTIES = describe_penalties("latent")
_TRUST_HELP = (
    "Penalty to use. Default: transport; if transport would trust more than half of the "
    f"out-of-distribution pairs, geodesic. One of {_PENALTIES}."
)
# Episodes shown.
_LEAST_KNOWN = 5


def uncertainty(
    run: Positional[Path],
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
    fitted_to: str | None = None,
) -> None:
    """Measure how well each penalty predicts the model's one-step error on data and shifted data.

    The true next state comes from the real simulator, which is set to each state (MuJoCo tasks,
    Four Rooms). Without a simulator, or with `--no-simulator`, the error is measured on held-out
    transitions only, and the output says so.

    Args:
        run: The folder of `gelato model fit` or `gelato train`.
        rows: Number of state-actions per shift (a set of state-actions away from the data).
        points: Maximum number of transitions to search for neighbours, spread evenly. Default: all.
        calibration: `default` subtracts the median penalty on the data and divides by how far the
            median on out-of-distribution pairs lies above it; `paper` divides by the maximum.
        simulator: Use the simulator, if there is one.
        json: Print one JSON object and nothing else.
        plot: Also plot risk–coverage curves, and the error for each penalty value (.png, .pdf or
            .svg).
        results: Also merge the records into this JSON file.
        fitted_to: New location of the training data, if it moved.
    """
    from gelato.errors import InputError
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
        _print_records(records)


def trust(
    run: Positional[Path],
    data: Positional[Ref],
    penalty: Annotated[str | None, arg(help=_TRUST_HELP)] = None,
    rows: int = 2_000,
    seed: int = 0,
    json: bool = False,
    out: Path | None = None,
    fitted_to: str | None = None,
) -> None:
    """Report for which state-actions of another dataset a fitted model can be trusted.

    A state-action is trusted if its penalty is at most the 95th percentile of held-out data.
    Penalties are 0 on typical data and about 1 on out-of-distribution pairs.

    Args:
        run: The folder of `gelato model fit` or `gelato train`.
        data: The data to judge, by its reference (`file:log.npz`, `hopper-medium`, …).
        rows: Maximum number of rows to judge, spread evenly over the data.
        seed: The seed of the model.
        json: Print one JSON object and nothing else.
        out: Also write every judged row (episode, step, penalty, trusted) into this CSV file.
        fitted_to: New location of the training data, if it moved.
    """
    import numpy as np

    from gelato.cli.output import print_fields
    from gelato.data.reference import load
    from gelato.errors import InputError
    from gelato.progress import working
    from gelato.runs.records import write_csv
    from gelato.uncertainty.trust import Trust, check_spaces

    if rows < 1:
        raise InputError(f"--rows {rows}: must be at least 1")
    if penalty is not None:
        find_penalty(penalty, "latent")
    check_file(out)
    if out is not None and out.suffix != ".csv":
        raise InputError(f"{out}: rows are written as CSV. Name a file that ends in .csv")
    fitted, dataset = load_fitted(run, fitted_to), load(data)
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
        about = {
            "run": str(run),
            "data": data,
            "penalty": judge.penalty,
            "foreign_trusted": judge.foreign_trusted,
        }
        print_json({**about, "trusted": share, "rows": judged})
    else:
        median, high, largest = np.quantile(penalties, (0.5, 0.95, 1.0))
        print_fields(
            f"{data}: the model can be trusted on {share:.0%} of {len(judged):,} rows",
            {
                f"{judge.penalty} penalty": (
                    f"median {median:.2f}, 95th percentile {high:.2f}, maximum {largest:.2f}"
                ),
                "threshold": f"{judge.limit:.2f} (95th percentile of held-out data)",
                "out-of-distribution pairs": f"{judge.foreign_trusted:.0%} would be trusted",
            },
        )
        _print_least_known(judged)


def _print_least_known(judged: list[dict[str, Any]]) -> None:
    """Print the episodes with the largest mean penalty, and the worst step of each."""
    import numpy as np

    by_episode: dict[int, list[dict[str, Any]]] = {}
    for row in judged:
        by_episode.setdefault(row["episode"], []).append(row)
    mean = {
        episode: float(np.mean([row["penalty"] for row in own]))
        for episode, own in by_episode.items()
    }
    rows = []
    for episode in sorted(mean, key=lambda episode: -mean[episode])[:_LEAST_KNOWN]:
        own = by_episode[episode]
        trusted = f"{np.mean([row['trusted'] for row in own]):.0%}"
        worst = max(own, key=lambda row: row["penalty"])
        at = f"{worst['penalty']:.2f} at step {worst['step']}"
        rows.append((str(episode), f"{len(own):,}", trusted, f"{mean[episode]:.2f}", at))
    print_title("episodes with the largest penalty")
    print_table(("episode", "rows", "trusted", "mean penalty", "maximum"), rows)


def _list_scales(report: "Report") -> dict[str, Any]:
    scales = {
        name: {"level": float(scale.level), "unit": float(scale.unit)}
        for name, scale in report.scales.items()
    }
    return {"model_seed": report.model_seed, "truth": report.truth, "penalties": scales}


def _print_records(records: list[dict[str, Any]]) -> None:
    """Print rank correlation and AUROC of each penalty and shift, averaged over model seeds."""
    import numpy as np

    shifts = list(dict.fromkeys(record["shift"] for record in records))
    seeds = len({record["model_seed"] for record in records})

    def cell(penalty: str, shift: str) -> str:
        chosen = [
            record for record in records if (record["penalty"], record["shift"]) == (penalty, shift)
        ]
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
    title = (
        f"{first['dataset']}, true error from: {first['truth']}, {seeds} model "
        f"seed{'s' if seeds > 1 else ''}"
    )
    print_table((title, *shifts, "µs"), rows)
    legend = (
        "rank correlation with the true error / AUROC of errors above the data's 95th percentile"
    )
    print_table((legend,), [])
