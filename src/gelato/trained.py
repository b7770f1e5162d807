"""Trained policies as later commands need them: read from a run's folder, run again, drawn."""

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from gelato.envs.scores import normalised_score
from gelato.errors import InputError
from gelato.evaluation.deployed import DeployedPolicy, load_policies
from gelato.evaluation.rollout import environment_of, evaluator
from gelato.progress import progress
from gelato.results import Record, read_records
from gelato.runs import Run

Which = Literal["last", "best"]


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy and where it comes from."""

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
    """The policies of a training run, all of them or those of one method or seed; `environment` is the data's unless
    told.
    """
    folder = Path(run)
    description = Run(folder).description
    if description["kind"] != "policies":
        raise InputError(f"{run}: holds a run of kind {description['kind']}; `gelato train` makes policies")
    data, found = description["data"], []
    for group in sorted(path.parent for path in folder.glob("*/run.json")):
        inner = Run(group).description
        if inner["kind"] != "agents":
            continue
        labels = [(name, number) for name in inner["methods"] for number in inner["seeds"]]
        chosen = [method in (None, name) and seed in (None, number) for name, number in labels]
        if which == "best" and any(chosen) and Run(group).has("last") and not Run(group).has("best"):
            raise InputError(f"{run}: holds no best policies, since there was no environment to tell; take the last")
        policies = load_policies(group / f"{which}.npz") if any(chosen) else []
        for policy, (name, number), wanted in zip(policies, labels, chosen):
            if wanted:
                where = environment or data["environment"]
                found.append(TrainedPolicy(policy, name, number, data["reference"], where))
    if not found:
        there = ", ".join(one["name"] for one in description["methods"])
        seeds = ", ".join(map(str, description["seeds"]))
        asked = [f"{name} {value}" for name, value in (("method", method), ("seed", seed)) if value is not None]
        raise InputError(
            f"{run}: holds no finished policy{' of ' * bool(asked)}{' and '.join(asked)}; "
            f"its methods are {there}, its seeds {seeds}"
        )
    order = [one["name"] for one in description["methods"]]
    return sorted(found, key=lambda trained: (order.index(trained.method), trained.seed))


def most_valued(run: Path | str) -> list[TrainedPolicy]:
    """Of every method the policy whose value in its own pessimistic MDP is largest: chosen without an environment."""
    records = read_records(Run(Path(run)).results)
    values = {(record["method"], record["seed"]): record["initial_value"] for record in records}

    def value(trained: TrainedPolicy) -> float:
        known = values[trained.method, trained.seed]
        return -math.inf if known is None else float(known)

    by_method = groupby(trained_policies(run), key=lambda trained: trained.method)
    return [max(own, key=value) for _, own in by_method]


def evaluate_run(
    run: Path | str,
    episodes: int,
    which: Which = "last",
    method: str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    environment: str | None = None,
) -> list[Record]:
    """The policies of a run in the real environment, all of them or those of one method or seed, as flat records."""
    policies = trained_policies(run, which, method, seed, environment)
    with (
        evaluator(environment_for(policies[0]), workers) as evaluate,
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
            "score": normalised_score(trained.environment, evaluation.mean),
            "length": float(evaluation.lengths.mean()),
            "crash_rate": evaluation.crash_rate,
        }
        for trained, evaluation in zip(policies, found, strict=True)
    ]


def environment_for(trained: TrainedPolicy) -> str:
    """The environment a policy is for, which has to be here."""
    policy = trained.policy
    environment = environment_of(trained.environment, len(policy.mean), policy.space)
    if environment is None:
        raise InputError(
            f"{trained.dataset}: there is no environment here to run policies in; name one (--environment)"
        )
    return environment
