from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gelato.errors import InputError
from gelato.geometry import (
    Converged,
    Euclidean,
    Near,
    PaperSGD,
    Pullback,
    Shooting,
    Straight,
    Tensor,
    bracket,
    energy,
    exponential,
    length,
)
from gelato.geometry.curve import Curve, Legendre, Spline, compute_gauss_nodes, make_straight_curve
from gelato.geometry.graph import build, place_nodes

EXACT = Converged(modes=14, nodes=40, precision=1e-14)
SOLVERS = [Straight(), Near(), Converged(4, 8), PaperSGD()]
PAIRS = 6


@eqx.filter_jit
def solve_all(solver, metric, a, b):
    return jax.vmap(lambda a, b: solver(metric, a, b))(a, b)


def solve(solver, metric, a, b):
    """Solve one pair, repeated to the shape that the programs are compiled for."""
    found = solve_all(solver, metric, *(jnp.tile(jnp.asarray(x), (PAIRS, 1)) for x in (a, b)))
    return jax.tree.map(lambda leaf: leaf[0], found)


def great_circle(a, b):
    def on_sphere(z):
        return np.array([np.cos(z[1]) * np.cos(z[0]), np.cos(z[1]) * np.sin(z[0]), np.sin(z[1])])

    return np.arccos(on_sphere(a) @ on_sphere(b))


def test_a_spheres_geodesics_are_great_circles(sphere):
    starts = jnp.array([[0.0, 0.6], [-0.5, -0.8], [0.2, 0.1]]).repeat(2, axis=0)
    ends = jnp.array([[1.5, 0.6], [0.9, 0.9], [0.25, 0.15]]).repeat(2, axis=0)
    found = solve_all(EXACT, sphere, starts, ends)
    assert np.all(found.converged)
    np.testing.assert_allclose(
        found.length, [great_circle(a, b) for a, b in zip(starts, ends)], rtol=1e-9
    )
    middle = jax.vmap(lambda curve: sphere.map(curve(jnp.array(0.3))))(found.curve)
    normals = np.cross(jax.vmap(sphere.map)(starts), jax.vmap(sphere.map)(ends))
    np.testing.assert_allclose(np.sum(middle * normals, axis=1), 0, atol=1e-5)


def test_near_geodesics_on_the_sphere_are_great_circles_to_third_order(sphere):
    errors = []
    for size in (0.4, 0.2, 0.1):
        a, b = np.array([0.0, 0.9]), np.array([size, 0.9])
        errors.append(float(solve(Near(), sphere, a, b).length) / great_circle(a, b) - 1)
    straight_error = float(solve(Straight(), sphere, a, b).length) / great_circle(a, b) - 1
    assert abs(errors[2]) < 0.01 * straight_error
    assert abs(errors[0]) > 8 * abs(errors[1]) > 64 * abs(errors[2])


def test_the_hyperbolic_half_planes_distances_are_the_closed_form():
    half_plane = Tensor(lambda z: jnp.eye(2) / z[1] ** 2)
    a, b = jnp.array([0.0, 1.0]), jnp.array([1.5, 0.6])
    exact = np.arccosh(1 + np.sum((a - b) ** 2) / (2 * a[1] * b[1]))
    np.testing.assert_allclose(solve(EXACT, half_plane, a, b).length, exact, rtol=1e-7)


def test_on_a_torus_the_variational_and_the_differential_equation_agree(torus):
    a, b = jnp.array([0.0, 0.5]), jnp.array([1.2, 1.4])
    found, shot = (
        solve(EXACT, torus, a, b),
        eqx.filter_jit(Shooting(steps=6, tolerance=1e-9))(torus, a, b),
    )
    assert shot.converged
    np.testing.assert_allclose(found.length, shot.length, rtol=1e-8)
    t = jnp.linspace(0, 1, 7)
    np.testing.assert_allclose(jax.vmap(found.curve)(t), jax.vmap(shot.curve)(t), atol=1e-4)


def test_the_exponential_map_keeps_the_speed(torus):
    @jax.jit
    def speeds_along(start, velocity):
        return jax.vmap(torus.quadratic)(
            *exponential(torus, start, velocity, jnp.linspace(0, 1, 5), 1e-10)
        )

    speeds = speeds_along(jnp.array([0.0, 0.5]), jnp.array([1.0, 0.7]))
    np.testing.assert_allclose(speeds, speeds[0], rtol=1e-7)


def random_pairs(count=PAIRS, dim=3, spread=0.3):
    a = jr.normal(jr.key(20), (count, dim))
    return a, a + spread * jr.normal(jr.key(21), (count, dim))


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_curve_and_its_reverse_have_one_length(in_units, solver):
    a, b = random_pairs()
    there, back = (
        solve_all(solver, in_units(), a, b).length,
        solve_all(solver, in_units(), b, a).length,
    )
    # The paper samples the speed at the right end of each segment, which tells directions apart.
    np.testing.assert_allclose(there, back, rtol=0.1 if isinstance(solver, PaperSGD) else 1e-5)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_the_root_of_the_energy_is_no_less_than_the_length(in_units, solver):
    found = solve_all(solver, in_units(), *random_pairs())
    assert np.all(np.sqrt(found.energy) >= found.length * (1 - 1e-12))


@eqx.filter_jit
def brackets(metric, a, b):
    return jax.vmap(lambda a, b: bracket(metric, a, b, 24))(a, b)


@pytest.mark.parametrize("solver", [Near(), Converged(4, 8)], ids=str)
@pytest.mark.parametrize("spread", [0.1, 1.5])
def test_distances_lie_in_the_bracket_and_no_solver_exceeds_the_straight_line(
    in_units, solver, spread
):
    ensemble = in_units()
    a, b = random_pairs(spread=spread)
    low, high = brackets(ensemble, a, b).T
    # Near's own rule measures the straight line where no correction is made to it.
    straight_line = Near(iterations=0) if isinstance(solver, Near) else Straight(solver.nodes)
    line = solve_all(straight_line, ensemble, a, b).length
    lengths = solve_all(solver, ensemble, a, b).length
    assert np.all(low <= high)
    assert np.all(lengths >= low * (1 - 1e-9))
    assert np.all(lengths <= np.maximum(line, low) * (1 + 1e-9))


def test_converged_distances_satisfy_the_triangle_inequality(in_units):
    a, b = random_pairs(spread=1.0)
    c = (a + b) / 2 + 0.4
    ab, bc, ac = (
        solve_all(Converged(), in_units(), *ends).length for ends in ((a, b), (b, c), (a, c))
    )
    assert np.all(ac <= (ab + bc) * (1 + 1e-6))
    assert np.all(ab <= (ac + bc) * (1 + 1e-6))


def test_quadrature_has_the_order_of_gauss(sphere):
    a, b = jnp.array([0.0, -0.7]), jnp.array([0.8, 0.9])
    lengths = jax.jit(
        lambda a, b: [
            length(sphere, make_straight_curve(a, b, Legendre(1)), n) for n in (1, 2, 3, 4, 48)
        ]
    )(a, b)
    errors = [abs(float(found / lengths[-1] - 1)) for found in lengths[:-1]]
    # Halving the interval would divide the error of n nodes by 4ⁿ; each further node must gain at
    # least that of one.
    assert all(later < earlier / 4 for earlier, later in pairwise(errors))


def test_a_polygons_chords_approach_the_length_at_second_order(sphere):
    a, b = jnp.array([0.0, 0.3]), jnp.array([1.2, 0.8])
    curve = solve(EXACT, sphere, a, b).curve

    def chords(outputs):
        return float(np.sum(np.linalg.norm(np.diff(outputs, axis=0), axis=1)))

    outputs = np.asarray(jax.jit(jax.vmap(lambda t: sphere.map(curve(t))))(jnp.linspace(0, 1, 17)))
    exact = float(eqx.filter_jit(length)(sphere, curve, 40))
    ratio = (exact - chords(outputs[::2])) / (exact - chords(outputs))
    np.testing.assert_allclose(ratio, 4, rtol=0.02)


def test_more_modes_bring_the_length_down_exponentially(sphere):
    a, b = jnp.array([0.0, 0.6]), jnp.array([1.5, 0.6])
    errors = [
        float(solve(Converged(modes, 40, precision=1e-14), sphere, a, b).length)
        / great_circle(a, b)
        - 1
        for modes in (1, 4)
    ]
    assert errors[0] > 50 * errors[1] > 0


@pytest.mark.parametrize(
    "solver", [Near(), Converged(4, 8, precision=1e-12)], ids=lambda s: type(s).__name__
)
def test_units_of_observations_and_latents_change_nothing_but_the_unit(in_units, solver):
    a, b = random_pairs()
    plain = solve_all(solver, in_units(), a, b).length
    observed = solve_all(solver, in_units(observed=1000.0), a, b).length
    latent = solve_all(solver, in_units(latent=50.0), 50 * a, 50 * b).length
    np.testing.assert_allclose(observed, 1000 * plain, rtol=1e-6)
    np.testing.assert_allclose(latent, plain, rtol=1e-6)


def test_pairs_too_close_for_differences_are_measured_by_the_speed(in_units):
    metric, (a, b) = in_units(), random_pairs(spread=1e-5)
    single = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_array(leaf) else leaf, (metric, a, b)
    )
    found = solve_all(Near(), *single).length
    a, b = (jnp.asarray(x, float) for x in single[1:])
    # A difference of decoded points would miss by a hundredth.
    np.testing.assert_allclose(found, solve_all(Straight(1), metric, a, b).length, rtol=1e-4)


def test_a_number_of_segments_that_lengths_cannot_be_extrapolated_from_is_refused():
    with pytest.raises(InputError, match="even"):
        Near(segments=3)


class Curl(eqx.Module):
    """A map that sees the first coordinate only, or nothing at all."""

    weight: jax.Array

    def __call__(self, z):
        return self.weight * jnp.stack([jnp.sin(z[0]), z[0] ** 2])


@pytest.mark.parametrize("solver", [Near(), Converged(4, 8)], ids=lambda s: type(s).__name__)
def test_solvers_survive_a_singular_metric(solver):
    a, b = jnp.array([0.1, 0.0, 0.3]), jnp.array([0.5, 2.0, -1.0])
    flat, nowhere = Pullback(Curl(jnp.array(1.0))), Pullback(Curl(jnp.array(0.0)))
    exact = solve(Straight(24), flat, a, b).length
    np.testing.assert_allclose(solve(solver, flat, a, b).length, exact, rtol=1e-3)
    assert solve(solver, nowhere, a, b).length == 0


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_coincident_endpoints_have_distance_zero_and_a_finite_gradient(in_units, solver):
    z, metric = jnp.array([0.3, -0.2, 0.1]), in_units()
    value, gradient = jax.jit(jax.value_and_grad(lambda b: solver(metric, z, b).length))(z)
    assert value == 0
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
    "solver", [Near(rounds=3), Converged(6, 16)], ids=lambda s: type(s).__name__
)
def test_the_gradient_of_a_distance_is_the_unit_tangent_under_the_metric(sphere, solver):
    a, b = jnp.array([0.0, 0.6]), jnp.array([0.5, 0.8])
    gradient = jax.jit(jax.grad(lambda b: solver(sphere, a, b).length))(b)
    step = 1e-5
    for direction in jnp.eye(2):
        difference = great_circle(a, b + step * direction) - great_circle(a, b - step * direction)
        np.testing.assert_allclose(gradient @ direction, difference / (2 * step), rtol=2e-2)


def test_without_curvature_every_solver_finds_the_straight_line():
    a, b = jnp.zeros(3), jnp.array([1.0, 2.0, 2.0])
    for solver in SOLVERS:
        np.testing.assert_allclose(solve(solver, Euclidean(), a, b).length, 3, rtol=1e-9)


def test_the_papers_solver_has_eight_coefficients_twenty_steps_and_depends_on_units(in_units):
    assert Spline(8)(jnp.array(0.4)).shape == (8,)
    np.testing.assert_allclose(Spline(8)(jnp.array(0.0)), 0, atol=1e-12)
    np.testing.assert_allclose(Spline(8)(jnp.array(1.0)), 0, atol=1e-12)
    a, b = random_pairs(spread=1.0)
    scaled = in_units(observed=1000.0)
    found, line = solve_all(PaperSGD(), scaled, a, b), solve_all(Straight(), scaled, a, b)
    assert not np.all(found.length <= line.length)
    assert not np.all(found.converged)


def test_a_spline_is_twice_differentiable_at_its_knots():
    spline, knot = Spline(8), jnp.array(3 / 9)
    second = jax.jacfwd(jax.jacfwd(spline))
    np.testing.assert_allclose(second(knot - 1e-9), second(knot + 1e-9), atol=1e-5)


def test_graph_distances_bound_the_geodesic_from_above_and_come_close_in_two_dimensions(sphere):
    ends = np.array([[0.0, 0.6], [1.5, 0.6]])
    graph = build(sphere, np.concatenate([ends, place_nodes(ends, 40)]), neighbours=24)
    found = graph.distances(np.array([0]))[0, 1]
    assert great_circle(*ends) <= found <= 1.03 * great_circle(*ends)
    assert np.all(graph.path(0, 1)[[0, -1]] == ends)


def test_a_second_graph_of_a_metric_compiles_nothing(sphere, count_compilations):
    points = place_nodes(np.array([[0.0, 0.6], [1.5, 0.6]]), 10)
    assert count_compilations(lambda: build(sphere, points)) > 0
    assert count_compilations(lambda: build(sphere, points)) == 0


def test_a_curve_starts_and_ends_where_it_should():
    a, b = jnp.zeros(3), jnp.ones(3)
    for basis in (Legendre(5), Spline(5)):
        curve = Curve(a, b, jr.normal(jr.key(0), (5, 3)), basis)
        np.testing.assert_allclose(curve(jnp.array(0.0)), a, atol=1e-12)
        np.testing.assert_allclose(curve(jnp.array(1.0)), b, atol=1e-12)


def test_legendre_slopes_are_orthonormal():
    t, w = compute_gauss_nodes(12)
    slopes = jax.vmap(lambda t: jax.jvp(Legendre(6), (t,), (jnp.ones_like(t),))[1])(jnp.asarray(t))
    np.testing.assert_allclose((slopes * w[:, None]).T @ slopes, np.eye(6), atol=1e-12)
    assert energy(
        Euclidean(), make_straight_curve(jnp.zeros(2), jnp.ones(2), Legendre(3))
    ) == pytest.approx(2)
