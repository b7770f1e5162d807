import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import gelato
from gelato.data import history
from gelato.data.history import WindowLayout
from gelato.data.sources import add_history
from gelato.errors import InputError
from gelato.model.config import ModelConfig
from gelato.model.fit import normalise_batch, prepare_data
from gelato.model.split import split_dataset
from gelato.selection.log import make_log
from tests.history.systems import record

LENGTHS = (1, 3, 2, 5)
TINY = ModelConfig(latent_size=2, decoders=1, hidden=(8,), forward_hidden=(8,), batch_size=4)


def record_numbered(discrete: bool = False) -> gelato.Dataset:
    """Record episodes whose observations are their row numbers, and actions the numbers' halves."""
    rows = sum(LENGTHS)
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    ends = np.isin(np.arange(rows), np.cumsum(LENGTHS) - 1)
    actions = np.arange(rows) % 3 if discrete else numbers / 100
    return gelato.make_dataset(
        numbers, actions, numbers[:, 0], next_observations=numbers + 1, timeouts=ends
    )


@pytest.mark.parametrize("discrete", [False, True])
def test_a_window_holds_the_last_rows_and_never_crosses_an_episode_end(discrete: bool) -> None:
    data = add_history(record_numbered(discrete), 3).transitions
    layout = data.layout
    windows = data.inputs.reshape(len(data), 3, layout.row_size)
    for episode in data.episode_slices:
        for row in range(episode.start, episode.stop):
            for back in range(3):
                found = windows[row, back]
                if row - back < episode.start:
                    assert_array_equal(found, 0)
                    continue
                assert found[0] == row - back and found[-1] == 1
                logged = np.asarray(data.actions)[row - back]
                encoded = np.eye(3)[logged] if discrete else logged
                assert_array_equal(found[1:-1], encoded if back else 0)


def test_the_window_after_a_row_has_its_action_and_its_successor() -> None:
    data = add_history(record_numbered(), 3).transitions
    after, before = (each.reshape(len(data), 3, 3) for each in (data.next_inputs, data.inputs))
    assert_array_equal(after[:, 0, 0], np.asarray(data.next_states)[:, 0])
    assert_array_equal(after[:, 1, 0], np.asarray(data.states)[:, 0])
    assert_array_equal(after[:, 1, 1], np.asarray(data.actions)[:, 0])
    assert_array_equal(after[:, 2], before[:, 1])


def test_chosen_rows_keep_their_windows() -> None:
    data = add_history(record_numbered(), 4).transitions
    rows = np.array([9, 2, 5])
    assert_array_equal(data[rows].inputs, data.inputs[rows])
    assert_array_equal(data[3:7][np.array([2])].inputs, data.inputs[5:6])
    train, held_out = gelato.split(data, 0.5)
    everything = {float(window[0]): window for window in data.inputs}
    for part in (train, held_out):
        for window in part.inputs:
            assert_array_equal(window, everything[float(window[0])])


def test_the_device_gathers_the_same_windows_as_the_host() -> None:
    split = split_dataset(record(episodes=6, steps=9, history=4), 0.3)
    data = prepare_data(split.train, split.held_out, split.scaling, TINY, (0,))
    rows = jnp.arange(len(split.train))
    found = data.gather(rows, lambda rows: jnp.zeros((len(rows), 1)))
    expected = normalise_batch(split.train, split.scaling)
    assert_array_equal(found.inputs, expected.inputs)
    following = split.scaling.inputs(split.train.next_inputs)
    assert_array_equal(found.next_inputs, following)


def test_memory_does_not_grow_with_the_history() -> None:
    short, long = (record(episodes=20, history=history) for history in (2, 16))
    assert short.transitions.nbytes == long.transitions.nbytes == record(20).transitions.nbytes
    assert long.transitions.past is not None
    assert np.shares_memory(long.transitions.past.states, long.transitions.states)
    sizes = []
    for dataset in (short, long):
        split = split_dataset(dataset, 0.3)
        data = prepare_data(split.train, split.held_out, split.scaling, TINY, (0,))
        sizes.append(data.rows.nbytes + data.ages.nbytes)  # type: ignore[union-attr]
    assert sizes[0] == sizes[1]


def test_data_with_another_history_has_another_fingerprint() -> None:
    found = {record(history=history).transitions.fingerprint() for history in (1, 2, 3)}
    assert len(found) == 3


@pytest.mark.parametrize("numpy", [np, jnp])
def test_normalising_windows_is_exact_and_keeps_unknown_rows_zero(numpy: object) -> None:
    data = add_history(record_numbered(), 3).transitions
    windows, layout = data.inputs, data.layout
    mean, scale = np.array([2.0], np.float32), np.array([4.0], np.float32)
    given = [numpy.asarray(each) for each in (windows, mean, scale)]  # type: ignore[attr-defined]
    found = layout.normalise(*given)
    rows = np.asarray(found).reshape(len(data), 3, 3)
    known = windows.reshape(len(data), 3, 3)[..., -1] == 1
    assert_array_equal(rows[~known], 0)
    original = windows.reshape(len(data), 3, 3)[known]
    assert_array_equal(rows[known][:, 0], (original[:, 0] - 2) / 4)
    assert_array_equal(rows[known][:, 1:], original[:, 1:])
    np.testing.assert_allclose(layout.restore(found, given[1], given[2]), windows)


def test_a_history_of_one_is_the_observation() -> None:
    layout = WindowLayout(1, 2, 3)
    observation = np.array([1.0, 2.0], np.float32)
    assert (layout.size, layout.memory_size) == (2, 0)
    assert_array_equal(layout.open(observation, layout.start()), observation)


def test_bad_histories_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="longer than every episode; the longest has 5 steps"):
        add_history(record_numbered(), 6)
    for text in ("1", "0", "four", "-2", "2.5", ""):
        with pytest.raises(InputError, match=f"history={text} must be a whole number"):
            gelato.load(f"four-rooms,history={text}")


def test_windows_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = record(history=16).transitions
    monkeypatch.setattr(history, "find_free_memory", lambda: 100_000)
    with pytest.raises(InputError, match="windows of 1,800 rows with history=16 need"):
        _ = data.inputs
    assert data[:30].inputs.shape == (30, data.layout.size)
    with pytest.raises(InputError, match="use a shorter history or less data"):
        make_log(data[:150])
