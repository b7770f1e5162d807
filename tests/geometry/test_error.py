"""Estimated errors are compared with closed forms and with converged references."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.geometry.manifolds import (
    ellipsoid,
    hyperbolic,
    paraboloid,
    polar_sphere,
    spd,
    sphere,
    torus,
)
from gelato.errors import InputError
from gelato.geometry import (
    Adaptive,
    Converged,
    Euclidean,
    Near,
    Pullback,
    Straight,
    Tensor,
    connecting_geodesic,
    distance,
    geodesics,
)
from gelato.geometry.curve import Curve, Legendre, compute_gauss_nodes
from gelato.geometry.variation import (
    CUBIC,
    SAFETY,
    _tabulate_integrals,
    compute_momentum,
    measure_curve,
)

PAIRS = 12


@eqx.filter_jit
def solve_all(solver, metric, a, b):
    return jax.vmap(lambda a, b: solver(metric, a, b))(a, b)


@pytest.mark.parametrize(
    "manifold",
    [sphere(3), polar_sphere(), ellipsoid(3), paraboloid(2), torus(), hyperbolic(2), spd(2)],
    ids=lambda manifold: manifold.name,
)
def test_the_estimate_of_few_modes_is_close_to_the_true_error(manifold):
    a, b = manifold.draw_pairs("far", PAIRS)
    found = solve_all(Converged(3, 10, precision=1e-10), manifold.metric, a, b)
    if manifold.distance is None:
        best = solve_all(Converged(14, 40, precision=1e-12), manifold.metric, a, b)
        exact = best.length
        # Pairs that the reference does not resolve cannot be judged.
        usable = np.asarray(best.error < 1e-7)
    else:
        exact, usable = manifold.distance(a, b), np.full(PAIRS, True)
    true = np.abs(np.asarray(found.length / exact) - 1)[usable]
    estimate = np.asarray(found.error)[usable]
    assert len(true) >= PAIRS // 2
    assert np.mean(true <= estimate) >= 0.9
    assert 1 <= np.median(estimate / true) <= 5


def test_the_momentum_is_constant_along_a_geodesic(sphere):
    a, b = jnp.array([0.0, 0.3]), jnp.array([1.2, 0.8])
    curve = eqx.filter_jit(Converged(14, 40, precision=1e-14))(sphere, a, b).curve
    momentum = compute_momentum(sphere, curve, 20)[0]
    np.testing.assert_allclose(momentum, momentum[:1] + 0 * momentum, atol=1e-6)
    bent = Curve(a, b, curve.coefficients.at[1].add(0.1), curve.basis)
    assert np.ptp(compute_momentum(sphere, bent, 20)[0], axis=0).max() > 0.1


def test_in_flat_space_the_estimate_is_the_excess_of_length_times_its_safety():
    a, b = jnp.zeros(2), jnp.array([1.0, 0.0])
    curve = Curve(a, b, jnp.zeros((2, 2)).at[0, 1].set(0.01), Legendre(2))
    L, E, error = measure_curve(Euclidean(), curve, 12)
    np.testing.assert_allclose(E, 1 + 0.01**2, rtol=1e-12)
    gain = 0.01**2 / 2
    np.testing.assert_allclose(error, SAFETY * (1 + CUBIC * gain**0.5) * gain, rtol=2e-2)
    np.testing.assert_allclose(L - 1, 0.01**2 / 2, rtol=1e-3)


def test_integrals_from_gauss_nodes_are_exact_for_polynomials():
    t = compute_gauss_nodes(6)[0]
    np.testing.assert_allclose(_tabulate_integrals(6) @ t**5, t**6 / 6, atol=1e-14)


@pytest.mark.parametrize("solver", [Straight(8), Near()], ids=lambda s: type(s).__name__)
def test_solvers_without_refinement_know_that_far_pairs_are_wrong(solver):
    manifold = sphere(5)
    a, b = manifold.draw_pairs("far", PAIRS)
    found = solve_all(solver, manifold.metric, a, b)
    true = np.abs(np.asarray(found.length) / manifold.distance(a, b) - 1)
    assert np.mean(true <= found.error) >= 0.9
    assert np.max(true) > 0.01 and not np.any(found.converged & (true > solver.tolerance))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
def test_the_default_solver_reaches_the_tolerance(tolerance):
    manifold = sphere(2)
    a, b = manifold.draw_pairs("far", PAIRS)
    found = geodesics(manifold.metric, a, b, Adaptive(tolerance))
    true = np.abs(np.asarray(found.length) / manifold.distance(a, b) - 1)
    assert np.mean(found.converged) >= 0.9
    assert np.all(true[found.converged] <= tolerance)
    np.testing.assert_array_equal(found.converged, found.error <= tolerance)


def test_one_pair_in_a_program_and_a_batch_on_the_host_agree():
    manifold = sphere(3)
    a, b = manifold.draw_pairs("far", 3)
    alone = eqx.filter_jit(jax.vmap(lambda a, b: distance(manifold.metric, a, b)))(a, b)
    np.testing.assert_allclose(alone, geodesics(manifold.metric, a, b).length, rtol=2e-3)


def test_opposite_points_of_a_hill_have_several_shortest_curves():
    hill = Pullback(lambda z: jnp.append(z, 4 * jnp.exp(-4 * z @ z)))
    a, b = jnp.array([-1.5, 0.0]), jnp.array([1.5, 0.0])
    around = connecting_geodesic(hill, a, b)
    assert around.several and around.converged
    assert abs(around.curve(jnp.array(0.5))[1]) > 0.3
    assert not connecting_geodesic(hill, a, jnp.array([1.5, 1.0])).several


def test_a_metric_that_is_not_finite_along_the_way_is_flagged():
    broken = Pullback(lambda z: jnp.where(jnp.abs(z[0]) < 0.3, jnp.nan, 1.0) * z)
    found = eqx.filter_jit(Adaptive(levels=((2, 6),)))(broken, -jnp.ones(3), jnp.ones(3))
    assert not found.converged and np.isinf(found.error)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda z: z[0] * 0 + jnp.array([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (lambda z: z[0] * 0 + jnp.diag(jnp.array([1.0, -1.0])), "not positive"),
        (lambda z: jnp.eye(2) / (0 * z[0]), "not finite"),
    ],
)
def test_a_tensor_that_is_no_metric_is_refused(tensor, message):
    with pytest.raises(InputError, match=message):
        geodesics(Tensor(tensor), jnp.zeros((1, 2)), jnp.ones((1, 2)))


def test_a_tolerance_below_the_precision_and_too_many_dimensions_are_refused():
    a, b = jnp.zeros(3, jnp.float32), jnp.ones(3, jnp.float32)
    with pytest.raises(InputError, match="precision of float32"):
        distance(Euclidean(), a, b, Adaptive(1e-7))
    with pytest.raises(InputError, match="at most 500 dimensions"):
        distance(Euclidean(), jnp.zeros(501), jnp.ones(501))
