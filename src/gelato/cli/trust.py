"""`gelato trust`: for which state-actions a model can be trusted."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from gelato.cli.arguments import ModelRun, MovedData, OptionalRef
from gelato.cli.model import load_fitted
from gelato.cli.output import (
    check_output,
    format_number,
    print_fields,
    print_json,
    print_table,
    print_title,
)
from gelato.errors import InputError
from gelato.uncertainty.registry import describe_penalties, find_penalty

if TYPE_CHECKING:
    from gelato.model.training import FittedModel
    from gelato.uncertainty.trust import Trust

_TRUST_HELP = f"Penalty to use. Default: guard. One of {describe_penalties('latent')}."
# Episodes shown.
_LEAST_KNOWN = 5


def trust(
    run: Positional[ModelRun],
    data: Positional[Annotated[str | None, arg(metavar="[REF]")]] = None,
    policy: bool = False,
    penalty: Annotated[str | None, arg(help=_TRUST_HELP)] = None,
    rows: int = 2_000,
    seed: int | None = None,
    method: str | None = None,
    which: Literal["last", "best"] = "last",
    horizon: int = 100,
    coverage: float = 0.9,
    false_alarm_rate: float = 0.05,
    calibration: OptionalRef = None,
    json: bool = False,
    out: Path | None = None,
    fitted_to: MovedData = None,
) -> None:
    """Report for which state-actions a fitted model can be trusted, and how wrong it can be.

    With the reference of other data, the command judges its state-actions. With `--policy`, it
    judges the actions that trained policies would take, at logged states and in imagined rollouts.

    Args:
        data: The data to judge, by its reference (`file:log.npz`, `hopper-medium`, …). With
            `--policy`, the states at which policies are judged. Default: held-out episodes.
        policy: Judge the trained policies of the run.
        rows: Maximum number of rows to judge, spread evenly over the data.
        seed: The seed of the model and policy. Default: 0, or with `--policy` all seeds.
        method: With `--policy`: the method to judge. Default: all methods.
        which: With `--policy`: the last policies, or those with the best return in training.
        horizon: With `--policy`: steps of an imagined rollout.
        coverage: Share of a new episode's rows for which the error bound must hold.
        false_alarm_rate: Share of a new episode's rows that may be false alarms (not trusted,
            although they come from the process that recorded the data).
        calibration: Other episodes of the same process to calibrate on. Default: the held-out
            episodes of the fit, which also chose its checkpoint.
        json: Print one JSON object and nothing else.
        out: Also write every judged row (episode, step, penalty, trusted, error_bound, error) into
            this CSV file.
    """
    from gelato.uncertainty.conformal import check_rate

    if rows < 1:
        raise InputError(f"--rows {rows}: must be at least 1")
    if penalty is not None:
        find_penalty(penalty, "latent")
    check_rate("coverage", coverage)
    check_rate("false_alarm_rate", false_alarm_rate)
    check_output(out)
    if out is not None and out.suffix != ".csv":
        raise InputError(f"{out}: rows are written as CSV. Name a file that ends in .csv")
    if policy:
        if out is not None:
            raise InputError("--out writes the rows of DATA; leave it out with --policy")
        settings = _TrustSettings(penalty, coverage, false_alarm_rate, calibration)
        _judge_policies(run, data, settings, rows, seed, method, which, horizon, fitted_to, json)
        return
    if data is None:
        raise InputError("name the data to judge, or add --policy to judge the trained policies")
    settings = _TrustSettings(penalty, coverage, false_alarm_rate, calibration)
    _judge_data(run, data, settings, rows, seed or 0, fitted_to, json, out)


@dataclass(frozen=True)
class _TrustSettings:
    """The options that `Trust` is made with."""

    penalty: str | None
    coverage: float
    false_alarm_rate: float
    calibration: str | None

    def make(self, fitted: "FittedModel", seed: int) -> "Trust":
        """Make `Trust` for one seed of a model."""
        from gelato.data.reference import load
        from gelato.uncertainty.trust import DEFAULT_PENALTY, Trust

        return Trust(
            fitted,
            penalty=self.penalty or DEFAULT_PENALTY,
            seed=seed,
            coverage=self.coverage,
            false_alarm_rate=self.false_alarm_rate,
            calibration=None if self.calibration is None else load(self.calibration),
        )


def _judge_data(
    run: Path,
    data: str,
    settings: _TrustSettings,
    rows: int,
    seed: int,
    fitted_to: str | None,
    json: bool,
    out: Path | None,
) -> None:
    """Judge rows of a dataset and print or write the result."""
    import numpy as np

    from gelato.data.reference import load
    from gelato.progress import working
    from gelato.runs.records import write_csv
    from gelato.uncertainty.trust import check_spaces, measure_bound

    fitted, dataset = load_fitted(run, fitted_to), load(data)
    check_spaces(fitted, dataset)
    with working("measuring distances to the model's data"):
        judge = settings.make(fitted, seed)
    with working("judging"):
        judged = judge.of_data(dataset, rows)
    if out is not None:
        write_csv(out, judged)
    penalties = np.array([row["penalty"] for row in judged], float)
    share = sum(bool(row["trusted"]) for row in judged) / len(judged)
    covered = measure_bound(judged)
    promises = {
        "false_alarm_rate": judge.false_alarm_rate,
        "coverage": judge.bounds.coverage,
        "calibration_episodes": judge.episodes,
    }
    if json:
        about = {
            "run": str(run),
            "data": data,
            "penalty": judge.penalty,
            "foreign_trusted": judge.foreign_trusted,
            **promises,
        }
        print_json({**about, "trusted": share, "covered": covered, "rows": judged})
        return
    median, high, largest = np.quantile(penalties, (0.5, 0.95, 1.0))
    bounds = np.array([row["error_bound"] for row in judged], float)
    held = "unknown, no row has a successor" if covered is None else f"{covered:.1%} of these rows"
    print_fields(
        f"{data}: the model can be trusted on {share:.0%} of {len(judged):,} rows",
        {
            f"{judge.penalty} penalty": f"median {median:.2f}, 95th percentile {high:.2f}, "
            f"maximum {largest:.2f}",
            "threshold": f"{judge.limit:.2f} (false alarms at most {judge.false_alarm_rate:.1%})",
            "out-of-distribution pairs": f"{judge.foreign_trusted:.0%} would be trusted",
            "error bound": f"median {np.median(bounds):.3g} standard deviations of the states",
            "error bound should hold for": f"{judge.bounds.coverage:.1%} of a new episode's rows",
            "error bound holds for": held,
            "promised for": f"new episodes like the {judge.episodes} calibration episodes, "
            "nothing else",
        },
    )
    _print_least_known(judged)


def _judge_policies(
    run: Path,
    data: str | None,
    settings: _TrustSettings,
    rows: int,
    seed: int | None,
    method: str | None,
    which: Literal["last", "best"],
    horizon: int,
    fitted_to: str | None,
    json: bool,
) -> None:
    """Judge the actions of trained policies and print the result."""
    from gelato.data.reference import load
    from gelato.training.policy_trust import judge_policies

    records = judge_policies(
        run,
        settings.make,
        method=method,
        seed=seed,
        which=which,
        fitted=load_fitted(run, fitted_to),
        data=None if data is None else load(data),
        rows=rows,
        horizon=horizon,
    )
    if json:
        print_json({"run": str(run), "which": which, "records": records})
        return

    first = records[0]
    print_title(
        f"trusted actions at {first['rows']:,} logged states, and in {first['rollouts']} imagined "
        f"rollouts of {horizon} steps (false alarms at most {first['false_alarm_rate']:.1%})"
    )
    table = []
    for record in records:
        shares = ("logged", "policy", "uniform", "imagined")
        cells = [format_number(record[f"{share}_trusted"], ".0%") for share in shares]
        table.append((record["method"], record["seed"], *cells, f"{record['steps_inside']:.0f}"))
    heads = ("policy", "seed", "logged", "its actions", "random", "imagined", "steps inside")
    print_table(heads, table)


def _print_least_known(judged: list[dict[str, Any]]) -> None:
    """Print the episodes with the largest mean penalty, and the worst step of each."""
    import numpy as np

    by_episode: dict[int, list[dict[str, Any]]] = {}
    for row in judged:
        by_episode.setdefault(row["episode"], []).append(row)
    judged_episodes = []
    for episode, own in by_episode.items():
        mean, trusted = (np.mean([row[name] for row in own]) for name in ("penalty", "trusted"))
        worst = max(own, key=lambda row: row["penalty"])
        at = f"{worst['penalty']:.2f} at step {worst['step']}"
        cells = (episode, f"{len(own):,}", f"{trusted:.0%}", f"{mean:.2f}", at)
        judged_episodes.append((mean, cells))
    judged_episodes.sort(key=lambda judged: -judged[0])
    rows = [cells for _, cells in judged_episodes[:_LEAST_KNOWN]]
    print_title("episodes with the largest penalty")
    print_table(("episode", "rows", "trusted", "mean penalty", "maximum"), rows)
