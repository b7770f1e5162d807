"""The value of a policy under one λ that is common to all policies.

The value that a training reports is that of its own pessimistic MDP. A small λ inflates it, so it
ranks policies with different λ backwards. Two heads of one critic learn the discounted sums of the
reward and of the penalty U in the model the policy was trained in. The value under any λ is then

    V_λ = V_r − λ V_U

The common λ is what one unit of U costs in return: how much independent models disagree about the
return of a policy, divided by the U along its path.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gelato.selection.estimate import AbstractEstimator, Estimate, bound_draw, bound_next
from gelato.selection.evidence import Evidence
from gelato.selection.rollouts import Rollouts
from gelato.selection.temporal import find_problem, make_problem, train_critics


@dataclass(frozen=True)
class HeadValues:
    """Values of both heads for every policy and member, and what went wrong."""

    rewards: Float[np.ndarray, "policies members"]
    penalties: Float[np.ndarray, "policies members"]
    problems: list[str | None]


def measure_common_weight(rollouts: Rollouts) -> float:
    """Return the common λ: the median over policies of disagreement per unit of U.

    Disagreement is the mean absolute difference between the returns that two models give the same
    policy. U is summed along the path and averaged over the models.
    """
    costs = []
    means, sums = rollouts.returns.mean(axis=-1), rollouts.penalties.mean(axis=-1)
    for policy in range(means.shape[1]):
        others = means[:, policy]
        pairs = np.abs(others[:, None] - others[None])[np.triu_indices(len(others), 1)]
        penalty = float(sums[:, policy].mean())
        if len(pairs) and penalty > 0:
            costs.append(float(pairs.mean()) / penalty)
    return float(np.median(costs)) if costs else 0.0


def learn_values(evidence: Evidence) -> HeadValues:
    """Learn both heads for every policy from steps in the model it was trained in."""
    imagined, settings = evidence.imagined, evidence.settings
    assert imagined is not None
    problem = make_problem(
        imagined.rows,
        jnp.asarray(imagined.rows.rewards.shape[1], jnp.int32),
        imagined.initial.shape[1],
        settings.critics.members,
        settings.discount,
        evidence.log.space,
        key=evidence.key,
    )
    initial = imagined.initial, imagined.initial_choices, problem.weights
    critics = train_critics(problem, settings.critics, "values of rewards and penalties", initial)
    low, high = evidence.bound_values(np.asarray(imagined.rows.rewards).reshape(-1, 2))
    last = critics.history[-1]
    return HeadValues(last[..., 0], last[..., 1], find_problem(critics.history, low, high))


def value_under(
    values: HeadValues, weights: Float[np.ndarray, " policies"], name: str
) -> list[Estimate]:
    """Return `V_r − λ V_U` of every policy, with one λ per policy."""
    found = []
    for row, weight in enumerate(weights):
        rewards, penalties = values.rewards[row], values.penalties[row]
        covariance = np.cov(rewards, penalties) if len(rewards) > 1 else np.zeros((2, 2))
        details = {
            "reward_value": float(rewards.mean()),
            "penalty_value": float(penalties.mean()),
            "reward_variance": float(covariance[0, 0]),
            "penalty_variance": float(covariance[1, 1]),
            "covariance": float(covariance[0, 1]),
            "members": float(len(rewards)),
        }
        unweighted = Estimate(name, 0.0, problem=values.problems[row], details=details)
        found.append(change_weight(unweighted, float(weight)))
    return found


def change_weight(estimate: Estimate, weight: float) -> Estimate:
    """Return a value under another λ, from the moments of both heads in its details.

    Policies of several runs are compared under one λ, and each run measured its own.
    """
    known = estimate.details
    mean = known["reward_value"] - weight * known["penalty_value"]
    variance = known["reward_variance"] + weight**2 * known["penalty_variance"]
    # Rounding must not make the variance of a difference negative.
    variance = max(variance - 2 * weight * known["covariance"], 0.0)
    low, high = bound_draw(mean, variance, int(known["members"]))
    details = {**known, "penalty_weight": weight}
    return replace(estimate, estimate=mean, low=low, high=high, details=details)


@dataclass(frozen=True)
class CommonValue(AbstractEstimator):
    """The value under one λ for all policies; the default λ is measured."""

    penalty_weight: float | None = None
    values: HeadValues | None = None
    name = "value, common λ"

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        values = self.values or learn_values(evidence)
        weight = self.penalty_weight
        if weight is None:
            assert evidence.rollouts is not None
            weight = measure_common_weight(evidence.rollouts)
        return value_under(values, np.full(evidence.count, weight), self.name)


@dataclass(frozen=True)
class OwnValue(AbstractEstimator):
    """A baseline: the value in the policy's own pessimistic MDP, under its own λ."""

    values: HeadValues | None = None
    name = "value, own λ"

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        values = self.values or learn_values(evidence)
        assert evidence.own_weights is not None
        return value_under(values, evidence.own_weights, self.name)


class PathPenalty(AbstractEstimator):
    """A baseline: minus the mean U along the policy's path in the models."""

    name = "U along the path"

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        rollouts = evidence.rollouts
        assert rollouts is not None
        found = []
        for policy in range(evidence.count):
            steps = np.maximum(rollouts.steps[:, policy].sum(axis=-1), 1)
            means = -rollouts.penalties[:, policy].sum(axis=-1) / steps
            mean = float(means.mean())
            found.append(Estimate(self.name, mean, *bound_next(means, mean)))
        return found
