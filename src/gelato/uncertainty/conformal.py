"""Split-conformal thresholds that hold for new episodes.

**What is promised.** Let `n + 1` episodes be exchangeable: the `n` calibration episodes and a new
one. They are, if the same process recorded them independently. Rows of one episode are not
exchangeable, so an episode counts once, however long it is. A score `s ≥ 0` belongs to each row,
and `Fᵢ(q)` is the share of rows of episode `i` with `s ≤ q`. For a row drawn uniformly from the new
episode,

    P(s ≤ q) = E[F_{n+1}(q)] ≥ level · n/(n + 1),    q = inf {q : (1/n) Σᵢ₌₁ⁿ Fᵢ(q) ≥ level}.

**Why.** Let `Q = inf {q : (1/(n+1)) Σᵢ₌₁ⁿ⁺¹ Fᵢ(q) ≥ c}` with `c = level · n/(n + 1)`. `Q` does not
depend on the order of the episodes, so `E[Fᵢ(Q)]` is the same for all of them, and equals the
expectation of their mean, which is at least `c`. And `q ≥ Q`, because at `q` the `n` calibration
episodes alone bring the sum to `n · level`. So `E[F_{n+1}(q)] ≥ E[F_{n+1}(Q)] ≥ c`. (This is
hierarchical conformal prediction: Lee, Barber and Willett, 2023.) No assumption is made about the
model, the scores or the rows inside an episode.

To promise `coverage`, take `level = coverage · (n + 1)/n`. With `n < coverage/(1 − coverage)`
episodes (9 for 90%, 19 for 95%) this is above 1 and nothing finite keeps the promise. Then
`level = coverage`, and the promise is the weaker `coverage · n/(n + 1)`.

**What is not promised.** Nothing about data of another process (other behaviour, other dynamics),
about every single row, or about every single episode. The calibration episodes must not have been
used for the model. The default ones, the held-out episodes of the fit, chose its best checkpoint
and a few numbers of the penalty. `Trust(..., calibration=...)` takes others.

MAPIE is not used: its split-conformal regressors take the quantile over exchangeable rows, with no
weights or groups, and here episodes are exchangeable and rows are not.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from gelato.errors import InputError

# Rounding must not push a level that is reached exactly to the next score.
_ROUNDING = 1e-9


class Threshold(NamedTuple):
    """Scores of a new episode's rows are at most `value`, for at least a share `coverage`."""

    value: float
    coverage: float


def find_threshold(
    scores: Float[np.ndarray, " rows"], episodes: Int[np.ndarray, " rows"], coverage: float
) -> Threshold:
    """Find the smallest threshold with this coverage; `episodes` numbers the episode of each row.

    With too few episodes the promised coverage is smaller, as the result says.
    """
    check_rate("coverage", coverage)
    if not np.isfinite(scores).all():
        raise InputError("a score on the calibration data is not finite")
    _, numbers, rows = np.unique(episodes, return_inverse=True, return_counts=True)
    n = len(rows)
    corrected = coverage * (n + 1) / n
    level = corrected if corrected <= 1 else coverage
    order = np.argsort(scores)
    reached = np.cumsum(1 / (n * rows[numbers[order]]))
    first = min(int(np.searchsorted(reached, level - _ROUNDING)), len(scores) - 1)
    return Threshold(float(scores[order[first]]), level * n / (n + 1))


def measure_coverage(
    scores: Float[np.ndarray, " rows"], episodes: Int[np.ndarray, " rows"], threshold: float
) -> float:
    """Measure the mean over episodes of the share of rows with a score up to the threshold."""
    _, numbers, rows = np.unique(episodes, return_inverse=True, return_counts=True)
    covered = np.bincount(numbers, scores <= threshold) / rows
    return float(covered.mean())


def check_rate(name: str, rate: float) -> None:
    """Refuse what is not a share strictly between 0 and 1."""
    if not 0 < rate < 1:
        raise InputError(f"{name} is {rate}; it must lie strictly between 0 and 1")
