import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gelato.data.spaces import Continuous, Discrete
from gelato.data.transitions import Standardiser, Transitions, split
from gelato.errors import InputError


def transitions_of(lengths: list[int], terminations: list[bool] | None = None) -> Transitions:
    """Make episodes whose states count up, so that every row is different."""
    n = sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
    flags = terminations or [False] * len(lengths)
    terminated[ends], truncated[ends] = flags, np.logical_not(flags)
    states = np.arange(n, dtype=np.float32)[:, None]
    return Transitions(
        states=states,
        actions=np.zeros((n, 1), np.float32),
        rewards=np.ones(n, np.float32),
        next_states=states + 1,
        terminated=terminated,
        truncated=truncated,
        has_successor=np.ones(n, bool),
        observation_shape=(1,),
        action_space=Continuous((-1.0,), (1.0,)),
    )


@given(st.lists(st.integers(1, 7), min_size=1, max_size=20))
def test_episode_slices_are_the_episodes(lengths):
    slices = transitions_of(lengths).episode_slices
    assert [rows.stop - rows.start for rows in slices] == lengths
    assert [rows.start for rows in slices[1:]] == [rows.stop for rows in slices[:-1]]


@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=20), st.floats(0.05, 0.95), st.integers(0, 5)
)
def test_a_split_keeps_episodes_whole_and_loses_nothing(lengths, fraction, seed):
    data = transitions_of(lengths)
    train, held_out = split(data, fraction, seed=seed)
    assert len(train) and len(held_out)
    assert sorted(np.concatenate([train.states, held_out.states])[:, 0]) == list(range(len(data)))
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    assert not set(episodes[train.states[:, 0].astype(int)]) & set(
        episodes[held_out.states[:, 0].astype(int)]
    )


def test_the_same_seed_splits_the_same_way_and_another_does_not():
    data = transitions_of([3] * 50)
    first, again, other = (split(data, 0.5, seed=seed)[0].states for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_single_episode_cannot_be_split():
    with pytest.raises(InputError, match="single episode"):
        split(transitions_of([10]))


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(2, 40), st.floats(-1e4, 1e4), st.floats(1e-2, 1e4))
def test_standardising_gives_mean_zero_and_deviation_one_and_inverts(seed, n, mean, deviation):
    x = np.random.default_rng(seed).normal(mean, deviation, (n, 3)).astype(np.float32)
    x[:, 2] = mean
    standardiser = Standardiser.fit(x)
    y = standardiser(x)
    scale = np.abs(x).max() / x[:, :2].std(axis=0).min()
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-6 * scale + 1e-5)
    np.testing.assert_allclose(y[:, :2].std(axis=0), 1, rtol=1e-5 * scale + 1e-5)
    np.testing.assert_allclose(standardiser.inverse(y), x, rtol=1e-5, atol=1e-5 * np.abs(x).max())


def test_a_constant_column_is_not_divided_by_zero():
    standardiser = Standardiser.fit(np.full((10, 1), 0.1, np.float32))
    np.testing.assert_array_equal(standardiser.scale, [1])
    np.testing.assert_allclose(
        standardiser(np.array([[0.1], [2.1]], np.float32)), [[0], [2]], atol=1e-6
    )


def test_dropping_rows_without_successor_truncates_the_row_before():
    data = transitions_of([3, 1, 2], [True, True, False])
    has_successor = np.array([True, True, False, False, True, False])
    data = jax.tree.map(lambda x: x, data)
    object.__setattr__(data, "has_successor", has_successor)
    kept = data.with_successors()
    np.testing.assert_array_equal(kept.states[:, 0], [0, 1, 4])
    np.testing.assert_array_equal(kept.truncated, [False, True, True])
    assert not kept.terminated.any()


def test_transitions_are_a_pytree_that_survives_a_compiled_function():
    data = transitions_of([4, 2])
    doubled = jax.jit(lambda t: jax.tree.map(lambda x: x, t))(data)
    assert doubled.action_space == data.action_space and len(doubled) == 6


def test_equal_data_has_an_equal_fingerprint_and_any_change_shows():
    data = transitions_of([4, 2])
    assert data.fingerprint() == transitions_of([4, 2]).fingerprint()
    assert data.fingerprint() != transitions_of([2, 4]).fingerprint()
    assert data.fingerprint() != data[:5].fingerprint()


def test_discrete_actions_are_one_hot_at_the_models_door_and_continuous_ones_unchanged():
    np.testing.assert_array_equal(Discrete(3).encode(np.array([2, 0])), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(Continuous((-1.0,), (1.0,)).encode(np.array([[0.5]])), [[0.5]])
    assert (Discrete(3).size, Continuous((-1.0, 0.0), (1.0, 1.0)).size) == (3, 2)


def test_nothing_has_no_episodes():
    assert transitions_of([3])[np.zeros(3, bool)].episode_slices == []


def test_a_column_far_from_zero_is_brought_to_the_size_of_the_others():
    seconds = np.linspace(1.7e9, 1.7e9 + 3000, 1000, dtype=np.float32)[:, None]
    assert np.abs(Standardiser.fit(seconds)(seconds)).max() < 3
