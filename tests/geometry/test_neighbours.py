import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from gelato.errors import InputError
from gelato.geometry import (
    Euclidean,
    Near,
    Pullback,
    find_neighbours,
    nearest,
    nearest_approximate,
    nearest_under_metric,
    prepare,
    recall,
)
from gelato.geometry import neighbours as module


def brute_force(data, queries, k, exclude=None):
    squares = ((queries[:, None].astype(np.float64) - data[None]) ** 2).sum(-1)
    if exclude is not None:
        squares[np.arange(len(queries)), exclude] = np.inf
    rows = np.broadcast_to(np.arange(len(data)), squares.shape)
    order = np.lexsort((rows, squares), axis=-1)[:, :k]
    return order, np.sqrt(np.take_along_axis(squares, order, axis=1))


def cloud(n, dim=7, seed=0, offset=0.0):
    return (np.random.default_rng(seed).normal(size=(n, dim)) + offset).astype(np.float32)


def forget():
    for compiled in (module.prepare, module.search):
        compiled.clear_cache()


@pytest.fixture(params=["processor", "accelerator"])
def way(request, monkeypatch):
    """Search as each kind of machine does.

    The products of a processor are exact, so both ways must give exact results here.
    """
    if request.param == "accelerator":
        monkeypatch.setattr(module, "_uses_fast_products", lambda data: data.dtype == jnp.float32)
        forget()
    yield nearest
    if request.param == "accelerator":
        forget()


@pytest.mark.parametrize("n, k", [(1, 1), (30, 30), (2000, 20), (5000, 3)])
def test_the_nearest_equal_brute_force(way, n, k):
    data, queries = cloud(n), cloud(9, seed=1)
    found, (indices, distances) = way(data, queries, k), brute_force(data, queries, k)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-5)


def test_ties_and_duplicates_keep_their_distances(way):
    data = np.repeat(np.arange(300, dtype=np.float32)[:, None], 3, axis=1).repeat(5, axis=0)
    queries = data[[0, 700, 1499]]
    found, (_, distances) = way(data, queries, 12), brute_force(data, queries, 12)
    np.testing.assert_allclose(found.distances, distances, atol=1e-6)
    assert all(len(set(row)) == 12 for row in np.asarray(found.indices))


def test_leaving_a_query_out_skips_its_row_and_not_its_duplicates(way):
    data = np.concatenate([cloud(1500), cloud(1500)])
    rows = np.array([3, 1503, 40])
    found = way(data, data[rows], 4, exclude=rows)
    assert not np.any(np.asarray(found.indices) == rows[:, None])
    np.testing.assert_array_equal(np.asarray(found.indices)[:, 0], (rows + 1500) % 3000)
    np.testing.assert_array_equal(np.asarray(found.distances)[:, 0], 0)


def test_more_neighbours_than_a_group_holds_are_exact_inside_a_compiled_program():
    data, queries = cloud(900), cloud(4, seed=1)
    assert module.SIZE < 40
    found = jax.jit(jax.vmap(lambda query: find_neighbours(jnp.asarray(data), query, 40)))(
        jnp.asarray(queries)
    )
    np.testing.assert_array_equal(found[0], brute_force(data, queries, 40)[0])


def test_a_prepared_index_finds_the_same_for_any_number_of_queries(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_CPU", 4)
    data, queries = cloud(700), cloud(9, seed=1)
    index = prepare(jnp.asarray(data))
    np.testing.assert_array_equal(
        nearest(index, queries, 5).indices, brute_force(data, queries, 5)[0]
    )
    np.testing.assert_array_equal(
        nearest(data, queries[:3], 5).indices, nearest(index, queries[:3], 5).indices
    )


def test_three_shortened_products_are_as_exact_as_single_precision():
    x, y = cloud(2, dim=400)
    (x_high, x_low), (y_high, y_low) = (module._split(jnp.asarray(v)) for v in (x, y))
    # `high` has ten bits after the leading one, so that rounding to them changes nothing.
    assert all(np.all(np.frexp(high)[0] * 2**11 % 1 == 0) for high in (x_high, y_high))
    three = sum(
        np.float64(a) * np.float64(b)
        for a, b in [(x_high, y_high), (x_high, y_low), (x_low, y_high)]
    )
    np.testing.assert_allclose(three, x.astype(np.float64) * y, rtol=2**-20)


def test_data_far_from_the_origin_does_not_lose_its_neighbours_to_rounding(way):
    data, queries = cloud(3000, offset=300.0), cloud(20, seed=1, offset=300.0)
    found, (indices, _) = way(data, queries, 10), brute_force(data, queries, 10)
    assert np.mean(np.asarray(found.indices) == indices) > 0.99


def test_the_inverted_file_finds_most_neighbours():
    data, queries = cloud(4000, dim=4), cloud(20, dim=4, seed=1)
    found = nearest_approximate(data, queries, 10)
    truth = brute_force(data, queries, 10)[0]
    assert np.mean([np.isin(row, other).mean() for row, other in zip(truth, found.indices)]) > 0.9


def test_codes_of_a_few_bytes_find_most_neighbours_and_exact_distances():
    data = cloud(20_000)
    queries = data[:50]
    found = nearest_approximate(data, queries, 10, exclude=np.arange(50), code_bytes=4)
    truth = brute_force(data, queries, 10, np.arange(50))[0]
    shares = [np.isin(row, other).mean() for row, other in zip(truth, found.indices)]
    assert np.mean(shares) > 0.9
    assert not (found.indices == np.arange(50)[:, None]).any()
    np.testing.assert_allclose(
        found.distances,
        np.linalg.norm(data[found.indices] - queries[:, None], axis=-1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_under_the_metric_a_stretched_direction_is_far():
    data, queries = cloud(400, dim=3), cloud(5, dim=3, seed=1)
    stretch = np.array([1.0, 1.0, 20.0], dtype=np.float32)
    metric = Pullback(lambda z: jnp.asarray(stretch) * z)
    found = nearest_under_metric(metric, data, queries, 5, shortlist=400, solver=Near())
    np.testing.assert_array_equal(
        found.indices, brute_force(data * stretch, queries * stretch, 5)[0]
    )
    assert recall(metric, data, queries, 5, shortlist=20, larger=400) < 0.9
    assert recall(Euclidean(), data, queries, 5, shortlist=20, larger=400) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: nearest(cloud(5), cloud(2), 6),
        lambda: nearest(cloud(5), cloud(2), 5, exclude=np.array([0, 1])),
        lambda: nearest(cloud(5), cloud(0), 2),
        lambda: nearest(cloud(5), cloud(2, dim=3), 2),
        lambda: nearest(cloud(5), cloud(2), 0),
        lambda: nearest(cloud(5), cloud(2), 2, exclude=np.array([0])),
        lambda: nearest(prepare(jnp.asarray(cloud(5))), cloud(2), 6),
        lambda: nearest_under_metric(Euclidean(), cloud(50), cloud(2), 9, shortlist=4),
    ],
)
def test_searches_that_cannot_be_answered_are_refused(call):
    # In the tests, jaxtyping detects a mismatch of dimensions first.
    with pytest.raises((InputError, TypeCheckError)):
        call()
