"""Choose policies without a simulator, then measure how good the choice was.

python experiments/benchmarks/selection.py --dataset halfcheetah-medium --out runs/out/hc-medium

One dataset per process: train a grid of λ × fraction of real data × seeds in one program without
any evaluation, estimate all policies from the log alone, select one, and only then measure true
returns, which nothing else reads. Repeat the command to resume: finished stages are read from
`--runs`, or unpacked from `--out` if that folder is elsewhere by now. `--minutes` stops in time.
`--merge OUT...` writes the records of such folders to results/selection.json, and the choices to
results/selection_choices.json. experiments/README.md has the commands of all datasets.

The folder `--out` is written after every stage. It holds at most eight files of 16 MiB, 60 in all:

records.json       one record per policy and estimator
choice.json        the chosen policy, the verdict, the truth, and the durations; those of `select`
                   also by stage, without the estimators that take no part in the choice
selection.json     all that `select` said
seconds.json       durations of the stages, summed over all calls
run-0.part, ...    the run folder without checkpoints, as parts of one archive
"""

import argparse
import io
import json
import math
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from experiments.mopo import recording
from experiments.tables import choices_table, selection_table
from experiments.units import stop_after
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.policy.evaluate import open_evaluator
from gelato.progress import note
from gelato.runs.files import write_atomically
from gelato.runs.records import Record, device, merge_records, read_records, write_records
from gelato.selection import Selection, SelectSettings, choose_settings, select
from gelato.selection.run import OTHER_STAGES
from gelato.selection.temporal import TemporalConfig
from gelato.tasks.task import normalise_score
from gelato.training.method import Method
from gelato.training.policies import environment_for, trained_policies
from gelato.training.presets import Parts, choose_parts, make_grid
from gelato.training.train import train

RESULTS = Path(__file__).parents[2] / "results" / "selection.json"
KEYS = ("dataset", "method", "penalty_weight", "real_fraction", "seed", "estimator")
WEIGHTS, FRACTIONS = (0.3, 1.0, 3.0, 10.0, 30.0), (0.05, 0.5)
_PART_BYTES, _MOST_PARTS = 15 * 2**20, 3


def main() -> None:
    """Run the stages that are missing for one dataset, or merge records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", help="a name of `gelato data list`, or any reference")
    parser.add_argument("--name", help="of the dataset in records; default: the reference")
    parser.add_argument(
        "--policy",
        type=Path,
        help="record new data with these weights of a D4RL policy; --dataset is the environment",
    )
    parser.add_argument("--transitions", type=int, default=1_000_000, help="with --policy")
    parser.add_argument("--runs", type=Path, default=Path("runs/selection"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weights", type=float, nargs="+", default=list(WEIGHTS))
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--updates", type=int, help="of every policy; default: the preset's")
    parser.add_argument("--model-updates", type=int, help="of the model; default: the preset's")
    parser.add_argument("--episodes", type=int, default=20, help="real episodes per policy")
    parser.add_argument("--workers", type=int, help="simulators; default: one per core")
    parser.add_argument("--minutes", type=float, help="stop in time and keep a checkpoint")
    parser.add_argument(
        "--until", choices=("train", "select", "evaluate"), default="evaluate", help="last stage"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny networks, to try the script")
    parser.add_argument("--merge", type=Path, nargs="+", help="folders of --out to merge")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.merge:
        merge(arguments.merge, arguments.results)
        return
    if arguments.dataset is None or arguments.out is None:
        parser.error("--dataset and --out are needed, or --merge")
    if arguments.minutes is not None:
        stop_after(60 * arguments.minutes)
    name = arguments.name or arguments.dataset
    folder = arguments.runs / name.replace("/", "_").replace(":", "_")
    arguments.out.mkdir(parents=True, exist_ok=True)
    _unpack(arguments.out, folder)
    clock = _Clock(arguments.out)
    with clock.measure("data"):
        dataset = _load(arguments)
    with _packing(folder, arguments.out), clock.measure("train"):
        _train(arguments, dataset, folder)
    if arguments.until == "train":
        return
    with _packing(folder, arguments.out), clock.measure("select"):
        found = select(folder, settings=_choose_select_settings(arguments, folder), data=dataset)
    described = found.describe()
    described.pop("policies")
    _write_json(arguments.out / "selection.json", described)
    if arguments.until == "select":
        return
    # From here on true returns are measured; nothing above reads them.
    with clock.measure("evaluate"):
        returns = _measure_returns(arguments, folder)
    means = {policy: float(values.mean()) for policy, values in returns.items()}
    records = make_records(name, found, means, dataset)
    write_records(arguments.out / "records.json", records)
    choice = describe_choice(name, found, returns, dataset, clock.seconds)
    _write_json(arguments.out / "choice.json", choice)
    print(selection_table(records))
    print(choices_table([choice]), flush=True)


def make_methods(
    parts: Parts, weights: Sequence[float] = WEIGHTS, fractions: Sequence[float] = FRACTIONS
) -> list[Method]:
    """Make the grid: one recipe for all tasks. Driving uses no fraction of real data."""
    changed = replace(parts, penalty_weights=tuple(weights), real_fractions=tuple(fractions))
    return make_grid("gelato", changed)


def make_records(
    name: str, found: Selection, returns: dict[tuple[str, int], float], dataset: Dataset
) -> list[Record]:
    """Return one record per policy and estimator, with the true return next to the estimate."""
    records: list[Record] = []
    for candidate, score in found.ranking:
        true = returns[candidate.method, candidate.seed]
        common: Record = {
            "dataset": name,
            "method": "gelato",
            "penalty_weight": candidate.penalty_weight,
            "real_fraction": candidate.real_fraction,
            "seed": candidate.seed,
            "return": true,
            "score": normalise_score(dataset.environment, true),
        }
        known = score if math.isfinite(score) else None
        records.append({**common, "estimator": "select", "estimate": known})
        for estimate in candidate.estimates:
            described = estimate.describe()
            record: Record = {**common, "estimator": estimate.estimator}
            for field in ("estimate", "low", "high", "problem"):
                value = described[field]
                record[field] = value if isinstance(value, int | float | str) else None
            record["details"] = json.dumps(described["details"])
            records.append(record)
    behaviour = found.behaviour
    for record in records:
        record["data_return"] = behaviour.mean
        record["data_score"] = normalise_score(dataset.environment, behaviour.mean)
    return records


def describe_choice(
    name: str,
    found: Selection,
    returns: Mapping[tuple[str, int], Float[np.ndarray, " episodes"]],
    dataset: Dataset,
    seconds: Mapping[str, float],
) -> Record:
    """Return what `select` chose and said, next to the true returns and the durations."""
    chosen, estimate, behaviour = found.chosen, found.estimate, found.behaviour
    true = returns[chosen.method, chosen.seed]
    means = [float(values.mean()) for values in returns.values()]
    # The estimators that only these tables need are no part of what `select` costs users.
    others = sum(found.seconds.get(stage, 0.0) for stage in OTHER_STAGES)
    return {
        "dataset": name,
        "policies": len(found.ranking),
        "method": chosen.method,
        "seed": chosen.seed,
        "penalty_weight": chosen.penalty_weight,
        "real_fraction": chosen.real_fraction,
        "verdict": found.verdict,
        "reason": found.reasons[0],
        "estimate": estimate.estimate,
        "low": estimate.low,
        "high": estimate.high,
        "data_return": behaviour.mean,
        "data_low": behaviour.low,
        "data_high": behaviour.high,
        "data_episodes": behaviour.episodes,
        "data_score": normalise_score(dataset.environment, behaviour.mean),
        "outside_share": found.outside_share,
        "agreement": found.agreement,
        "return": float(true.mean()),
        "return_error": float(true.std(ddof=1) / np.sqrt(len(true))),
        "episodes": len(true),
        "score": normalise_score(dataset.environment, float(true.mean())),
        "mean_return": float(np.mean(means)),
        "best_return": max(means),
        "best_score": normalise_score(dataset.environment, max(means)),
        "train_seconds": round(seconds["train"], 1),
        "select_seconds": round(seconds["select"] - others, 1),
        "device": device(),
        **{f"seconds: {stage}": round(value, 1) for stage, value in found.seconds.items()},
    }


def merge(folders: Sequence[Path], results: Path) -> None:
    """Merge the records and choices of several datasets into two files, and print the tables."""
    choices = results.with_name(f"{results.stem}_choices.json")
    for folder in folders:
        merge_records(results, read_records(folder / "records.json"), KEYS)
        choice: Record = json.loads((folder / "choice.json").read_text())
        merge_records(choices, [choice], ("dataset",))
    print(selection_table(read_records(results)))
    print(choices_table(read_records(choices)))


def _load(arguments: argparse.Namespace) -> Dataset:
    if arguments.policy is None:
        return load(arguments.dataset)
    weights = recording.read_policy(arguments.policy)
    workers = arguments.workers or os.cpu_count() or 1
    return recording.record(arguments.dataset, weights, arguments.transitions, workers)


def _train(arguments: argparse.Namespace, dataset: Dataset, folder: Path) -> None:
    parts = choose_parts(dataset)
    settings = replace(parts.settings, evaluations=0)
    if arguments.tiny:
        model = replace(parts.latent.model, hidden=(16,), forward_hidden=(16,), decoders=2)
        parts = replace(parts, latent=replace(parts.latent, model=replace(model, batch_size=32)))
        sac = replace(parts.sac, hidden=(16,), batch_size=16, branches=20, replay=500, epoch=50)
        parts, settings = replace(parts, sac=sac), replace(settings, points=500)
    if arguments.updates is not None:
        ppo = None if parts.ppo is None else replace(parts.ppo, updates=arguments.updates)
        parts = replace(parts, sac=replace(parts.sac, updates=arguments.updates), ppo=ppo)
    if arguments.model_updates is not None:
        updates = arguments.model_updates
        model = replace(parts.latent.model, updates=updates, variance_updates=updates // 5)
        parts = replace(parts, latent=replace(parts.latent, model=model))
    methods = make_methods(parts, arguments.weights, arguments.fractions)
    train(dataset, folder, methods, seeds=arguments.seeds, settings=settings)


def _choose_select_settings(arguments: argparse.Namespace, folder: Path) -> SelectSettings:
    settings = replace(choose_settings(folder), all_estimators=True)
    if arguments.tiny:
        critics = TemporalConfig(hidden=(16,), members=2, updates=50, batch_size=32)
        settings = replace(
            settings, critics=critics, episodes=2, imagined=200, points=200, model_updates=50
        )
    return settings


def _measure_returns(
    arguments: argparse.Namespace, folder: Path
) -> dict[tuple[str, int], Float[np.ndarray, " episodes"]]:
    """Run every policy in the real environment, or read the returns measured before."""
    path = folder / "true_returns.json"
    policies = trained_policies(folder)
    if not path.exists():
        with open_evaluator(environment_for(policies[0]), arguments.workers) as evaluate:
            found = evaluate([each.policy for each in policies], arguments.episodes)
        _write_json(path, [evaluation.returns.tolist() for evaluation in found])
    returns = json.loads(path.read_text())
    measured = zip(policies, returns, strict=True)
    return {(each.method, each.seed): np.array(values) for each, values in measured}


def _write_json(path: Path, value: object) -> None:
    with write_atomically(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


@contextmanager
def _packing(folder: Path, out: Path) -> Iterator[None]:
    """Pack the run when a stage ends, also if `--minutes` stopped it: fitted models are kept."""
    try:
        yield
    finally:
        _pack(folder, out)


def _pack(folder: Path, out: Path) -> None:
    """Write the run folder without checkpoints into parts; leave models out if it is too large."""
    whole = _archive(folder, ())
    if len(whole) > _MOST_PARTS * _PART_BYTES:
        whole = _archive(folder, ("model.npz",))
        note("the models are too large for --out; a later machine would fit them again")
    for old in out.glob("run-*.part"):
        old.unlink()
    for number, begin in enumerate(range(0, len(whole), _PART_BYTES)):
        (out / f"run-{number}.part").write_bytes(whole[begin : begin + _PART_BYTES])


def _archive(folder: Path, without: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            kept = path.is_file() and "checkpoints" not in path.parts and path.name not in without
            if kept and path.name != ".lock":
                archive.add(path, str(path.relative_to(folder)))
    return buffer.getvalue()


def _unpack(out: Path, folder: Path) -> None:
    """Restore the run folder from the parts of an earlier machine, if it is not there."""
    parts = sorted(out.glob("run-*.part"))
    if folder.exists() or not parts:
        return
    whole = b"".join(part.read_bytes() for part in parts)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")


class _Clock:
    """Seconds per stage, summed over all calls of the command."""

    def __init__(self, out: Path) -> None:
        self._path = out / "seconds.json"
        self.seconds: dict[str, float] = {}
        if self._path.exists():
            self.seconds = json.loads(self._path.read_text())

    def measure(self, stage: str) -> "_Stage":
        """Return a context that adds its duration to a stage."""
        return _Stage(self, stage)

    def add(self, stage: str, seconds: float) -> None:
        """Add a duration and store all of them."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._path.write_text(json.dumps(self.seconds))


class _Stage:
    def __init__(self, clock: _Clock, stage: str) -> None:
        self._clock, self._stage = clock, stage

    def __enter__(self) -> None:
        self._begun = time.monotonic()
        print(f"{self._stage} ...", flush=True)

    def __exit__(self, *_: object) -> None:
        self._clock.add(self._stage, time.monotonic() - self._begun)


if __name__ == "__main__":
    main()
