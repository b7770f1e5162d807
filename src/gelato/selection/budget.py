"""Spend some real episodes on the best candidates: a bandit with upper confidence bounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gelato.policy.evaluate import FIRST_SEED, run_episode
from gelato.progress import progress
from gelato.selection.estimate import Estimate, bound_mean
from gelato.selection.run import Candidate
from gelato.training.policies import environment_for, trained_policies

# Seeds that neither datasets nor evaluations use.
_FIRST_SEED = FIRST_SEED // 2
# On average every arm gets at least this many episodes.
_EPISODES_PER_ARM = 3


@dataclass
class Trial:
    """A candidate and the real returns that were spent on it."""

    candidate: Candidate
    returns: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """The mean return, or −∞ before the first episode."""
        return float(np.mean(self.returns)) if self.returns else -math.inf

    @property
    def estimate(self) -> Estimate:
        """The mean return with its 95% interval."""
        low, high = bound_mean(np.array(self.returns))
        details = {"episodes": float(len(self.returns))}
        return Estimate("real episodes", self.mean, low, high, details=details)

    def describe(self) -> dict[str, object]:
        """Return plain values for JSON."""
        candidate = self.candidate
        return {
            "run": str(candidate.run),
            "method": candidate.method,
            "seed": candidate.seed,
            **self.estimate.describe(),
        }


def try_policies(
    candidates: Sequence[Candidate], budget: int, environment: str | None = None
) -> list[Trial]:
    """Run `budget` real episodes with the best candidates; `candidates` come best first.

    `environment` replaces the one that recorded the data.
    """
    arms = [Trial(candidate) for candidate in candidates[: max(1, budget // _EPISODES_PER_ARM)]]
    policies = []
    for arm in arms:
        candidate = arm.candidate
        policies += trained_policies(
            candidate.run,
            method=candidate.method,
            seed=candidate.seed,
            environment=environment,
        )
    environment = environment_for(policies[0])
    with progress("real episodes", budget) as advance:
        for episode in range(budget):
            place = choose_arm(arms)
            outcome = run_episode(environment, policies[place].policy, _FIRST_SEED + episode)
            arms[place].returns.append(outcome[0])
            advance(1)
    return [arm for arm in arms if arm.returns]


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """Return the arm that got most episodes, of equal ones the one with the larger mean.

    The arm with the largest mean may owe it to one lucky episode; a bandit returns to good arms.
    """
    return max(trials, key=lambda trial: (len(trial.returns), trial.mean))


def choose_arm(arms: Sequence[Trial]) -> int:
    """Return the arm with the largest upper bound; an arm without episodes comes first."""
    for place, arm in enumerate(arms):
        if not arm.returns:
            return place
    total = sum(len(arm.returns) for arm in arms)
    residuals = [value - arm.mean for arm in arms for value in arm.returns]
    deviation = float(np.sqrt(np.sum(np.square(residuals)) / max(1, total - len(arms))))
    bounds = []
    for arm in arms:
        bounds.append(arm.mean + deviation * math.sqrt(2 * math.log(total) / len(arm.returns)))
    return int(np.argmax(bounds))
