"""How well a penalty foretells the true error: ranks, alarms, and what is gained by refusing to answer."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

Values = Float[np.ndarray, " n"]
# The share of the data that counts as ordinary: above it an error is large and a penalty an alarm.
ORDINARY = 0.95
_RESAMPLES = 200


def scores(penalties: Values, errors: Values, threshold: float) -> dict[str, float | None]:
    """Ranks and alarms with 95% bootstrap intervals; None where a score is not defined (one kind only, a constant)."""
    alarm = errors > threshold
    rng = np.random.default_rng(0)
    samples = rng.integers(0, len(errors), (_RESAMPLES, len(errors)))
    rank = [spearman(penalties[rows], errors[rows]) for rows in samples]
    area = [auroc(penalties[rows], alarm[rows]) for rows in samples]
    return {
        "spearman": _rounded(spearman(penalties, errors)),
        **_interval("spearman", rank),
        "auroc": _rounded(auroc(penalties, alarm)),
        **_interval("auroc", area),
        "risk_coverage": _rounded(excess_risk(penalties, errors)),
    }


def misplaced_trust(penalties: Values, errors: Values, limit: float, threshold: float) -> dict[str, float | None]:
    """The share of rows a penalty trusts (no higher than `limit`), and how many of these err above the threshold."""
    trusted = penalties <= limit
    missed = float((errors[trusted] > threshold).mean()) if trusted.any() else float("nan")
    return {"trusted": round(float(trusted.mean()), 4), "missed": _rounded(missed)}


def spearman(a: Values, b: Values) -> float:
    """Rank correlation, ties at their mean rank; NaN for a constant."""
    a, b = rankdata(a), rankdata(b)
    a, b = a - a.mean(), b - b.mean()
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread > 0 else float("nan")


def auroc(values: Values, positive: Bool[np.ndarray, " n"]) -> float:
    """The chance that a positive has the larger value than a negative (Mann–Whitney); NaN if there is but one kind."""
    many = int(positive.sum())
    few = len(positive) - many
    if many == 0 or few == 0:
        return float("nan")
    return float((rankdata(values)[positive].sum() - many * (many + 1) / 2) / (many * few))


def risk_coverage(penalties: Values, errors: Values) -> Values:
    """Mean error of the least penalised `1, 2, …, n` rows: the risk at every coverage."""
    # Rows with equal penalties cannot be told apart: each counts with their mean error.
    _, group = np.unique(penalties, return_inverse=True)
    mean = np.bincount(group, errors) / np.bincount(group)
    return np.cumsum(mean[np.sort(group)]) / np.arange(1, len(errors) + 1)


def excess_risk(penalties: Values, errors: Values) -> float:
    """Area under the risk–coverage curve, 0 for the true error's own order and 1 for no order at all."""
    best, area = risk_coverage(errors, errors).mean(), risk_coverage(penalties, errors).mean()
    return float((area - best) / (errors.mean() - best)) if errors.mean() > best else float("nan")


def _interval(name: str, samples: list[float]) -> dict[str, float | None]:
    found = np.array([sample for sample in samples if np.isfinite(sample)])
    low, high = np.quantile(found, (0.025, 0.975)) if len(found) else (np.nan, np.nan)
    return {f"{name}_low": _rounded(float(low)), f"{name}_high": _rounded(float(high))}


def _rounded(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None
