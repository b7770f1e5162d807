"""Scores of how well a penalty predicts the true error.

They are rank correlation, detection of large errors (AUROC), and risk–coverage.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

Values = Float[np.ndarray, " n"]
# Quantile of held-out data. A larger error counts as a large error; a larger penalty means "not
# trusted".
ORDINARY = 0.95
_RESAMPLES = 200


def score_penalty(penalties: Values, errors: Values, threshold: float) -> dict[str, float | None]:
    """Compute rank correlation, AUROC and risk–coverage, with 95% bootstrap intervals.

    A score that is not defined (one class only, a constant) is None.
    """
    alarm = errors > threshold
    rng = np.random.default_rng(0)
    samples = rng.integers(0, len(errors), (_RESAMPLES, len(errors)))
    rank = [spearman(penalties[rows], errors[rows]) for rows in samples]
    area = [auroc(penalties[rows], alarm[rows]) for rows in samples]
    return {
        "spearman": _round(spearman(penalties, errors)),
        **_interval("spearman", rank),
        "auroc": _round(auroc(penalties, alarm)),
        **_interval("auroc", area),
        "risk_coverage": _round(compute_excess_risk(penalties, errors)),
    }


def score_trust(
    penalties: Values, errors: Values, limit: float, threshold: float
) -> dict[str, float | None]:
    """Return the fraction of rows with a penalty up to `limit`, and of those with a large error."""
    trusted = penalties <= limit
    missed = float((errors[trusted] > threshold).mean()) if trusted.any() else float("nan")
    return {"trusted": round(float(trusted.mean()), 4), "missed": _round(missed)}


def spearman(a: Values, b: Values) -> float:
    """Return the rank correlation, with ties at their mean rank; NaN for a constant."""
    a, b = rankdata(a), rankdata(b)
    a, b = a - a.mean(), b - b.mean()
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0 else float("nan")


def auroc(values: Values, positive: Bool[np.ndarray, " n"]) -> float:
    """Return the AUROC: the probability that a positive has a larger value than a negative.

    NaN if there is only one class.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    larger = rankdata(values)[positive].sum() - positives * (positives + 1) / 2
    return float(larger / (positives * negatives))


def compute_risk_coverage(penalties: Values, errors: Values) -> Values:
    """Return the mean error of the `1, 2, …, n` least penalised rows (risk at each coverage)."""
    # Rows with equal penalties are not ordered, so each of them gets the mean error of all of them.
    _, group = np.unique(penalties, return_inverse=True)
    mean = np.bincount(group, errors) / np.bincount(group)
    return np.cumsum(mean[np.sort(group)]) / np.arange(1, len(errors) + 1)


def compute_excess_risk(penalties: Values, errors: Values) -> float:
    """Return the area under the risk–coverage curve, with 0 for the true order and 1 for random."""
    best, area = (
        compute_risk_coverage(errors, errors).mean(),
        compute_risk_coverage(penalties, errors).mean(),
    )
    return float((area - best) / (errors.mean() - best)) if errors.mean() > best else float("nan")


def _interval(name: str, samples: list[float]) -> dict[str, float | None]:
    found = np.array([sample for sample in samples if np.isfinite(sample)])
    low, high = np.quantile(found, (0.025, 0.975)) if len(found) else (np.nan, np.nan)
    return {f"{name}_low": _round(float(low)), f"{name}_high": _round(float(high))}


def _round(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None
