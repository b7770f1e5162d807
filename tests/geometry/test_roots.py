"""The package factors matrices without LAPACK, whose batches can wait for each other forever."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gelato.geometry import Adaptive, Converged, GaussNewton, Near
from gelato.geometry.roots import invert_root


@pytest.mark.parametrize("dim", [1, 2, 35])
def test_the_root_of_the_inverse_is_triangular_and_exact(dim):
    factor = jr.normal(jr.key(dim), (dim, dim)) + dim * jnp.eye(dim)
    G = factor @ factor.T
    R = invert_root(G)
    np.testing.assert_allclose(R.T @ R @ G, np.eye(dim), atol=1e-9)
    np.testing.assert_array_equal(R, np.tril(R))


def test_a_matrix_that_is_not_positive_has_no_root():
    assert np.isnan(invert_root(jnp.diag(jnp.array([1.0, -1.0])))).any()


@pytest.mark.parametrize(
    "solver", [Adaptive(), Converged(), GaussNewton(), Near()], ids=lambda s: type(s).__name__
)
def test_no_solver_calls_lapack(torus, solver):
    points = jnp.zeros((4, 2)), jnp.ones((4, 2))
    program = jax.jit(jax.vmap(lambda a, b: solver(torus, a, b).length))
    text = program.lower(*points).as_text().lower()
    assert "lapack" not in text and "cholesky" not in text and "triangular" not in text
    # The check can fail: this program calls LAPACK.
    factor = jax.jit(lambda G: jnp.linalg.cholesky(G))
    assert "cholesky" in factor.lower(jnp.eye(2)).as_text().lower()
