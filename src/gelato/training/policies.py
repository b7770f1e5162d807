"""The policies of a finished training: read from its run folder, and evaluated again."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from gelato.errors import InputError
from gelato.policy.evaluate import find_environment, open_evaluator
from gelato.policy.policy import DeployedPolicy, load_policies
from gelato.progress import note, progress
from gelato.runs.files import report_damage
from gelato.runs.folder import Run
from gelato.runs.records import Record
from gelato.tasks.task import normalise_score
from gelato.training.method import find_family

Which = Literal["last", "best"]


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy and its origin."""

    policy: DeployedPolicy
    method: str
    seed: int
    dataset: str
    environment: str | None


def trained_policies(
    run: Path | str,
    which: Which = "last",
    method: str | None = None,
    seed: int | None = None,
    environment: str | None = None,
) -> list[TrainedPolicy]:
    """Read the policies of a training run: all, or those of one method or seed.

    A method's name without λ and fraction of real data stands for all its variants.

    `environment` replaces the environment that recorded the data.
    """
    folder = find_training(run)
    description = Run(folder).description
    reference = description["data"]["reference"]
    where = environment or _trust_environment(run, description["data"].get("environment"))

    def is_wanted(name: str, number: int) -> bool:
        return method in (None, name, find_family(name)) and seed in (None, number)

    found = []
    for group in _find_groups(folder):
        described = group.description
        labels = list(product(described["methods"], described["seeds"]))
        if not any(is_wanted(*label) for label in labels):
            continue
        if which == "best" and group.has("last") and not group.has("best"):
            raise InputError(
                f"{run}: has no best policies, because no environment measured their returns; "
                "use the last ones"
            )
        path = group.check(f"{which}.npz")
        policies = load_policies(path)
        if len(policies) != len(labels):
            raise InputError(f"{path}: damaged ({len(policies)} policies for {len(labels)} labels)")
        for policy, label in zip(policies, labels, strict=True):
            if is_wanted(*label):
                found.append(TrainedPolicy(policy, *label, reference, where))
    with report_damage(folder / "run.json"):
        names = [each["name"] for each in description["methods"]]
    if not found:
        asked = [] if method is None else [f"method {method}"]
        asked += [] if seed is None else [f"seed {seed}"]
        of = f" of {' and '.join(asked)}" if asked else ""
        raise InputError(
            f"{run}: has no finished policy{of}; its methods are {', '.join(names)}, "
            f"its seeds {', '.join(map(str, description['seeds']))}"
        )
    with report_damage(folder / "run.json"):
        return sorted(found, key=lambda trained: (names.index(trained.method), trained.seed))


def _trust_environment(run: Path | str, recorded: str | None) -> str | None:
    """Return the environment that recorded the data, unless its name would import a module."""
    if recorded is not None and ":" in recorded:
        note(
            f"{run}: names the environment {recorded}, whose module would be imported; it is "
            f"ignored. If you trust it, pass --environment {recorded}"
        )
        return None
    return recorded


def find_training(run: Path | str) -> Path:
    """Return the folder of a training run, given that folder or the model folder in it."""
    folder = Path(run)
    kind = Run(folder).description["kind"]
    parent = folder.absolute().parent
    if kind == "model" and (parent / "run.json").exists():
        folder, kind = parent, Run(parent).description["kind"]
    if kind != "policies":
        raise InputError(
            f"{run}: contains a {kind}, not trained policies. Give the folder of a `gelato train` "
            "run"
        )
    return folder


def _find_groups(folder: Path) -> list[Run]:
    """Return the runs that hold policies; version 0.1 kept them directly in the run."""
    described = [*folder.glob("policies/*/run.json"), *folder.glob("*/run.json")]
    runs = [Run(path.parent) for path in sorted(described)]
    return [run for run in runs if run.description["kind"] == "agents"]


def evaluate_run(
    run: Path | str,
    episodes: int,
    which: Which = "last",
    method: str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    environment: str | None = None,
) -> list[Record]:
    """Run the policies of a training in the real environment; return one record per policy."""
    policies = trained_policies(run, which, method, seed, environment)
    with (
        open_evaluator(environment_for(policies[0]), workers) as evaluate,
        progress("episodes", episodes * len(policies)) as advance,
    ):
        found = evaluate([trained.policy for trained in policies], episodes, advance)
    return [
        {
            "dataset": trained.dataset,
            "method": trained.method,
            "seed": trained.seed,
            "which": which,
            "episodes": episodes,
            "return": evaluation.mean,
            "return_std": float(evaluation.returns.std()),
            "score": normalise_score(trained.environment, evaluation.mean),
            "length": float(evaluation.lengths.mean()),
            "crash_rate": evaluation.crash_rate,
        }
        for trained, evaluation in zip(policies, found, strict=True)
    ]


def environment_for(trained: TrainedPolicy) -> str:
    """Return the environment of a policy; it must be installed."""
    policy = trained.policy
    environment = find_environment(trained.environment, policy.layout.state_size, policy.space)
    if environment is None:
        raise InputError(
            f"{trained.dataset}: the environment is unknown or not installed. Give one with "
            "--environment"
        )
    return environment
