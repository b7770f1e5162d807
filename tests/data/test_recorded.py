"""Files that others recorded, in every layout the loaders promise to read."""

import numpy as np
import pytest

from gelato.data.reference import load
from gelato.data.summary import episode_returns, summarise


def test_d4rl_v2_with_successors_falls_are_terminations(realdata):
    data = load(f"d4rl:{realdata('d4rl/hopper_medium-v2.hdf5')}").transitions
    assert len(data) == 911
    np.testing.assert_allclose(episode_returns(data), [1465, 1413], atol=1)
    assert data.terminated.sum() == 2 and data.truncated.sum() == 0 and data.has_successor.all()
    rows = ~data.ends[:-1]
    np.testing.assert_array_equal(data.next_states[:-1][rows], data.states[1:][rows])
    assert (data.next_states[:-1][~rows] != data.states[1:][~rows]).any(axis=1).all(), (
        "no episode bleeds into the next"
    )


def test_d4rl_v2_time_outs_are_truncations(realdata):
    dataset = load(f"d4rl:{realdata('d4rl/halfcheetah_medium-v2.hdf5')}")
    data = dataset.transitions
    assert len(data) == 2000 and not data.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(data.truncated), [999, 1999])
    np.testing.assert_allclose(episode_returns(data), [4670, 4880], atol=1)
    assert summarise(dataset)["normalised_score"] == pytest.approx(40.7, abs=0.5)


def test_d4rl_v0_the_last_step_of_an_episode_has_no_successor(realdata):
    data = load(f"d4rl:{realdata('d4rl/hopper_medium.hdf5')}").transitions
    assert len(data) == 524 and data.terminated.sum() == 2
    np.testing.assert_array_equal(~data.has_successor, data.ends)
    rows = data.has_successor[:-1]
    np.testing.assert_array_equal(data.next_states[:-1][rows], data.states[1:][rows])
    assert len(data.with_successors()) == 524 - len(data.episode_slices)


def test_d4rl_v1_layout(realdata):
    data = load(f"d4rl:{realdata('d4rl/hopper_random-v1.hdf5')}").transitions
    assert len(data) == 50 and data.has_successor.all() and data.terminated.sum() == 2


@pytest.mark.parametrize(
    ("name", "mean_return"),
    [("pendulum_v1.1.0.h5", -180.5), ("pendulum_random_v1.1.0.h5", -1223.6)],
)
def test_a_replay_buffer_that_marks_episode_ends_only(realdata, name, mean_return):
    dataset = load(f"file:{realdata('pendulum/' + name)},low=-2,high=2")
    data, summary = dataset.transitions, summarise(dataset)
    assert (len(data), summary["episodes"], summary["terminations"]) == (99_500, 500, 0)
    assert summary["truncations"] == summary["without_successor"] == 500
    assert summary["return_mean"] == pytest.approx(mean_return, abs=0.1)
    complete = data.with_successors()
    assert len(complete) == 99_000 and len(complete.episode_slices) == 500
    # A pendulum turns at most 8 radians a second for 0.05 s: a larger turn would be another
    # episode's state.
    cosine_jump = np.abs(complete.next_states[:, 0] - complete.states[:, 0]).max()
    assert cosine_jump <= 8 * 0.05 + 1e-3
