"""`gelato evaluate`, `table` and `export`: what to do with trained policies."""

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from gelato.cli.arguments import MovedData, Training, Trainings
from gelato.cli.output import check_output, format_number, print_fields, print_json, print_table
from gelato.errors import InputError
from gelato.progress import note

if TYPE_CHECKING:
    from gelato.uncertainty.trust import Trust


def evaluate(
    run: Positional[Training],
    episodes: int = 10,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
    all: bool = False,
    environment: str | None = None,
    json: bool = False,
    video: Path | None = None,
) -> None:
    """Run trained policies in the real environment, on all cores.

    Actions are deterministic, and every evaluation uses the same environment seeds.

    Args:
        episodes: Episodes per policy.
        method: Method to evaluate. Default: the policy that `gelato select` chose, else all.
        seed: Seed to evaluate. Default: the policy that `gelato select` chose, else all.
        which: The last policies of training, or those with the best return during training.
        all: Evaluate every policy, also if one was selected.
        environment: Environment to use, such as `Pendulum-v1`. Default: the environment that
            recorded the data.
        json: Print one JSON object instead of a table.
        video: Also record an episode of the first policy in this file (.gif, or .mp4 with the
            extra `video`).
    """
    from gelato.policy.video import check_video, write_video
    from gelato.report.policy_table import show_return
    from gelato.tasks.environments import check_environment
    from gelato.training.policies import environment_for, evaluate_run, trained_policies

    if episodes < 1:
        raise InputError(f"--episodes {episodes}: must be at least 1")
    check_video(video)
    check_output(video)
    if environment is not None:
        check_environment(environment)
    if not all:
        method, seed = _use_selected(run, method, seed)
    records = evaluate_run(run, episodes, which, method, seed, environment=environment)
    if video is not None:
        first = trained_policies(run, which, method, seed, environment)[0]
        write_video(first.policy, environment_for(first), video)
        note(f"{video} written")
    if json:
        print_json({"run": str(run), "which": which, "records": records})
        return
    rows = []
    for record in records:
        score = format_number(record["score"], ".1f")
        length = f"{record['length']:,.0f}"
        rows.append((record["method"], record["seed"], show_return(record), score, length))
    title = f"{which} policies, {episodes} episodes"
    print_table((title, "seed", "return ± 95%", "score", "length"), rows)


def _use_selected(run: Path, method: str | None, seed: int | None) -> tuple[str | None, int | None]:
    """Return the selected policy if the user named none and there is one."""
    from gelato.selection.select import find_selected

    if method is not None or seed is not None:
        return method, seed
    chosen = find_selected(run)
    if chosen is None:
        return None, None
    note(f"using the selected policy: {chosen['method']}, seed {chosen['seed']}")
    return str(chosen["method"]), int(chosen["seed"])


def compare(
    runs: Positional[Trainings],
    format: Literal["md", "latex", "json"] = "md",
    out: Path | None = None,
) -> None:
    """Compare training runs: mean ± standard deviation over seeds, IQM with 95% intervals.

    Args:
        runs: Folders of `gelato train`, or JSON files of records.
        format: Markdown, LaTeX or JSON.
        out: Write to this file instead of standard output.
    """
    from gelato.report.policy_table import aggregate, as_text, gather, summarise_policies
    from gelato.runs.files import write_atomically

    if not runs:
        raise InputError("give at least one run folder")
    check_output(out)
    records = gather(runs)
    if format == "json":
        cells = {"cells": summarise_policies(records), "methods": aggregate(records)}
        text = dumps(cells) + "\n"
    else:
        text = as_text(records, format)
    if out is None:
        sys.stdout.write(text)
    else:
        with write_atomically(out) as partial:
            partial.write_text(text, "utf-8")


def export(
    run: Positional[Training],
    onnx: Path,
    method: str | None = None,
    seed: int | None = None,
    which: Literal["last", "best"] = "last",
    guard: bool = True,
    prototypes: int = 10_000,
    false_alarm_rate: float = 0.05,
    coverage: float = 0.9,
    fitted_to: MovedData = None,
) -> None:
    """Export a policy and its guard as one ONNX graph.

    The graph maps an observation to the action, the penalty U, `trusted`, the predicted next state
    and its error bounds. onnxruntime checks it against the original before the file is written.

    Args:
        onnx: The file to write.
        method: Method to export. Default: the policy that `gelato select` chose, else the first
            method.
        seed: Seed to export. Default: the policy that `gelato select` chose, else the first seed.
        which: The last policy of training, or the one with the best return during training.
        guard: Export the policy without its guard, as for a run without a latent model.
        prototypes: Number of training rows that the exported guard contains. It measures distances
            to them.
        false_alarm_rate: Share of a new episode's steps that may be false alarms of the guard.
        coverage: Share of a new episode's steps for which the error bound must hold.
    """
    from gelato.policy.onnx_export import (
        export_guarded,
        export_onnx,
        import_packages,
        measure_latency,
    )
    from gelato.report.references import shorten_reference
    from gelato.training.policies import trained_policies

    if onnx.suffix != ".onnx":
        raise InputError(f"{onnx}: the file name must end in .onnx")
    if prototypes < 2:
        raise InputError(f"--prototypes {prototypes}: must be at least 2")
    check_output(onnx)
    import_packages()
    method, seed = _use_selected(run, method, seed)
    chosen = trained_policies(run, which, method, seed)[0]
    metadata = {
        "method": chosen.method,
        "seed": str(chosen.seed),
        "which": which,
        "dataset": shorten_reference(chosen.dataset),
        "environment": chosen.environment or "unknown",
    }
    fields = dict(metadata)
    if guard and not _has_model(run):
        note(f"{run}: has no latent model, so the policy is exported without a guard")
        guard = False
    if guard:
        trust = _make_trust(run, chosen.seed, prototypes, coverage, false_alarm_rate, fitted_to)
        found = export_guarded(chosen.policy, trust, onnx, metadata)
        fields |= {
            "guard": f"{trust.points:,} prototypes, U up to {trust.limit:.2f} is trusted",
            "false alarms": f"at most {trust.false_alarm_rate:.1%} of a new episode's steps",
            "error bound": f"holds for {trust.bounds.coverage:.1%} of a new episode's steps",
            "largest difference": f"action {found.action:.1e}, U {found.penalty:.1e}",
        }
    else:
        difference = export_onnx(chosen.policy, onnx, metadata)
        fields["largest difference"] = f"{difference:.1e}"
    history = chosen.policy.history
    if history > 1:
        fields["history"] = f"{history} observations; an episode begins with a window of zeros"
    latency = measure_latency(onnx)
    fields["size"] = f"{onnx.stat().st_size / 1e6:.1f} MB"
    fields["a step on one core"] = (
        f"median {latency.median:.2f} ms, 99% {latency.high:.2f} ms "
        f"({latency.computing:.2f} ms of computing)"
    )
    print_fields(f"{onnx} written", fields)


def _has_model(run: Path) -> bool:
    from gelato.model.training import NoModelError, find_model

    try:
        find_model(run)
    except NoModelError:
        return False
    return True


def _make_trust(
    run: Path,
    seed: int,
    points: int,
    coverage: float,
    false_alarm_rate: float,
    fitted_to: str | None,
) -> "Trust":
    """Make the guard of a run's model, or say how to export without one."""
    from gelato.cli.model import load_fitted
    from gelato.uncertainty.trust import Trust

    try:
        fitted = load_fitted(run, fitted_to)
    except InputError as error:
        raise InputError(f"{error}. Use --no-guard to export the policy alone") from error
    return Trust(
        fitted, seed=seed, points=points, coverage=coverage, false_alarm_rate=false_alarm_rate
    )
