"""The return of a policy in models that it was not trained in.

A policy that exploits the errors of one model fails in the others. The estimate is the median over
models, the interval that of one more model: the real environment counts as a further draw. Errors
that all models share widen it, as far as the log shows them (`replay.py`).
"""

import numpy as np

from gelato.selection.estimate import AbstractEstimator, Estimate, bound_next
from gelato.selection.evidence import Evidence

LOWER_QUANTILE = 0.1


class CrossModel(AbstractEstimator):
    """Median and lower quantile of undiscounted returns over models."""

    name = "cross-model"

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        rollouts = evidence.rollouts
        assert rollouts is not None
        shares, found = rollouts.outside_shares, []
        for policy in range(evidence.count):
            others = ~rollouts.own[:, policy]
            returns = rollouts.returns[others, policy]
            means = returns.mean(axis=-1)
            if len(means) < 2:
                found.append(Estimate(self.name, float("nan"), problem="needs two models, has one"))
                continue
            center = float(np.median(means))
            sampling = float(returns.var(axis=-1, ddof=1).mean()) / returns.size
            believed = rollouts.believed[others, policy].mean(axis=-1)
            penalties = rollouts.penalties[:, policy].mean(axis=-1)
            details = {
                "believed": float(np.median(believed)),
                "believed_low": float(believed.min()),
                "penalty_sum": float(penalties.mean()),
                "deviation": float(means.std(ddof=1)),
                "believed_deviation": float(believed.std(ddof=1)),
                "steps": float(rollouts.steps[others, policy].mean()),
                "lower_quantile": float(np.quantile(means, LOWER_QUANTILE)),
                "models": float(len(means)),
                "outside_share": float(shares[policy]),
            }
            low, high = bound_next(means, center, sampling)
            if evidence.bias is not None:
                bias = evidence.bias.find_unexplained(others)
                details |= {"reward_bias": bias, "widened": bias * details["steps"]}
                low, high = low - details["widened"], high + details["widened"]
            found.append(Estimate(self.name, center, low, high, details=details))
        return found
