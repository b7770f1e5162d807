"""Conformal thresholds keep their promise for new episodes, also if episodes differ a lot."""

import numpy as np
import pytest
from jaxtyping import Float, Int

from gelato.errors import InputError
from gelato.uncertainty.conformal import find_threshold, measure_coverage

Scores = tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]


def draw_episodes(count: int, rng: np.random.Generator) -> Scores:
    """Draw episodes of different lengths and levels; long ones have small scores."""
    scores, episodes = [], []
    for episode in range(count):
        length = int(rng.choice([1, 50]))
        level = rng.exponential() * (3 if length == 1 else 1)
        scores.append(level + 0.1 * rng.random(length))
        episodes.append(np.full(length, episode))
    return np.concatenate(scores), np.concatenate(episodes)


def test_the_threshold_is_the_smallest_score_at_which_the_mean_share_reaches_the_level() -> None:
    scores, episodes = draw_episodes(30, np.random.default_rng(0))
    found = find_threshold(scores, episodes, 0.8)
    shares = []
    for candidate in np.sort(scores):
        shares.append(measure_coverage(scores, episodes, candidate))
    first = np.flatnonzero(np.array(shares) >= 0.8 * 31 / 30 - 1e-9)[0]
    assert found.value == np.sort(scores)[first]
    assert found.coverage == pytest.approx(0.8)


def test_the_promise_is_kept_for_new_episodes_and_a_quantile_of_rows_breaks_it() -> None:
    rng, ours, of_rows = np.random.default_rng(1), [], []
    for _ in range(1_000):
        scores, episodes = draw_episodes(20, rng)
        limit = find_threshold(scores, episodes, 0.9).value
        new, numbers = draw_episodes(1, rng)
        ours.append(measure_coverage(new, numbers, limit))
        of_rows.append(measure_coverage(new, numbers, float(np.quantile(scores, 0.9))))
    error = np.std(ours) / np.sqrt(len(ours))
    assert np.mean(ours) > 0.9 - 2 * error
    assert np.mean(ours) < 0.98
    assert np.mean(of_rows) < 0.8


@pytest.mark.parametrize(("count", "promised"), [(4, 0.9 * 4 / 5), (8, 0.8), (9, 0.9), (50, 0.9)])
def test_few_episodes_promise_less(count: int, promised: float) -> None:
    rng = np.random.default_rng(2)
    found = find_threshold(rng.random(count), np.arange(count), 0.9)
    assert found.coverage == pytest.approx(promised)
    assert np.isfinite(found.value)


def test_the_order_of_rows_and_the_numbers_of_episodes_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    scores, episodes = draw_episodes(12, rng)
    mixed = rng.permutation(len(scores))
    again = find_threshold(scores[mixed], 7 * episodes[mixed] + 3, 0.9)
    assert again == find_threshold(scores, episodes, 0.9)


def test_what_is_no_rate_or_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="must lie strictly between"):
        find_threshold(np.ones(3), np.arange(3), 1.0)
    with pytest.raises(InputError, match="not finite"):
        find_threshold(np.array([1.0, np.nan]), np.arange(2), 0.9)
