"""Algorithm 1: from logged data to policies and their returns.

run/
  run.json           what was trained, and on which data
  model/, ensemble/  fitted dynamics
  policies/NAME/     policies of one program: checkpoints, metrics.csv, last.npz, best.npz
  results.json       what every policy returned
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gelato.data.transitions import Dataset
from gelato.policy.evaluate import open_evaluator
from gelato.progress import note
from gelato.runs.folder import Run, open_run
from gelato.runs.loggers import Logger, make_loggers
from gelato.runs.loop import on_checkpoint
from gelato.runs.outbox import open_loggers
from gelato.runs.records import Record
from gelato.training.estimate import estimate_seconds
from gelato.training.group import train_group
from gelato.training.plan import MethodLike, Plan, make_plan
from gelato.training.presets import PresetName, TrainSettings


def train(
    data: Dataset | str,
    run: Path | str,
    methods: MethodLike | Sequence[MethodLike] = "gelato",
    *,
    seeds: int = 1,
    first_seed: int = 0,
    preset: PresetName = "default",
    settings: TrainSettings | None = None,
    model: Path | str | None = None,
    log: str | Logger | Sequence[str | Logger] = (),
    workers: int | None = None,
) -> list[Record]:
    """Train every method with every seed in a run folder, or resume the training in that folder.

    A method is a `Method`, or a name. A name means a grid of penalty weights and fractions of real
    data; `gelato.select` then chooses a policy. `model` is the folder of a latent model fitted
    earlier with these seeds. `log` sends metrics and results to experiment trackers: `tensorboard`,
    `wandb`, `mlflow`, or your own `Logger`. Returns one record per method and seed.
    """
    loggers = make_loggers(log)
    plan = make_plan(
        data,
        methods,
        seeds=seeds,
        first_seed=first_seed,
        preset=preset,
        settings=settings,
        model=model,
    )
    described = plan.describe()
    with (
        open_run(run, "policies", **described) as opened,
        open_loggers(opened, loggers, described) as outbox,
    ):
        if (opened.folder / "results.json").exists():
            records = opened.read_records()
        else:
            with on_checkpoint(outbox.send_metrics):
                records = _train_groups(plan, opened, workers)
        outbox.finish(records)
    return records


def _train_groups(plan: Plan, run: Run, workers: int | None) -> list[Record]:
    """Train all groups and write their records."""
    _announce(plan, run)
    records: list[Record] = []
    with ExitStack() as stack:
        evaluate = None
        if plan.environment is not None:
            evaluate = stack.enter_context(open_evaluator(plan.environment, workers))
        for group in plan.groups:
            records += train_group(plan, group, run.folder, evaluate)
    run.write_records(records)
    return records


def _announce(plan: Plan, run: Run) -> None:
    """Say what to expect."""
    if plan.environment is None:
        note("no environment to evaluate policies in; returns are not measured")
    if run.resumed:
        note("resuming from the last checkpoint")
        return
    minutes = max(1, round(estimate_seconds(plan) / 60))
    duration = f"{minutes} minutes" if minutes > 1 else "a minute"
    note(
        f"expected time: about {duration} on this machine. To pause, press Ctrl-C; repeat to resume"
    )
