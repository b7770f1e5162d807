"""Maps, curvature, means and diffusions have closed forms on spheres and hyperbolic planes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gelato.geometry import (
    Adaptive,
    BernoulliFisherRao,
    CategoricalFisherRao,
    Converged,
    Curve,
    EnsemblePullback,
    ExpectedLength,
    GaussianFisherRao,
    Tensor,
    brownian_motion,
    cluster,
    distance,
    exponential,
    frechet_mean,
    interpolate,
    logarithm,
    measure_pairs,
    parallel_transport,
    scalar_curvature,
    sectional_curvature,
)
from gelato.geometry.curve import Legendre, make_straight_curve
from gelato.geometry.transport import initial_velocity

EXACT = Converged(modes=14, nodes=40, precision=1e-14, tolerance=1e-8)


def half_plane():
    return Tensor(lambda z: jnp.eye(z.size) / z[-1] ** 2)


def embed(z):
    """Longitude and latitude as a point of the unit sphere."""
    flat = np.cos(z[..., 1])
    return np.stack([flat * np.cos(z[..., 0]), flat * np.sin(z[..., 0]), np.sin(z[..., 1])], -1)


def test_the_logarithm_on_the_sphere_is_the_tangent_of_the_great_circle(sphere):
    a, b = jnp.array([0.1, 0.3]), jnp.array([1.2, -0.4])
    v = eqx.filter_jit(logarithm)(sphere, a, b, EXACT)
    p, q = embed(np.asarray(a)), embed(np.asarray(b))
    angle = np.arccos(p @ q)
    tangent = angle * (q - np.cos(angle) * p) / np.sin(angle)
    np.testing.assert_allclose(jax.jvp(sphere.map, (a,), (v,))[1], tangent, atol=1e-8)


def test_the_exponential_of_the_logarithm_is_the_other_end(torus):
    a, b = jnp.array([0.0, 0.5]), jnp.array([1.2, 1.4])

    @jax.jit
    def there_and_back(a, b):
        v = logarithm(torus, a, b, EXACT)
        return exponential(torus, a, v, jnp.ones(1), 1e-10)[0][0]

    np.testing.assert_allclose(there_and_back(a, b), b, atol=1e-6)


def test_the_midpoint_of_a_vertical_hyperbolic_geodesic_is_the_geometric_mean():
    a, b = jnp.array([0.5, 0.5]), jnp.array([0.5, 3.0])
    middle = eqx.filter_jit(interpolate)(half_plane(), a, b, jnp.array([0.5]), EXACT)
    np.testing.assert_allclose(middle, [[0.5, np.sqrt(1.5)]], rtol=1e-6)


def test_transport_around_a_circle_of_latitude_turns_by_the_enclosed_area(sphere):
    # Holonomy: the angle is the integral of the curvature over the cap, 2π(1 − sin latitude).
    latitude = 0.7
    a, b = jnp.array([0.0, latitude]), jnp.array([2 * jnp.pi, latitude])
    loop = make_straight_curve(a, b, Legendre(1))
    moved = eqx.filter_jit(parallel_transport)(sphere, loop, jnp.array([0.0, 1.0]))
    turned = 2 * np.pi * np.sin(latitude)
    expected = [np.sin(turned) / np.cos(latitude), np.cos(turned)]
    np.testing.assert_allclose(moved, expected, atol=1e-5)


def test_transport_keeps_inner_products_and_the_velocity_of_a_geodesic(torus):
    a, b = jnp.array([0.0, 0.5]), jnp.array([1.2, 1.4])

    @jax.jit
    def move():
        curve = EXACT(torus, a, b).curve
        first, other = initial_velocity(torus, curve), jnp.array([0.3, -1.0])
        moved = [parallel_transport(torus, curve, v) for v in (first, other)]
        back = initial_velocity(torus, Curve(b, a, _reverse(curve.coefficients), curve.basis))
        return first @ torus(a) @ other, moved[0] @ torus(b) @ moved[1], moved[0], -back

    before, after, moved, velocity = move()
    np.testing.assert_allclose(after, before, rtol=1e-4)
    np.testing.assert_allclose(moved, velocity, atol=1e-4)


def _reverse(coefficients):
    # φⱼ(1 − t) = (−1)ʲ⁺¹ φⱼ(t)
    return coefficients * jnp.where(jnp.arange(len(coefficients)) % 2 == 0, 1, -1)[:, None]


def test_curvatures_are_those_of_the_closed_forms(sphere, torus):
    u, v = jnp.array([1.0, 0.2]), jnp.array([-0.3, 1.0])
    sectional = eqx.filter_jit(sectional_curvature)
    np.testing.assert_allclose(sectional(sphere, jnp.array([0.4, 0.5]), u, v), 1, rtol=1e-9)
    np.testing.assert_allclose(sectional(half_plane(), jnp.array([0.4, 0.5]), u, v), -1, rtol=1e-9)
    tube = 0.8
    gauss = np.cos(tube) / (2 + np.cos(tube))
    np.testing.assert_allclose(sectional(torus, jnp.array([0.4, tube]), u, v), gauss, rtol=1e-9)
    point = jnp.array([0.3, -0.2, 0.5, 0.7])
    scalar = eqx.filter_jit(scalar_curvature)(half_plane(), point)
    np.testing.assert_allclose(scalar, -4 * 3, rtol=1e-9)


def test_the_mean_of_a_symmetric_set_on_the_sphere_is_its_axis(sphere):
    latitudes = np.array([0.9, 0.9, -0.9, -0.9])
    points = jnp.stack([jnp.array([-0.5, 0.7, -0.5, 0.7]), latitudes], axis=1)
    mean = frechet_mean(sphere, points, Converged(10, 28, precision=1e-10), tolerance=1e-7)
    np.testing.assert_allclose(mean, [0.1, 0.0], atol=1e-5)


def test_the_mean_of_two_points_is_their_midpoint():
    a, b = jnp.array([0.0, 1.0]), jnp.array([1.0, 0.3])
    mean = frechet_mean(half_plane(), jnp.stack([a, b]), tolerance=1e-7)
    middle = eqx.filter_jit(interpolate)(half_plane(), a, b, jnp.array([0.5]), EXACT)[0]
    np.testing.assert_allclose(mean, middle, atol=1e-3)


def test_clusters_are_those_of_the_metric_and_not_of_the_coordinates():
    stretch = jnp.array([1.0, 30.0])
    metric = Tensor(lambda z: jnp.diag(stretch**2) + 0 * z[0])
    rng = np.random.default_rng(0)
    points = rng.normal(size=(24, 2)) * [3.0, 0.01] + np.repeat([[0, 0.0], [0, 1.0]], 12, axis=0)
    found = cluster(metric, points, 2, Converged(1, 3))
    assert len(set(found.labels[:12])) == len(set(found.labels[12:])) == 1
    assert found.labels[0] != found.labels[12]
    squares = np.sum(((points - found.centres[found.labels]) * stretch) ** 2)
    np.testing.assert_allclose(found.inertia, squares, rtol=1e-4)


@pytest.mark.parametrize("space", ["sphere", "hyperbolic"])
def test_brownian_motion_has_the_moments_of_half_the_laplacian(space, sphere):
    # On the unit sphere E cos d = e^(−t), in the hyperbolic plane E cosh d = e^t.
    time, count = 0.3, 4000
    if space == "sphere":
        metric, start = sphere, jnp.array([0.0, 0.0])
    else:
        metric, start = half_plane(), jnp.array([0.0, 1.0])

    @jax.jit
    def sample(keys):
        return jax.vmap(lambda key: brownian_motion(metric, start, time, 64, key=key)[-1])(keys)

    ends = np.asarray(sample(jr.split(jr.key(0), count)))
    if space == "sphere":
        values, expected = embed(ends) @ embed(np.zeros(2)), np.exp(-time)
    else:
        square = ends[:, 0] ** 2 + (ends[:, 1] - 1) ** 2
        values, expected = 1 + square / (2 * ends[:, 1]), np.exp(time)
    assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(count) + 0.005


def test_fisher_rao_distances_of_gaussians_are_hyperbolic():
    # (μ/√2, σ) lies in the hyperbolic half-plane, with lengths multiplied by √2.
    metric = GaussianFisherRao(lambda z: (z[:1], z[1:]))
    a, b = jnp.array([0.0, 1.0]), jnp.array([1.5, 0.6])
    x, y = np.array([0.0, 1.0]), np.array([1.5 / np.sqrt(2), 0.6])
    exact = np.sqrt(2) * np.arccosh(1 + np.sum((x - y) ** 2) / (2 * x[1] * y[1]))
    np.testing.assert_allclose(eqx.filter_jit(distance)(metric, a, b, EXACT), exact, rtol=1e-6)
    v = jnp.array([0.3, -0.4])
    np.testing.assert_allclose(metric.quadratic(b, v), v @ metric(b) @ v, rtol=1e-12)


def test_fisher_rao_distances_of_probabilities_are_angles_between_their_roots():
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.1, 0.3])
    logits = [jnp.log(x[:2] / x[2]) for x in (p, q)]
    categorical = CategoricalFisherRao(lambda z: jnp.append(z, 0.0))
    found = eqx.filter_jit(distance)(categorical, *logits, EXACT)
    np.testing.assert_allclose(found, 2 * np.arccos(np.sqrt(p) @ np.sqrt(q)), rtol=1e-6)
    bernoulli = BernoulliFisherRao(lambda z: z)
    found = eqx.filter_jit(distance)(bernoulli, jnp.array([-1.0]), jnp.array([2.0]), EXACT)
    root = 2 * np.arcsin(np.sqrt(1 / (1 + np.exp([1.0, -2.0]))))
    np.testing.assert_allclose(found, root[1] - root[0], rtol=1e-6)


def test_squared_fisher_rao_lengths_are_twice_the_divergence():
    def divergence(a, b):
        log_p, log_q = jax.nn.log_softmax(a), jax.nn.log_softmax(b)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q))

    z, v = jnp.array([0.4, -0.3, 0.2]), jnp.array([1.0, 0.5, -0.7])
    metric = CategoricalFisherRao(lambda z: z)
    np.testing.assert_allclose(metric.quadratic(z, v), 2e8 * divergence(z, z + 1e-4 * v), rtol=1e-3)


def test_the_expected_length_is_at_most_the_length_of_the_expected_metric(decoder):
    z, v = jnp.array([0.3, -0.2, 0.1]), jnp.array([1.0, 0.5, -0.7])
    finsler, riemann = ExpectedLength(decoder), EnsemblePullback(decoder)
    assert 0 < finsler.quadratic(z, v) < riemann.quadratic(z, v)
    np.testing.assert_allclose(finsler.quadratic(z, 3 * v), 9 * finsler.quadratic(z, v), rtol=1e-9)

    class Same(eqx.Module):
        def __call__(self, x):
            mean, scale = decoder(x)
            return mean[:1].repeat(4, 0), scale[:1].repeat(4, 0)

    same = ExpectedLength(Same()).quadratic(z, v), EnsemblePullback(Same()).quadratic(z, v)
    np.testing.assert_allclose(*same, rtol=1e-9)
    found = eqx.filter_jit(Converged(6, 16))(finsler, z, z + v)
    assert found.converged
    assert found.length <= measure_pairs(riemann, z[None], (z + v)[None], Converged(6, 16))[0]


def test_the_gradient_of_a_distance_agrees_with_finite_differences(torus):
    a, b, solver = jnp.array([0.0, 0.5]), jnp.array([1.2, 1.4]), Adaptive(1e-6)

    @jax.jit
    def value_and_gradient(a, b):
        return jax.value_and_grad(lambda b: distance(torus, a, b, solver))(b)

    gradient = value_and_gradient(a, b)[1]
    step = 1e-4
    for i, direction in enumerate(step * jnp.eye(2)):
        change = value_and_gradient(a, b + direction)[0] - value_and_gradient(a, b - direction)[0]
        np.testing.assert_allclose(gradient[i], change / (2 * step), rtol=1e-4)
