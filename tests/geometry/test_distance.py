import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from gelato.errors import InputError
from gelato.geometry import (
    Converged,
    Near,
    Pullback,
    Tensor,
    connecting_geodesic,
    distance,
    distances,
    lower_bound,
    pairwise,
)
from gelato.geometry.batch import Triangle


def on_paraboloid(z):
    return jnp.concatenate([z, jnp.atleast_1d(z @ z)])


def paraboloid():
    return Pullback(on_paraboloid)


@eqx.filter_jit
def solve(solver, metric, a, b):
    return solver(metric, a, b)


def test_chunks_change_nothing():
    points = jr.normal(jr.key(0), (11, 3))
    whole = distances(paraboloid(), points[0], points, Near(), chunk_size=100)
    in_chunks = distances(paraboloid(), points[0], points, Near(), chunk_size=4)
    np.testing.assert_allclose(whole, in_chunks, rtol=1e-9)
    np.testing.assert_allclose(
        whole[3], eqx.filter_jit(distance)(paraboloid(), points[0], points[3], Near()), rtol=1e-9
    )
    assert whole[0] == 0


def test_pairwise_distances_are_symmetric_with_a_zero_diagonal():
    points = jr.normal(jr.key(0), (5, 3))
    matrix = pairwise(paraboloid(), points, solver=Near())
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(np.diag(matrix), 0)
    np.testing.assert_allclose(
        matrix[1, 4],
        eqx.filter_jit(distance)(paraboloid(), points[1], points[4], Near()),
        rtol=1e-9,
    )


@pytest.mark.parametrize("dim", [2, 3])
def test_a_second_call_compiles_nothing(dim):
    traces = []

    def counted(z):
        traces.append(z)
        return on_paraboloid(z)

    metric, points = Pullback(counted), jr.normal(jr.key(0), (4, dim))
    first = pairwise(metric, points, Converged(2, 4))
    count = len(traces)
    assert count > 0
    np.testing.assert_array_equal(pairwise(metric, points, Converged(2, 4)), first)
    assert len(traces) == count


def test_in_two_dimensions_a_geodesic_goes_around_a_hill_the_straight_line_cannot_leave():
    # On the ridge of a symmetric hill the straight line is a geodesic, but not a shortest one.
    hill = Pullback(lambda z: jnp.concatenate([z, jnp.atleast_1d(4 * jnp.exp(-4 * z @ z))]))
    a, b = jnp.array([-1.5, 0.0]), jnp.array([1.5, 0.0])
    over = solve(Converged(modes=10, nodes=32), hill, a, b)
    around = connecting_geodesic(hill, a, b)
    assert around.length < 0.6 * over.length
    assert around.converged
    assert abs(around.curve(jnp.array(0.5))[1]) > 0.3


def test_the_pairs_of_a_matrix_are_those_above_its_diagonal():
    points = np.arange(7.0)[:, None]
    rows, columns = np.triu_indices(7, k=1)
    triangle = Triangle(points)
    assert triangle.count == len(rows)
    starts, ends = triangle.select(5, 100)
    np.testing.assert_array_equal(starts[:, 0], rows[5:])
    np.testing.assert_array_equal(ends[:, 0], columns[5:])


def test_all_functions_have_one_default_solver():
    points = jr.normal(jr.key(0), (3, 3))
    matrix = pairwise(paraboloid(), points)
    inside = eqx.filter_jit(distance)(paraboloid(), points[0], points[2])
    np.testing.assert_allclose(inside, matrix[0, 2], rtol=1e-9)
    np.testing.assert_array_equal(matrix[0], distances(paraboloid(), points[0], points))
    found = connecting_geodesic(paraboloid(), points[0], points[2])
    np.testing.assert_allclose(found.length, matrix[0, 2], rtol=1e-9)


def test_a_metric_that_is_not_finite_is_refused_by_name_of_the_point():
    broken = Pullback(lambda z: jnp.where(z[0] > 1, jnp.nan, 1.0) * z)
    with pytest.raises(InputError, match="not finite"):
        distances(broken, jnp.zeros(3), 2 * jnp.ones((4, 3)), Near())
    assert not any(
        solve(solver, broken, jnp.zeros(3), 2 * jnp.ones(3)).converged
        for solver in (Near(), Converged(2, 4))
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: distance(paraboloid(), jnp.zeros(3), jnp.zeros(2)),
        lambda: distances(paraboloid(), jnp.zeros(3), jnp.zeros((4, 2))),
        lambda: connecting_geodesic(paraboloid(), jnp.zeros(3), jnp.zeros(2)),
        lambda: distances(paraboloid(), jnp.zeros(3), jnp.zeros((0, 3))),
        lambda: Near()(Tensor(lambda z: jnp.diag(z)), jnp.zeros(3), jnp.ones(3)),
    ],
)
def test_input_that_cannot_be_measured_is_refused(call):
    # In the tests, jaxtyping detects a mismatch of dimensions first.
    with pytest.raises((InputError, TypeCheckError)):
        call()


def test_points_far_outside_the_data_have_finite_flagged_distances(ensemble):
    a, b = jnp.full(3, 1e6), jnp.full(3, -1e6)
    found = solve(Near(), ensemble, a, b)
    assert np.isfinite(found.length)
    assert found.length >= eqx.filter_jit(lower_bound)(ensemble, a, b) * (1 - 1e-9)
