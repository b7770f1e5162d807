"""Random episodes are written in every layout, and loaders must read them back unchanged."""

from dataclasses import dataclass, replace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gelato.data.columns import Columns, assemble
from gelato.data.reference import load
from gelato.data.spaces import Continuous, Discrete
from gelato.errors import InputError


@dataclass
class Log:
    """Record episodes. States never repeat, so a successor from the wrong episode is noticed."""

    lengths: list[int]
    falls: list[bool]
    discrete: bool
    dtype: type

    def columns(self) -> Columns:
        n = sum(self.lengths)
        ends = np.cumsum(self.lengths) - 1
        fell = np.zeros(n, bool)
        fell[ends] = self.falls
        timed_out = np.zeros(n, bool)
        timed_out[ends] = np.logical_not(self.falls)
        # Each episode gets one state more than it has steps.
        episode = np.repeat(np.arange(len(self.lengths)), self.lengths)
        index = np.arange(n) + episode
        states = np.stack([index, -index], axis=1).astype(self.dtype)
        successors = np.stack([index + 1, -index - 1], axis=1).astype(self.dtype)
        actions = (
            (np.arange(n) % 3)
            if self.discrete
            else (np.arange(n)[:, None] % 3 - 1).astype(self.dtype)
        )
        return Columns(
            "log", states, actions, np.arange(n, dtype=self.dtype), successors, fell, timed_out
        )


logs = st.integers(1, 12).flatmap(
    lambda episodes: st.builds(
        Log,
        st.lists(st.integers(1, 6), min_size=episodes, max_size=episodes),
        st.lists(st.booleans(), min_size=episodes, max_size=episodes),
        st.booleans(),
        st.sampled_from([np.float16, np.float32, np.float64]),
    )
)


def check_episodes(transitions, log: Log, *, successors: bool) -> None:
    columns = log.columns()
    assert [rows.stop - rows.start for rows in transitions.episode_slices] == log.lengths
    assert [
        bool(transitions.terminated[rows.stop - 1]) for rows in transitions.episode_slices
    ] == log.falls
    assert not (transitions.terminated & transitions.truncated).any()
    known = transitions.has_successor
    np.testing.assert_array_equal(transitions.states, columns.observations)
    np.testing.assert_array_equal(transitions.next_states[known], columns.next_observations[known])
    np.testing.assert_array_equal(transitions.rewards, columns.rewards)
    np.testing.assert_array_equal(
        known, np.ones(len(known), bool) if successors else ~transitions.ends
    )
    assert transitions.states.dtype == transitions.rewards.dtype == np.float32


@settings(deadline=None)
@given(logs)
def test_every_field_recorded(log):
    check_episodes(assemble(log.columns()), log, successors=True)


def test_a_jump_ends_an_episode_whatever_the_flags_say_and_rounding_is_no_jump(capsys):
    log = Log([4, 6], [False, False], False, np.float32)
    columns = log.columns()
    columns.observations[4:] += 100
    columns.next_observations[4:] += 100
    unmarked = assemble(replace(columns, timeouts=np.zeros(10, bool)))
    assert [rows.stop - rows.start for rows in unmarked.episode_slices] == [4, 6]
    assert "1 rows whose successor is not the next row's state, the first at row 3" in " ".join(
        capsys.readouterr().err.split()
    )
    rounded = replace(columns, next_observations=columns.next_observations + 1e-5, timeouts=None)
    assert [rows.stop - rows.start for rows in assemble(rounded).episode_slices] == [4, 6]


def test_the_callers_arrays_are_left_as_they_are():
    columns = good()
    columns.actions[0] = 1.00005
    before = columns.actions.copy()
    assert assemble(replace(columns, action_space=Continuous((-1.0,), (1.0,)))).actions.max() == 1
    np.testing.assert_array_equal(columns.actions, before)


@settings(deadline=None)
@given(logs)
def test_without_time_outs_a_jump_in_the_states_ends_an_episode(log):
    check_episodes(assemble(replace(log.columns(), timeouts=None)), log, successors=True)


@settings(deadline=None)
@given(logs)
def test_without_successors_the_last_step_of_an_episode_has_none(log):
    check_episodes(assemble(replace(log.columns(), next_observations=None)), log, successors=False)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(2, 5))
def test_a_known_time_limit_ends_episodes_that_no_flag_ends(lengths, limit):
    falls = [length < limit for length in lengths]
    log = Log([min(length, limit) for length in lengths], falls, False, np.float32)
    unmarked = replace(log.columns(), next_observations=None, timeouts=None, episode_limit=limit)
    check_episodes(assemble(unmarked), log, successors=False)
    all_false = replace(unmarked, timeouts=np.zeros(sum(log.lengths), bool))
    check_episodes(assemble(all_false), log, successors=False)


@settings(deadline=None, max_examples=20)
@given(logs, st.sampled_from(["npz", "hdf5", "h5"]), st.booleans())
def test_a_file_gives_back_what_was_written(tmp_path_factory, log, suffix, with_successors):
    columns = log.columns()
    path = tmp_path_factory.mktemp("files") / f"log.{suffix}"
    arrays = {
        "obs": columns.observations,
        "actions": columns.actions,
        "rewards": columns.rewards,
        "terminations": columns.terminals,
        "truncations": columns.timeouts,
    }
    if with_successors:
        arrays["next_obs"] = columns.next_observations
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    transitions = load(f"file:{path}").transitions
    check_episodes(transitions, log, successors=with_successors)
    assert isinstance(transitions.action_space, Discrete if log.discrete else Continuous)


def test_other_names_are_mapped(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, sensors=np.zeros((3, 2)), torque=np.zeros((3, 1)), gain=np.ones(3))
    names = "observations=sensors,actions=torque,rewards=gain"
    transitions = load(f"file:{path},{names}").transitions
    assert len(transitions) == 3 and len(transitions.episode_slices) == 1


def test_observations_of_any_shape_are_flattened_and_the_shape_is_remembered():
    n = 4
    columns = Columns("log", np.arange(n * 6.0).reshape(n, 3, 2), np.zeros((n, 1)), np.zeros(n))
    transitions = assemble(columns)
    assert transitions.observation_shape == (3, 2) and transitions.states.shape == (n, 6)
    np.testing.assert_array_equal(transitions.states[1].reshape(3, 2), columns.observations[1])


def test_scalar_observations_become_one_column():
    assert assemble(Columns("log", np.arange(4.0), np.zeros((4, 1)), np.zeros(4))).states.shape == (
        4,
        1,
    )


def test_a_one_step_episode_without_successor_keeps_its_reward_and_is_left_out_of_the_model(
    tmp_path,
):
    columns = Columns(
        "log", np.arange(3.0)[:, None], np.zeros((3, 1)), np.ones(3), terminals=np.array([1, 0, 1])
    )
    transitions = assemble(columns)
    assert [rows.stop - rows.start for rows in transitions.episode_slices] == [1, 2]
    assert transitions.rewards.sum() == 3
    assert len(transitions.with_successors()) == 1


def good() -> Columns:
    return Log([3, 4], [True, False], False, np.float32).columns()


def with_value(array: np.ndarray, row: int, value: float) -> np.ndarray:
    changed = array.astype(np.float64)
    changed[row] = value
    return changed


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_with_its_field_and_row(field, value):
    columns = good()
    bad = replace(columns, **{field: with_value(getattr(columns, field), 5, value)})
    with pytest.raises(InputError, match=rf"log: {field} holds -?(nan|inf).* in row 5"):
        assemble(bad)


@pytest.mark.parametrize(
    "field", ["actions", "rewards", "next_observations", "terminals", "timeouts"]
)
def test_a_field_of_another_length_is_named(field):
    columns = good()
    with pytest.raises(InputError, match=f"log: {field} has 6 rows, but observations has 7"):
        assemble(replace(columns, **{field: getattr(columns, field)[:-1]}))


def test_an_action_outside_the_space_is_named():
    columns = replace(good(), action_space=Continuous((-0.5,), (0.5,)))
    with pytest.raises(
        InputError,
        match=r"log: actions holds -1 in row 0, column 0, outside the space \[-0.5, 0.5\]",
    ):
        assemble(columns)
    discrete = replace(good(), actions=np.array([0, 1, 2, 0, 1, 5, 0]), action_space=Discrete(3))
    with pytest.raises(InputError, match=r"actions holds 5 in row 5, outside the space 0…2"):
        assemble(discrete)


def test_empty_data_flags_that_are_not_flags_and_text_are_refused():
    empty = Columns("log", np.zeros((0, 2)), np.zeros((0, 1)), np.zeros(0))
    with pytest.raises(InputError, match="observations is empty"):
        assemble(empty)
    with pytest.raises(InputError, match="terminals holds 3"):
        assemble(replace(good(), terminals=with_value(good().terminals, 2, 3)))
    with pytest.raises(InputError, match="observations holds"):
        assemble(replace(good(), observations=np.array(["a"] * 7)))
    with pytest.raises(InputError, match="rewards holds complex128, not real numbers"):
        assemble(replace(good(), rewards=np.ones(7, complex)))
    with pytest.raises(InputError, match="observations is a single value"):
        assemble(replace(good(), observations=np.array(1.0)))
    with pytest.raises(InputError, match="observations has no columns"):
        assemble(replace(good(), observations=np.zeros((7, 0))))
    with pytest.raises(InputError, match="integers up to 100000000"):
        assemble(replace(good(), actions=np.full(7, 10**8)))


@settings(deadline=None)
@given(logs, st.sampled_from([np.int8, np.uint8, bool, np.float64]), st.booleans())
def test_flags_and_rewards_of_any_type_and_as_columns_read_the_same(log, dtype, as_column):
    columns = log.columns()
    shape = (-1, 1) if as_column else (-1,)
    changed = {
        name: getattr(columns, name).astype(dtype).reshape(shape)
        for name in ("terminals", "timeouts")
    }
    changed["rewards"] = columns.rewards.reshape(shape)
    check_episodes(assemble(replace(columns, **changed)), log, successors=True)


def test_a_cut_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((1000, 3))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"log\.hdf5: not a readable HDF5 file"):
        load(f"d4rl:{path}")
    text = tmp_path / "log.npz"
    text.write_text("not an archive")
    with pytest.raises(InputError, match=r"log\.npz: not a readable \.npz file"):
        load(f"file:{text}")
    with pytest.raises(InputError, match="no such file"):
        load(f"file:{tmp_path / 'absent.npz'}")
    with pytest.raises(InputError, match="unknown file type"):
        (tmp_path / "log.txt").touch()
        load(f"file:{tmp_path / 'log.txt'}")


def test_a_single_array_is_not_an_archive(tmp_path):
    np.save(tmp_path / "log.npy", np.zeros(3))
    (tmp_path / "log.npy").rename(tmp_path / "log.npz")
    with pytest.raises(InputError, match=r"a single array, not an .npz archive"):
        load(f"file:{tmp_path / 'log.npz'}")


@settings(deadline=None, max_examples=20)
@given(logs, st.booleans(), st.booleans())
def test_a_d4rl_file_gives_back_what_was_written(
    tmp_path_factory, log, with_successors, with_timeouts
):
    columns = replace(log, discrete=False).columns()
    path = tmp_path_factory.mktemp("files") / "antmaze.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file[name] = getattr(columns, name)
        if with_successors:
            file["next_observations"] = columns.next_observations
        if with_timeouts or not with_successors:
            file["timeouts"] = columns.timeouts
        file["infos/qpos"], file["metadata/algorithm"] = np.zeros(3), "SAC"
    check_episodes(load(f"d4rl:{path}").transitions, log, successors=with_successors)


def test_a_missing_field_is_named_with_what_the_file_has(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, observations=np.zeros((3, 2)), rewards=np.ones(3))
    with pytest.raises(
        InputError,
        match="no field actions or action or acts or act; the file has observations, rewards",
    ):
        load(f"file:{path}")


def plain(states):
    return {
        "observations": states,
        "actions": np.zeros((len(states), 1)),
        "rewards": np.zeros(len(states)),
    }


def test_a_log_without_marks_of_its_ends_is_said_to_be_one_episode(tmp_path, capsys):
    np.savez(tmp_path / "log.NPZ.npz", **plain(np.arange(30.0)[:, None]))
    (tmp_path / "log.NPZ.npz").rename(tmp_path / "log.NPZ")
    assert len(load(f"file:{tmp_path / 'log.NPZ'}").transitions.episode_slices) == 1
    assert (
        "no field marks the ends of episodes, so all 30 steps are one episode"
        in capsys.readouterr().err
    )


def test_a_column_too_fine_for_single_precision_is_said(tmp_path, capsys):
    date, fine = 1.7e9 + 0.05 * np.arange(400), 1e3 + 0.05 * np.arange(400)
    np.savez(
        tmp_path / "log.npz",
        **plain(np.stack([fine, date], axis=1)),
        timeouts=np.arange(400) % 200 == 199,
    )
    load(f"file:{tmp_path / 'log.npz'}")
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "observations: column 1 varies by 20," in told
        and "in steps of 1.3e+02" in told
        and "column 0" not in told
    )


def test_fields_may_lie_in_groups_of_a_file(tmp_path):
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, column in plain(np.arange(8.0)[:, None]).items():
            file[f"data/{name}"] = column
        file["data/timeouts"] = np.arange(8) % 4 == 3
    fields = ("observations", "actions", "rewards", "timeouts")
    options = ",".join(f"{field}=data/{field}" for field in fields)
    assert len(load(f"file:{tmp_path / 'log.hdf5'},{options}").transitions.episode_slices) == 2
    with pytest.raises(InputError, match="the file has data/actions, data/observations"):
        load(f"file:{tmp_path / 'log.hdf5'}")


def test_an_option_said_twice_is_refused():
    with pytest.raises(InputError, match="the option low= is given twice"):
        load("file:log.npz,low=-2,high=2,low=-3")


def test_a_path_is_that_of_a_plain_file(tmp_path):
    np.savez(tmp_path / "log.npz", **plain(np.arange(8.0)[:, None]))
    assert load(tmp_path / "log.npz").reference == f"file:{tmp_path / 'log.npz'}"
