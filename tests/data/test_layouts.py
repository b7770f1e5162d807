"""What each option of a reference to columns means, and the layouts that recorders really write."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import gelato
from gelato.data.spaces import Continuous
from gelato.errors import InputError

STEPS = 5


def make_episodes(episodes: int = 4, **changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Columns of episodes of equal length whose states never repeat."""
    rows = np.arange(episodes * STEPS)
    states = np.stack([rows + rows // STEPS, -(rows + rows // STEPS)], axis=1).astype(np.float32)
    arrays = {
        "obs": states,
        "new_obs": states + np.array([1, -1]),
        "actions": np.sin(rows)[:, None],
        "rewards": rows * 1.0,
        "dones": rows % STEPS == STEPS - 1,
        **changes,
    }
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., gelato.Dataset]:
    def read(arrays: dict[str, np.ndarray], options: str = "") -> gelato.Dataset:
        np.savez(tmp_path / "log.npz", **arrays)
        return gelato.load(f"file:{tmp_path / 'log.npz'}{options}")

    return read


def count_episodes(dataset: gelato.Dataset) -> int:
    return len(dataset.transitions.episode_slices)


def join_lines(text: str) -> str:
    return " ".join(text.split())


def test_a_field_may_be_used_for_either_role(read):
    assert read(make_episodes()).transitions.terminated.sum() == 4
    data = read(make_episodes(), ",timeouts=dones").transitions
    assert data.terminated.sum() == 0 and data.truncated.sum() == 4
    data = read(make_episodes(), ",terminals=none").transitions
    assert data.terminated.sum() == 0 and data.truncated.sum() == 4, "ends are jumps of the state"
    with pytest.raises(InputError, match="dones is named for both terminals and timeouts"):
        read(make_episodes(), ",terminals=dones,timeouts=dones")


def test_flags_that_are_never_set_do_not_hide_missing_ends(read, capsys):
    """An all-False `dones` made one episode of fifty, without a word."""
    never = np.zeros(4 * STEPS, bool)
    assert count_episodes(read(make_episodes(dones=never))) == 4
    assert "3 rows whose successor is not the next row's state, the first at row 4" in join_lines(
        capsys.readouterr().err
    )
    assert count_episodes(read(make_episodes(dones=never, new_obs=None))) == 1
    assert "terminals is never set, so all 20 steps are one episode" in join_lines(
        capsys.readouterr().err
    )
    ids = np.repeat([7, 3, 9, 1], STEPS)
    assert count_episodes(read(make_episodes(dones=never, new_obs=None, eps_id=ids))) == 4
    assert capsys.readouterr().err == ""


def test_rows_without_order_are_noticed(read, capsys):
    order = np.random.default_rng(0).permutation(4 * STEPS)
    shuffled = {name: array[order] for name, array in make_episodes(dones=None).items()}
    read(shuffled)
    assert "are the rows in order of time?" in join_lines(capsys.readouterr().err)


def test_episodes_that_all_terminate_after_as_many_steps_look_like_a_time_limit(read, capsys):
    read(make_episodes())
    said = join_lines(capsys.readouterr().err)
    assert "all 4 episodes terminate after exactly 5 steps" in said
    assert "add ,terminals=none,timeouts=dones" in said
    read(make_episodes(), ",terminals=none,timeouts=dones")
    assert capsys.readouterr().err == ""


def test_normalised_actions_in_a_larger_range_are_noticed_and_scaled(read, capsys):
    plain = ",terminals=none,timeouts=dones,low=-2,high=2"
    read(make_episodes(), plain)
    said = join_lines(capsys.readouterr().err)
    assert "the declared range is -2 to 2" in said and ",scale=2" in said
    data = read(make_episodes(), f"{plain},scale=2").transitions
    assert capsys.readouterr().err == ""
    np.testing.assert_allclose(data.actions[:, 0], 2 * np.sin(np.arange(20)), rtol=1e-6)
    assert data.action_space == Continuous((-2.0,), (2.0,))
    with pytest.raises(InputError, match="scale= has 3 numbers, but actions has 1 values"):
        read(make_episodes(), f"{plain},scale=1/2/3")


def test_actions_beyond_their_range_are_clipped_only_on_request(read, capsys):
    arrays = make_episodes(actions=np.linspace(-4, 4, 20)[:, None])
    with pytest.raises(InputError, match=r"so in 10 of 20 rows.*,clip=yes if the environment"):
        read(arrays, ",low=-2,high=2")
    data = read(arrays, ",low=-2,high=2,clip=yes,terminals=none").transitions
    assert data.actions.min() == -2 and data.actions.max() == 2
    assert "the actions of 10 of 20 rows were clipped" in join_lines(capsys.readouterr().err)
    with pytest.raises(InputError, match="clip=yes needs the range"):
        read(arrays, ",clip=yes")
    arrays["actions"][3] = 1000
    read(arrays)
    assert ",low=A,high=B,clip=yes" in join_lines(capsys.readouterr().err)


@pytest.mark.parametrize("how", ["indices", "flags", "ids"])
def test_observations_with_one_more_row_per_episode_are_paired(read, how):
    lengths = [3, 1, 4]
    rows, ends = sum(lengths), np.cumsum(lengths) - 1
    observations = np.concatenate([100 * e + np.arange(n + 1.0) for e, n in enumerate(lengths)])
    arrays = {"obs": observations, "acts": np.zeros((rows, 1)), "rews": np.zeros(rows)}
    if how == "indices":
        arrays |= {"indices": ends[:-1] + 1, "terminal": np.array([True, False, True])}
        arrays["infos"] = np.array([{}] * rows)
    elif how == "flags":
        arrays["truncated"] = np.isin(np.arange(rows), ends[:-1])
    else:
        arrays["episode_id"] = np.repeat([5, 2, 8], lengths)
    data = read(arrays).transitions
    assert [rows.stop - rows.start for rows in data.episode_slices] == lengths
    np.testing.assert_array_equal(data.states[:, 0], [0, 1, 2, 100, 200, 201, 202, 203])
    np.testing.assert_array_equal(data.next_states, data.states + 1)
    assert data.has_successor.all()
    if how == "indices":
        np.testing.assert_array_equal(np.flatnonzero(data.terminated), [2, 7])


def test_observations_that_cannot_be_paired_are_explained(read):
    arrays = make_episodes(new_obs=None, dones=None)
    arrays["obs"] = np.zeros((23, 2))
    with pytest.raises(InputError, match="mark the last step of the 3 episodes"):
        read(arrays)
    with pytest.raises(InputError, match=r"splits must list the first row .* below 20"):
        read({**arrays, "cuts": np.array([5, 30])}, ",splits=cuts")


def test_episodes_out_of_order_and_time_running_backwards_are_refused(read):
    ids = np.repeat([0, 1, 0, 1], STEPS)
    with pytest.raises(InputError, match="episode 0 continues in row 10 after other episodes"):
        read(make_episodes(episode=ids))
    times = np.tile(np.arange(5) * 0.1, 4)
    plain = make_episodes(new_obs=None, dones=None, time=times)
    with pytest.raises(InputError, match=r"time runs backwards after row 4, from 0.4 to 0"):
        read(plain)
    assert count_episodes(read(plain, ",gap=1")) == 4
    assert count_episodes(read(plain, ",time=none")) == 1
    assert count_episodes(read({**plain, "episode": np.repeat(range(4), STEPS)})) == 4


def test_gaps_in_time_end_episodes_or_are_noted(read, capsys):
    rows = np.arange(20)
    plain = make_episodes(new_obs=None, dones=None, clock=rows * 0.1 + 60.0 * (rows // STEPS))
    read(plain, ",time=clock")
    assert "time jumps in 3 places, the first after row 4 by 60.1 (usually 0.1); add ,gap=0.2" in (
        join_lines(capsys.readouterr().err)
    )
    assert count_episodes(read(plain, ",time=clock,gap=0.2")) == 4
    with pytest.raises(InputError, match="gap= needs a column of times"):
        read(plain, ",gap=1")


def test_patterns_choose_columns_and_a_wrong_name_is_corrected(read):
    arrays = {f"x{i}": np.arange(20.0) + i for i in (10, 9, 1)} | make_episodes(obs=None)
    dataset = read(arrays, ",observations=x*,next_observations=none")
    assert dataset.state_names == ("x1", "x10", "x9")
    dataset = read(arrays, ",observations=x9|x1,next_observations=none")
    assert dataset.state_names == ("x9", "x1")
    np.testing.assert_array_equal(dataset.transitions.states[0], [9, 1])
    assert dataset.columns["observations"] == ("x9", "x1")
    with pytest.raises(InputError, match=r"no column 'reward_'; did you mean rewards\?"):
        read(arrays, ",observations=x*,rewards=reward_")
    with pytest.raises(InputError, match=r"x1 has 19 rows, x9 20"):
        read({**arrays, "x1": np.zeros(19)}, ",observations=x9|x1")


def test_groups_and_numbered_columns_are_flattened_in_a_stable_order(tmp_path):
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        file["observations/speed"] = np.arange(4.0)
        file["observations/joints"] = np.arange(8.0).reshape(4, 2)
        file["action_10"], file["action_9"] = np.zeros(4), np.ones(4)
        file["rewards"] = np.zeros(4)
    dataset = gelato.load(f"file:{path}")
    assert dataset.state_names == (
        "observations/joints[0]",
        "observations/joints[1]",
        "observations/speed",
    )
    np.testing.assert_array_equal(dataset.transitions.states[1], [2, 3, 1])
    assert dataset.action_names == ("action_9", "action_10")
    with h5py.File(path, "a") as file:
        file["observations/camera"] = np.zeros((4, 64, 64, 3), np.uint8)
    with pytest.raises(
        InputError, match=r"camera holds images \(64×64×3\).*choose the other columns"
    ):
        gelato.load(f"file:{path}")


def test_a_dictionary_of_arrays_is_flattened_in_the_order_of_its_keys():
    nested = {"joints": {"speed": np.ones((4, 2)), "angle": np.zeros(4)}, "arm": np.full(4, 2.0)}
    dataset = gelato.make_dataset(nested, np.zeros((4, 1)), np.zeros(4))
    assert dataset.state_names == ("arm", "joints.angle", "joints.speed[0]", "joints.speed[1]")
    np.testing.assert_array_equal(dataset.transitions.states[0], [2, 0, 1, 1])
    for wrong, message in (
        ({}, "is an empty dictionary"),
        ({"a": np.zeros(4), "b": np.zeros(3)}, "b must have one row per step"),
        ({"camera": np.zeros((4, 64, 64, 9), np.uint8)}, "holds images"),
        ({"a": (frames := np.zeros((4, 64, 64), np.uint8)), "b": frames}, "several images"),
    ):
        with pytest.raises(InputError, match=message):
            gelato.make_dataset(wrong, np.zeros((4, 1)), np.zeros(4))
    with pytest.raises(InputError, match="other keys than observations"):
        gelato.make_dataset(
            nested, np.zeros((4, 1)), np.zeros(4), next_observations={"arm": np.zeros(4)}
        )


def test_a_mapping_file_holds_the_options(tmp_path, read):
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        'observations = ["obs"]\nterminals = "none"\ntimeouts = "dones"\nlow = -2\nhigh = [2]\n'
    )
    data = read(make_episodes(), f",mapping={mapping},high=3").transitions
    assert data.truncated.sum() == 4 and data.action_space == Continuous((-2.0,), (3.0,))
    for text, message in (
        ('reward = "steal.py"', "a mapping cannot name code"),
        ('observatoins = "x"', "unknown key 'observatoins'; did you mean observations"),
        ("low = {}", "low must be a text, a number, or a list"),
        ("= 3", "is not valid TOML"),
    ):
        mapping.write_text(text)
        with pytest.raises(InputError, match=message):
            read(make_episodes(), f",mapping={mapping}")
    with pytest.raises(InputError, match="cannot be read"):
        read(make_episodes(), ",mapping=absent.toml")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.pkl", b"\x80\x04", "a pickle can run any program"),
        ("log.json", b'{"type": "SampleBatch", "obs": "BCJN"}', "RLlib's JSON holds pickles"),
        ("log.json", b"[1, 2]", "JSON is not read"),
        ("log.csv", b"x\n1\n", "write csv:"),
        ("log.txt", b"x", "unknown file type .txt"),
    ],
)
def test_files_of_other_types_are_refused_with_the_way_to_convert_them(
    tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        gelato.load(f"file:{tmp_path / name}")


def test_a_real_rllib_log_has_its_thirty_episodes(realdata, capsys):
    path = realdata("rllib/pendulum_large.npz")
    flags = ",terminals=none,timeouts=dones"
    data = gelato.load(f"file:{path},low=-2,high=2,clip=yes{flags}").transitions
    assert len(data) == 6000 and len(data.episode_slices) == 30 and not data.terminated.any()
    capsys.readouterr()
    gelato.load(f"file:{path}")
    assert "all 30 episodes terminate after exactly 200 steps" in join_lines(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "episodes", "steps"), [("pendulum", 56, 11_200), ("cartpole", 57, 26_964)]
)
def test_real_imitation_files_are_read_as_they_are(realdata, name, episodes, steps):
    path = realdata(f"imitation/{name}.npz")
    data = gelato.load(f"file:{path}").transitions
    assert len(data) == steps and len(data.episode_slices) == episodes
    assert data.has_successor.all()
    with np.load(path) as file:
        parts = np.split(file["obs"], file["indices"] + np.arange(1, episodes))
    for rows, part in zip(data.episode_slices, parts, strict=True):
        np.testing.assert_array_equal(data.states[rows], part[:-1])
        np.testing.assert_array_equal(data.next_states[rows], part[1:])
