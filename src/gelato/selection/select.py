"""Choose one policy of several from the log alone, and say how good it is.

Policies are ranked by the mean of their ranks under three estimators that see different things:
returns in other models, the value under one common λ, and FQE. The estimated return and the verdict
come from returns in other models, because they are in the units of the log's own returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from gelato.data.reference import load_stored
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.runs.files import report_damage
from gelato.runs.folder import Run
from gelato.runs.sweeps import expand_sweeps
from gelato.selection.budget import Trial, choose_trial, try_policies
from gelato.selection.estimate import Estimate, bound_mean, rank
from gelato.selection.evidence import SelectSettings
from gelato.selection.run import Candidate, RunEstimates, check_same_data, estimate_run
from gelato.selection.value import CommonValue, change_weight
from gelato.training.policies import (
    TrainedPolicy,
    environment_for,
    find_training,
    trained_policies,
)

Verdict = Literal["better than the data", "do not deploy", "not shown to be better"]
# Estimators that rank policies; the others are reported.
RANKING = ("cross-model", "value, common λ", "fqe")
# More steps than this outside of the data: nothing is known about the policy.
MOST_OUTSIDE = 0.5
_FILE = "selection"


@dataclass(frozen=True)
class Behaviour:
    """The mean return of the logged episodes, and its 95% interval."""

    mean: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class Selection:
    """The chosen policy, the verdict about it, and all candidates, best first."""

    chosen: Candidate
    verdict: Verdict
    reasons: tuple[str, ...]
    estimate: Estimate
    behaviour: Behaviour
    ranking: tuple[tuple[Candidate, float], ...]
    agreement: float | None
    outside_share: float | None
    dataset: str
    common_weight: float
    trials: tuple[Trial, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        policies = []
        for candidate, score in self.ranking:
            policies.append({"run": str(candidate.run), "rank": score, **candidate.describe()})
        return {
            "dataset": self.dataset,
            "chosen": {
                "run": str(self.chosen.run),
                "method": self.chosen.method,
                "seed": self.chosen.seed,
            },
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "estimate": self.estimate.describe(),
            "behaviour": vars(self.behaviour),
            "agreement": self.agreement,
            "outside_share": self.outside_share,
            "common_weight": self.common_weight,
            "real_episodes": sum(len(trial.returns) for trial in self.trials),
            "trials": [trial.describe() for trial in self.trials],
            "policies": policies,
        }


def select(
    runs: Sequence[Path | str] | Path | str,
    *,
    settings: SelectSettings | None = None,
    budget: int = 0,
    environment: str | None = None,
    data: Dataset | None = None,
) -> Selection:
    """Choose a policy of one or several runs on the same data.

    No environment is used, unless `budget` allows some real episodes; `environment` replaces the
    one that recorded the data. The choice is stored in the run's `selection.json`; `evaluate` and
    `export` then use it. `data` replaces the recorded reference, for data that moved.
    """
    folders = expand_sweeps([runs] if isinstance(runs, str | Path) else list(runs))
    if not folders:
        raise InputError("name the folder of at least one run")
    if budget < 0:
        raise InputError(f"budget is {budget}; it must be at least 0")
    if environment is not None and not budget:
        raise InputError("an environment has no effect without a budget of real episodes")
    # Refuse what cannot succeed before minutes are spent on estimates.
    trained = _check_same_data(folders)
    if budget:
        environment_for(replace(trained[0], environment=environment or trained[0].environment))
    dataset = data or load_stored(trained[0].dataset)
    check_same_data(find_training(folders[0]), dataset)
    behaviour = measure_behaviour(dataset)
    found = [estimate_run(folder, settings, dataset) for folder in folders]
    candidates, weight = pool_candidates(found)
    ranking = rank_candidates(candidates)
    trials: list[Trial] = []
    if budget:
        trials = try_policies([candidate for candidate, _ in ranking], budget, environment)
    selection = decide(ranking, behaviour, found[0].dataset, weight, trials=trials)
    chosen_run = Run(selection.chosen.run)
    with chosen_run.lock():
        chosen_run.write_json(_FILE, selection.describe())
    return selection


def pool_candidates(found: Sequence[RunEstimates]) -> tuple[list[Candidate], float]:
    """Return the candidates of all runs with their values under one common λ, and that λ.

    Each run measured its own. The common one is the median over policies.
    """
    weights = np.repeat(
        [estimates.common_weight for estimates in found],
        [len(estimates.candidates) for estimates in found],
    )
    weight, candidates = float(np.median(weights)), []
    for run in found:
        for candidate in run.candidates:
            estimates = []
            for estimate in candidate.estimates:
                shared = estimate.estimator == CommonValue.name
                estimates.append(change_weight(estimate, weight) if shared else estimate)
            candidates.append(replace(candidate, estimates=tuple(estimates)))
    return candidates, weight


def rank_candidates(candidates: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
    """Return candidates with their mean rank, best first.

    An estimator counts only where its estimate is usable.
    """
    sums, counts = np.zeros(len(candidates)), np.zeros(len(candidates))
    for name in RANKING:
        estimates = [candidate.find(name) for candidate in candidates]
        usable = [place for place, each in enumerate(estimates) if each and each.usable]
        values = [_lower(estimates[place]) for place in usable]
        sums[usable] += rank(values)
        counts[usable] += 1
    scores = np.where(counts > 0, sums / np.maximum(counts, 1), -1.0)
    order = np.argsort(-scores, kind="stable")
    return [(candidates[place], float(scores[place])) for place in order]


def decide(
    ranking: Sequence[tuple[Candidate, float]],
    behaviour: Behaviour,
    dataset: str,
    common_weight: float,
    *,
    trials: Sequence[Trial] = (),
) -> Selection:
    """Choose the best candidate and judge it against the logged behaviour."""
    chosen = ranking[0][0]
    estimate = chosen.find("cross-model") or Estimate("cross-model", float("nan"), problem="none")
    if trials:
        best = choose_trial(trials)
        chosen, estimate = best.candidate, best.estimate
    outside = None
    other = chosen.find("cross-model")
    if other is not None:
        outside = other.details.get("outside_share")
    verdict, reason = judge(estimate, behaviour, None if trials else outside)
    reasons = [reason, *_report_problems([candidate for candidate, _ in ranking])]
    bias = estimate.details.get("reward_bias", 0.0)
    if bias > 0:
        reasons.append(
            f"all models misjudge logged rewards by {bias:.3g} per step, which widens the interval "
            f"by {estimate.details['widened']:,.4g} on both sides"
        )
    return Selection(
        chosen,
        verdict,
        tuple(reasons),
        estimate,
        behaviour,
        tuple(ranking),
        measure_agreement([candidate for candidate, _ in ranking]),
        outside,
        dataset,
        common_weight,
        tuple(trials),
    )


def judge(
    estimate: Estimate, behaviour: Behaviour, outside_share: float | None
) -> tuple[Verdict, str]:
    """Return the verdict and the reason for it."""
    if not estimate.usable or estimate.low is None or estimate.high is None:
        return "not shown to be better", f"there is no usable estimate: {estimate.problem}"
    if outside_share is not None and outside_share > MOST_OUTSIDE:
        return "do not deploy", f"{outside_share:.0%} of its steps are outside the data"
    if estimate.low > behaviour.high:
        return (
            "better than the data",
            f"the lower bound {estimate.low:,.4g} is above the upper bound of the logged return, "
            f"{behaviour.high:,.4g}",
        )
    if estimate.high < behaviour.low:
        return (
            "do not deploy",
            f"the upper bound {estimate.high:,.4g} is below the lower bound of the logged return, "
            f"{behaviour.low:,.4g}",
        )
    return (
        "not shown to be better",
        f"its interval {estimate.low:,.4g} to {estimate.high:,.4g} overlaps with that of the "
        f"logged return, {behaviour.low:,.4g} to {behaviour.high:,.4g}",
    )


def measure_behaviour(dataset: Dataset) -> Behaviour:
    """Return the mean return of the log and its interval."""
    returns = episode_returns(dataset.transitions)
    if len(returns) < 2:
        raise InputError(
            f"{dataset.reference}: has one episode, so nothing is known about how returns vary; "
            "record at least two"
        )
    return Behaviour(float(returns.mean()), *bound_mean(returns), len(returns))


def measure_agreement(candidates: Sequence[Candidate]) -> float | None:
    """Return the mean rank correlation between pairs of ranking estimators, or None."""
    columns = []
    for name in RANKING:
        estimates = [candidate.find(name) for candidate in candidates]
        columns.append([each.estimate if each and each.usable else np.nan for each in estimates])
    found = []
    for first in range(len(columns)):
        for second in range(first):
            both = np.array([columns[first], columns[second]])
            both = both[:, np.isfinite(both).all(axis=0)]
            if both.shape[1] > 2 and np.ptp(both, axis=1).min() > 0:
                found.append(stats.spearmanr(*both).statistic)
    return float(np.mean(found)) if found else None


def find_selected(run: Path | str) -> dict[str, Any] | None:
    """Return the policy that `select` chose in a run, or None."""
    folder = Run(find_training(run))
    path = folder.folder / f"{_FILE}.json"
    if not path.exists():
        return None
    with report_damage(path):
        chosen = folder.read_json(_FILE)["chosen"]
        _ = str(chosen["method"]), int(chosen["seed"]), str(chosen["run"])
        return dict(chosen)


def _lower(estimate: Estimate | None) -> float:
    """Return what candidates are ranked by: a lower quantile where there is one."""
    assert estimate is not None
    return estimate.details.get("lower_quantile", estimate.estimate)


def _check_same_data(folders: Sequence[Path | str]) -> list[TrainedPolicy]:
    """Return the policies of all runs; refuse runs on different data."""
    first, *others = [(folder, find_training(folder)) for folder in folders]
    fingerprint = Run(first[1]).description["fingerprint"]
    for folder, found in others:
        if Run(found).description["fingerprint"] != fingerprint:
            raise InputError(
                f"{folder}: its policies were trained on other data than those of {first[0]}; "
                "select among policies of one dataset"
            )
    trained = []
    for _, found in [first, *others]:
        trained += trained_policies(found)
    return trained


def _report_problems(candidates: Sequence[Candidate]) -> list[str]:
    """Say which estimates are excluded, one line per estimator."""
    problems: dict[str, list[str]] = {}
    for candidate in candidates:
        for estimate in candidate.estimates:
            if not estimate.usable:
                problem = estimate.problem or "not finite"
                problems.setdefault(estimate.estimator, []).append(problem)
    lines = []
    for name, found in problems.items():
        lines.append(f"{name}: excluded for {len(found)} of {len(candidates)} ({found[0]})")
    return lines
