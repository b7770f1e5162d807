"""All estimates for all policies of one training run, kept in its folder `selection/`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gelato.data.reference import load_stored
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.files import report_damage
from gelato.runs.folder import Run, open_run
from gelato.runs.records import read_records
from gelato.selection.cross_model import CrossModel
from gelato.selection.estimate import AbstractEstimator, Estimate, read_estimate
from gelato.selection.evidence import Evidence, SelectSettings
from gelato.selection.fqe import FittedQ, fit_critics
from gelato.selection.importance import ESTIMATORS as WEIGHTINGS
from gelato.selection.importance import ImportanceWeighting, weigh_log
from gelato.selection.log import Log, make_log
from gelato.selection.models import Models, imagine_steps, own_model_of, read_models
from gelato.selection.policies import group_by_shape, stack_policies
from gelato.selection.replay import measure_bias
from gelato.selection.rollouts import RolloutConfig, find_worst_reward, roll_out
from gelato.selection.stopwatch import Stopwatch
from gelato.selection.value import (
    CommonValue,
    OwnValue,
    PathPenalty,
    learn_values,
    measure_common_weight,
)
from gelato.training.policies import TrainedPolicy, find_training, trained_policies

FOLDER = "selection"
# Stages of the estimators that take no part in the choice.
OTHER_STAGES = ("values", "importance weighting")
# It changes when stored estimates of an older version lack something.
_VERSION = 3


@dataclass(frozen=True)
class Candidate:
    """A policy and all its estimates. It does not hold the policy's true return."""

    run: Path
    method: str
    seed: int
    penalty_weight: float
    real_fraction: float
    estimates: tuple[Estimate, ...]

    def find(self, estimator: str) -> Estimate | None:
        """Return the estimate of one estimator."""
        for estimate in self.estimates:
            if estimate.estimator == estimator:
                return estimate
        return None

    def describe(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return {
            "method": self.method,
            "seed": self.seed,
            "penalty_weight": self.penalty_weight,
            "real_fraction": self.real_fraction,
            "estimates": [estimate.describe() for estimate in self.estimates],
        }


@dataclass(frozen=True)
class RunEstimates:
    """The candidates of one run, and what the estimates were made with."""

    candidates: tuple[Candidate, ...]
    fingerprint: str
    dataset: str
    common_weight: float
    models: int
    seconds: dict[str, float]
    """How long every stage took."""


def choose_settings(run: Path | str) -> SelectSettings:
    """Choose settings in proportion to the training, so that selecting stays cheap."""
    path = Run(find_training(run)).results
    with report_damage(path):
        updates = max([int(record["steps"] or 0) for record in read_records(path)], default=0)
    settings = SelectSettings()
    critics = replace(
        settings.critics, updates=min(settings.critics.updates, max(100, updates // 15))
    )
    small = updates < 100_000
    if small:
        critics = replace(critics, hidden=(64, 64))
    return replace(
        settings,
        critics=critics,
        model_updates=min(settings.model_updates, max(100, updates // 8)),
        episodes=8 if small else settings.episodes,
        imagined=10_000 if small else settings.imagined,
        points=5_000 if small else settings.points,
    )


def estimate_run(
    run: Path | str, settings: SelectSettings | None = None, data: Dataset | None = None
) -> RunEstimates:
    """Estimate every policy of a run from its log alone, or read the estimates made before.

    `data` replaces the recorded reference, for data that moved. Settings other than the default
    are part of the result's name, so that nothing is read that was made differently.
    """
    folder = find_training(run)
    settings = settings or choose_settings(folder)
    described = Run(folder).description
    name = _name_settings(settings, described)
    path = folder / FOLDER
    Run(folder).refuse_links()  # The folder of the estimates may be a link that someone made.
    with open_run(path, "selection", settings_of=str(described["fingerprint"])) as opened:
        if (path / f"{name}.json").exists():
            with report_damage(path / f"{name}.json"):
                return _read_estimates(folder, opened.read_json(name))
        dataset = data or load_stored(described["data"]["reference"])
        check_same_data(folder, dataset)
        found = _estimate(folder, path, dataset, settings)
        opened.write_json(name, _describe_estimates(found))
    return found


def check_same_data(run: Path, dataset: Dataset) -> None:
    """Refuse data that the policies of a run were not trained on."""
    if dataset.transitions.fingerprint() != Run(run).description["fingerprint"]:
        raise InputError(
            f"{run}: was trained on other data than {dataset.reference} (fingerprints differ). "
            "Restore that data, or train again"
        )


def _estimate(run: Path, folder: Path, dataset: Dataset, settings: SelectSettings) -> RunEstimates:
    watch = Stopwatch()
    described = Run(run).description
    methods = {method["name"]: method for method in described["methods"]}
    with watch.measure("policies and log"):
        trained = trained_policies(run)
        log = make_log(dataset.transitions)
    penalty = next(
        (each["penalty"] for each in described["methods"] if each["penalty"] != "none"), None
    )
    models = read_models(run, folder, dataset, penalty, settings, watch)
    if len(models.seeds) < 2:
        note(
            f"{run}: has {len(models.seeds) or 'no'} model seed, so a policy is judged only by "
            "the models fitted to halves of the data; for more models, train with --seeds 2 in a "
            "new folder"
        )
    with watch.measure("replay of logged actions"):
        bias = measure_bias(models.judges, log, key=jax.random.key(settings.seed))
    found: list[Candidate | None] = [None] * len(trained)
    evidences, places = [], group_by_shape([each.policy for each in trained])
    for group in places:
        chosen = [trained[place] for place in group]
        evidence = _gather(chosen, methods, models, log, settings, watch)
        evidences.append(replace(evidence, bias=bias))
    weight = _pool_weights(evidences)
    for group, evidence in zip(places, evidences, strict=True):
        estimators = make_estimators(evidence, weight, watch)
        by_estimator = [estimator.estimate(evidence) for estimator in estimators]
        for row, place in enumerate(group):
            each = trained[place]
            method = methods[each.method]
            found[place] = Candidate(
                run,
                each.method,
                each.seed,
                float(method["penalty_weight"]),
                float(method["real_fraction"]),
                tuple(estimates[row] for estimates in by_estimator),
            )
    candidates = tuple(candidate for candidate in found if candidate is not None)
    return RunEstimates(
        candidates,
        described["fingerprint"],
        dataset.reference,
        weight,
        len(models.judges),
        watch.seconds,
    )


def make_estimators(
    evidence: Evidence, common_weight: float, watch: Stopwatch
) -> list[AbstractEstimator]:
    """Make the estimators that the settings ask for. What several of them need is computed once."""
    with watch.measure("fitted Q evaluation"):
        critics = fit_critics(evidence)
    needed: list[AbstractEstimator] = [CrossModel(), FittedQ(critics), PathPenalty()]
    if not evidence.settings.all_estimators:
        return needed
    with watch.measure(OTHER_STAGES[0]):
        values = learn_values(evidence)
    with watch.measure(OTHER_STAGES[1]):
        weighted = weigh_log(evidence, critics)
    return [
        *needed,
        CommonValue(common_weight, values),
        OwnValue(values),
        *(ImportanceWeighting(name, weighted) for name in WEIGHTINGS),
    ]


def _gather(
    trained: Sequence[TrainedPolicy],
    methods: dict[str, Any],
    models: Models,
    log: Log,
    settings: SelectSettings,
    watch: Stopwatch,
) -> Evidence:
    """Roll policies of equal shape out in all models."""
    policies = stack_policies([each.policy for each in trained])
    own = np.zeros((len(models.judges), len(trained)), bool)
    homes = []
    for row, each in enumerate(trained):
        fit = methods[each.method]["fit"]
        place = own_model_of(models, None if fit is None else fit["type"], each.seed)
        if place is not None:
            own[place, row] = True
        homes.append(0 if place is None else place)
    key = jax.random.key(settings.seed)
    starts = log.initial_states[_spread(len(log.rows), settings.episodes)]
    config = RolloutConfig(int(log.rows.shape[1]), find_worst_reward(log))
    with watch.measure("rollouts"):
        rollouts = roll_out(models.judges, policies, starts, own, config, key=key)
    imagined = None
    if settings.all_estimators:
        with watch.measure(OTHER_STAGES[0]):
            imagined = imagine_steps(
                models.judges, policies, homes, log, settings.imagined, key=key
            )
    weights = [float(methods[each.method]["penalty_weight"]) for each in trained]
    return Evidence(log, policies, settings, rollouts, imagined, np.array(weights))


def _spread(available: int, wanted: int) -> np.ndarray:
    """Return as many places as wanted, spread over those available."""
    return np.linspace(0, available - 1, wanted).astype(int)


def _pool_weights(evidences: Sequence[Evidence]) -> float:
    """Measure the common λ over all policies."""
    found = [
        measure_common_weight(evidence.rollouts)
        for evidence in evidences
        if evidence.rollouts is not None
    ]
    return float(np.median(found)) if found else 0.0


def _name_settings(settings: SelectSettings, described: dict[str, Any]) -> str:
    """Name the file of estimates by everything that decides them."""
    text = json.dumps([_VERSION, asdict(settings), described["fingerprint"]], sort_keys=True)
    return f"estimates-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _describe_estimates(found: RunEstimates) -> dict[str, object]:
    return {
        "dataset": found.dataset,
        "fingerprint": found.fingerprint,
        "common_weight": found.common_weight,
        "models": found.models,
        "seconds": found.seconds,
        "candidates": [candidate.describe() for candidate in found.candidates],
    }


def _read_estimates(run: Path, fields: dict[str, Any]) -> RunEstimates:
    candidates = []
    for each in fields["candidates"]:
        estimates = tuple(read_estimate(estimate) for estimate in each["estimates"])
        candidates.append(Candidate(run, **{**each, "estimates": estimates}))
    return RunEstimates(
        tuple(candidates),
        fields["fingerprint"],
        fields["dataset"],
        fields["common_weight"],
        fields["models"],
        fields["seconds"],
    )
