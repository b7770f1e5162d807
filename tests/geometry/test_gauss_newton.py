"""Fixed work for far pairs, compared with closed forms and with a converged solver."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.geometry.manifolds import hyperbolic, sphere
from gelato.errors import InputError
from gelato.geometry import Converged, Euclidean, GaussNewton, Near, Pullback, distance

PAIRS = 16


@eqx.filter_jit
def solve_all(solver, metric, a, b):
    return jax.vmap(lambda a, b: solver(metric, a, b))(a, b)


@pytest.mark.parametrize("dim", [2, 10])
def test_far_distances_on_spheres_are_within_the_estimated_error(dim):
    manifold = sphere(dim)
    a, b = manifold.draw_pairs("far", PAIRS)
    found = solve_all(GaussNewton(8, 6, 12), manifold.metric, a, b)
    true = np.abs(np.asarray(found.length) / manifold.distance(a, b) - 1)
    assert np.median(true) < 2e-3
    assert np.mean(true <= found.error) >= 0.9


def test_far_distances_under_decoders_are_closer_than_those_of_near(decoder):
    metric = Pullback(lambda z: jnp.ravel(jnp.concatenate(decoder(z), axis=1)))
    a, b = jnp.array([-1.0, 0.5, 1.0]), jnp.array([1.0, -0.8, -0.6])
    exact, near, fixed = (
        float(eqx.filter_jit(distance)(metric, a, b, solver))
        for solver in (Converged(12, 32, precision=1e-12), Near(), GaussNewton())
    )
    assert abs(fixed / exact - 1) < 2e-3
    assert abs(fixed / exact - 1) <= abs(near / exact - 1)


def test_in_flat_space_the_line_stays_straight():
    a, b = jnp.array([0.0, 1.0]), jnp.array([3.0, -3.0])
    found = eqx.filter_jit(GaussNewton())(Euclidean(), a, b)
    np.testing.assert_allclose(found.length, 5.0, rtol=1e-12)
    np.testing.assert_allclose(found.curve(jnp.array(0.25)), a + 0.25 * (b - a), atol=1e-12)
    assert found.converged


def test_the_gradient_of_the_distance_agrees_with_finite_differences():
    manifold = sphere(3)
    a, b = jnp.array([0.3, -0.2, 0.5]), jnp.array([-0.7, 0.4, 0.1])
    measure = eqx.filter_jit(lambda a: distance(manifold.metric, a, b, GaussNewton(8, 10, 12)))
    gradient = eqx.filter_jit(jax.grad(measure))(a)
    step = 1e-5
    for i in range(3):
        e = jnp.zeros(3).at[i].set(step)
        difference = (measure(a + e) - measure(a - e)) / (2 * step)
        np.testing.assert_allclose(gradient[i], difference, rtol=2e-2, atol=1e-3)


def test_equal_ends_have_distance_zero_and_a_finite_gradient():
    manifold, a = sphere(3), jnp.array([0.3, -0.2, 0.5])
    measure = eqx.filter_jit(jax.value_and_grad(lambda b: distance(manifold.metric, a, b, GN)))
    length, gradient = measure(a)
    assert length == 0 and np.isfinite(gradient).all()


def test_a_metric_without_an_immersion_and_odd_segments_are_refused():
    with pytest.raises(InputError, match="immersion"):
        GaussNewton()(hyperbolic(2).metric, jnp.ones(2), 2 * jnp.ones(2))
    with pytest.raises(InputError, match="even number"):
        GaussNewton(segments=3)


GN = GaussNewton(rounds=2, iterations=4)
