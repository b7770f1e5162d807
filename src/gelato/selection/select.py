"""Choose one policy of several from the log alone, and say how good it is.

Policies are ranked by their returns in models that they were not trained in: by a lower quantile
over the models, so that a policy which fails in one of them comes later. The estimated return and
the verdict are the median over the same models. FQE is a cross-check, and decides if the models
give no estimate. `docs/research/selection.md` says why no other estimator takes part.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from gelato.selection.cross_model import CrossModel
from gelato.selection.estimate import Estimate, bound_mean
from gelato.selection.evidence import SelectSettings
from gelato.selection.fqe import FittedQ
from gelato.selection.run import (
    Candidate,
    RunEstimates,
    check_same_data,
    choose_settings,
    estimate_run,
)
from gelato.selection.value import CommonValue, change_weight
from gelato.training.policies import (
    TrainedPolicy,
    environment_for,
    find_training,
    trained_policies,
)

Verdict = Literal["better than the data", "do not deploy", "not shown to be better"]
# The first of these that is usable for half of the policies ranks them.
RANKING = (CrossModel.name, FittedQ.name)
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
    """The chosen policy, the verdict about it, and all candidates, best first.

    Candidates are ranked by their scores: by a lower quantile of the return over models, or −∞ if
    there is no usable estimate. `seconds` says how long the stages of all estimates took.
    """

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
    seconds: Mapping[str, float] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        policies = []
        for place, (candidate, score) in enumerate(self.ranking, start=1):
            known = score if math.isfinite(score) else None
            fields = {"run": str(candidate.run), "rank": place, "score": known}
            policies.append({**fields, **candidate.describe()})
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
            "seconds": {stage: round(seconds, 2) for stage, seconds in self.seconds.items()},
            "policies": policies,
        }


def select(
    runs: Sequence[Path | str] | Path | str,
    *,
    settings: SelectSettings | None = None,
    all_estimators: bool = False,
    budget: int = 0,
    environment: str | None = None,
    data: Dataset | None = None,
) -> Selection:
    """Choose a policy of one or several runs on the same data.

    `all_estimators` adds those that take no part in the choice to the default settings. No
    environment is used, unless `budget` allows some real episodes; `environment` replaces the
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
    found = []
    for folder in folders:
        own = settings or replace(choose_settings(folder), all_estimators=all_estimators)
        found.append(estimate_run(folder, own, dataset))
    candidates, weight = pool_candidates(found)
    ranking = rank_candidates(candidates)
    trials: list[Trial] = []
    if budget:
        trials = try_policies([candidate for candidate, _ in ranking], budget, environment)
    selection = decide(ranking, behaviour, found[0].dataset, weight, trials=trials)
    seconds: Counter[str] = Counter()
    for estimates in found:
        seconds.update(estimates.seconds)
    selection = replace(selection, seconds=seconds)
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
    """Return candidates with their scores, best first.

    One estimator ranks all of them, since scores of different estimators have different units. A
    candidate without a usable estimate of it comes last.
    """
    name = find_deciding(candidates)
    scored = [(candidate, _score(candidate.find(name))) for candidate in candidates]
    return sorted(scored, key=lambda pair: -pair[1])


def find_deciding(candidates: Sequence[Candidate]) -> str:
    """Return the estimator that ranks the candidates."""
    for name in RANKING:
        estimates = [candidate.find(name) for candidate in candidates]
        usable = sum(estimate is not None and estimate.usable for estimate in estimates)
        if usable >= max(1, len(candidates) / 2):
            return name
    return RANKING[0]


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
    candidates = [candidate for candidate, _ in ranking]
    name = CrossModel.name
    estimate = chosen.find(name) or Estimate(name, float("nan"), problem="none")
    if trials:
        best = choose_trial(trials)
        chosen, estimate = best.candidate, best.estimate
    outside = None
    other = chosen.find(name)
    if other is not None:
        outside = other.details.get("outside_share")
    verdict, reason = judge(estimate, behaviour, None if trials else outside)
    reasons = [reason]
    deciding = find_deciding(candidates)
    if deciding != name:
        reasons.append(f"{deciding} ranks the policies, because {name} has too few estimates")
    reasons += _report_problems(candidates)
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
        measure_agreement(candidates),
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
            "record at least two, or train a single policy with --penalty-weight"
        )
    return Behaviour(float(returns.mean()), *bound_mean(returns), len(returns))


def measure_agreement(candidates: Sequence[Candidate]) -> float | None:
    """Return the rank correlation between cross-model and FQE, or None with too few policies."""
    columns = []
    for name in RANKING:
        columns.append([_score(candidate.find(name)) for candidate in candidates])
    both = np.array(columns)
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] < 3 or np.ptp(both, axis=1).min() == 0:
        return None
    return float(stats.spearmanr(*both).statistic)


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


def _score(estimate: Estimate | None) -> float:
    """Return what candidates are ranked by: a lower quantile where there is one."""
    if estimate is None or not estimate.usable:
        return -math.inf
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
