import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from gelato.geometry import bound_projection_error, draw_projection
from gelato.geometry.projection import KEPT


def _measure_ratios(size: int, kept: int, draws: int) -> np.ndarray:
    v = jax.random.normal(jax.random.key(1), (size,))

    def one(key) -> jax.Array:
        return jnp.linalg.norm(draw_projection(size, kept, key=key) @ v) / jnp.linalg.norm(v)

    return np.asarray(jax.lax.map(one, jax.random.split(jax.random.key(0), draws)))


@pytest.mark.parametrize("probability", [0.5, 0.1, 0.01])
def test_projected_lengths_are_within_the_stated_error_with_the_stated_probability(
    probability: float,
) -> None:
    kept = 64
    wrong = np.abs(_measure_ratios(500, kept, 2_000) - 1)
    assert (wrong > bound_projection_error(kept, probability)).mean() <= probability


def test_the_bound_holds_exactly_and_at_small_probabilities_half_of_it_would_not() -> None:
    for kept in (8, 64, KEPT):
        for probability in (0.5, 0.1, 0.01, 1e-6):
            error = bound_projection_error(kept, probability)
            outside = chi2.sf(kept * (1 + error) ** 2, kept)
            outside += chi2.cdf(kept * max(0.0, 1 - error) ** 2, kept)
            assert outside <= probability
            if probability > 0.01:
                continue
            half = error / 2
            outside = chi2.sf(kept * (1 + half) ** 2, kept)
            outside += chi2.cdf(kept * max(0.0, 1 - half) ** 2, kept)
            assert outside > probability


def test_the_error_does_not_depend_on_the_size_of_the_vector_and_is_typically_three_percent() -> (
    None
):
    for size in (600, 6_000):
        v = np.random.default_rng(0).standard_normal((size, 200), np.float32)
        projected = np.asarray(draw_projection(size, key=jax.random.key(0))) @ v
        ratios = np.linalg.norm(projected, axis=0) / np.linalg.norm(v, axis=0)
        np.testing.assert_allclose(np.std(ratios), 1 / math.sqrt(2 * KEPT), rtol=0.2)
    assert 0.13 < bound_projection_error(KEPT, 0.01) < 0.15
