import json
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import h5py
import jax
import minari
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari.data_collector import EpisodeBuffer

from gelato.data import store as minari_store
from gelato.data.minari_episodes import read_episodes
from gelato.data.named import Named, make_named, resolve_named
from gelato.data.recipes import RECIPES
from gelato.data.reference import load
from gelato.data.sources import parse_reference
from gelato.data.spaces import Continuous, Discrete
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.model.split import split_dataset


def plain_minari(dataset_id: str, episodes: list[EpisodeBuffer], **spaces: gymnasium.Space) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(dataset_id, episodes, **spaces)


def buffer(steps: int, terminated: bool, *, actions: np.ndarray, observations) -> EpisodeBuffer:
    last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=np.ones(steps),
        terminations=last & terminated,
        truncations=last & (not terminated),
    )


def test_a_dataset_made_here_opens_in_plain_minari_and_says_the_same(store):
    make_named(Named(RECIPES["hopper-medium"], 700), workers=1)
    script = (
        "import minari, json;"
        "d = minari.load_dataset('gelato/hopper-medium-700-seed0-v0');"
        "e = [x for x in d.iterate_episodes()];"
        "total = sum(float(x.rewards.sum()) for x in e);"
        "print(json.dumps([d.total_steps, d.env_spec.id, total, str(d[0])]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    steps, environment, total_reward, _ = json.loads(answer.stdout)
    ours = load("hopper-medium,transitions=700").transitions
    assert (steps, environment) == (700, "Hopper-v5")
    assert total_reward == pytest.approx(float(ours.rewards.sum()), rel=1e-5)
    assert list(minari.list_local_datasets()) == ["gelato/hopper-medium-700-seed0-v0"]


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    episodes=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8),
    discrete=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    number=st.integers(0, 10**9),
)
def test_a_dataset_made_with_plain_minari_opens_here(store, episodes, discrete, dtype, number):
    rng = np.random.default_rng(number)
    recorded = [
        buffer(
            steps,
            terminated,
            observations=rng.normal(size=(steps + 1, 2, 3)).astype(dtype),
            actions=rng.integers(2, 5, steps)
            if discrete
            else rng.uniform(-2, 2, (steps, 2)).astype(np.float32),
        )
        for steps, terminated in episodes
    ]
    dataset_id = f"other/log{number}x{len(list(Path(store).glob('other/*')))}-v0"
    plain_minari(
        dataset_id,
        recorded,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (2, 3), dtype),
        action_space=gymnasium.spaces.Discrete(3, start=2)
        if discrete
        else gymnasium.spaces.Box(-2, 2, (2,)),
    )
    data = load(f"minari:{dataset_id}").transitions
    assert [rows.stop - rows.start for rows in data.episode_slices] == [
        steps for steps, _ in episodes
    ]
    assert [bool(data.terminated[rows.stop - 1]) for rows in data.episode_slices] == [
        fell for _, fell in episodes
    ]
    observations = np.concatenate([episode.observations[:-1] for episode in recorded]).astype(
        np.float32
    )
    successors = np.concatenate([episode.observations[1:] for episode in recorded]).astype(
        np.float32
    )
    np.testing.assert_array_equal(data.states, observations.reshape(-1, 6))
    np.testing.assert_array_equal(data.next_states, successors.reshape(-1, 6))
    assert data.observation_shape == (2, 3)
    if discrete:
        assert data.action_space == Discrete(3)
        np.testing.assert_array_equal(
            data.actions, np.concatenate([episode.actions for episode in recorded]) - 2
        )
    else:
        assert data.action_space == Continuous((-2.0, -2.0), (2.0, 2.0))


def test_dictionary_observations_are_laid_side_by_side(store):
    space = gymnasium.spaces.Dict(
        {"goal": gymnasium.spaces.Box(-1, 1, (2,)), "phase": gymnasium.spaces.Discrete(3)}
    )
    observations = {"goal": np.full((3, 2), 0.5, np.float32), "phase": np.array([0, 1, 2])}
    episode = buffer(2, True, observations=observations, actions=np.zeros((2, 1), np.float32))
    plain_minari(
        "other/dict-v0",
        [episode],
        observation_space=space,
        action_space=gymnasium.spaces.Box(-1, 1, (1,)),
    )
    dataset = load("minari:other/dict-v0")
    data = dataset.transitions
    assert dataset.state_names == ("goal[0]", "goal[1]", "phase[0]", "phase[1]", "phase[2]")
    np.testing.assert_array_equal(data.states, [[0.5, 0.5, 1, 0, 0], [0.5, 0.5, 0, 1, 0]])


def test_episodes_are_read_as_minari_reads_them(store):
    point = gymnasium.spaces.Box(-1, 1, (2,))
    pair = gymnasium.spaces.Tuple((point, gymnasium.spaces.Discrete(3)))
    space = gymnasium.spaces.Dict({"pair": pair, "flags": gymnasium.spaces.MultiBinary(2)})
    rng = np.random.default_rng(0)
    recorded = [
        buffer(
            steps,
            True,
            observations={
                "pair": (rng.standard_normal((steps + 1, 2)), np.arange(steps + 1) % 3),
                "flags": rng.integers(0, 2, (steps + 1, 2)),
            },
            actions=rng.standard_normal((steps, 1)).astype(np.float32),
        )
        for steps in (3, 1, 2)
    ]
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    plain_minari("other/deep-v0", recorded, observation_space=space, action_space=action_space)
    dataset = minari.MinariDataset(minari_store.store_root() / "other/deep-v0/data")
    ours, theirs = list(read_episodes(dataset)), list(dataset.iterate_episodes())
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        for field in ("observations", "actions", "rewards", "terminations", "truncations"):
            values, expected = getattr(one, field), getattr(other, field)
            jax.tree.map(np.testing.assert_array_equal, values, expected)
            types = [jax.tree.map(lambda array: array.dtype, each) for each in (values, expected)]
            assert types[0] == types[1]


def test_a_dataset_of_an_environment_that_is_not_installed_opens(store):
    space = gymnasium.spaces.Box(-1, 1, (1,))
    episode = buffer(
        2, False, observations=np.zeros((3, 1), np.float32), actions=np.zeros((2, 1), np.float32)
    )
    plain_minari("other/absent-v0", [episode], observation_space=space, action_space=space)
    metadata = store / "other/absent-v0/data/metadata.json"
    spec = gymnasium.spec("Hopper-v5").to_json().replace("Hopper-v5", "absent/Robot-v3")
    record = json.loads(metadata.read_text()) | {"env_spec": spec}
    metadata.write_text(json.dumps(record))
    assert load("minari:other/absent-v0").environment == "absent/Robot-v3"


def test_an_imported_file_comes_back_as_a_minari_dataset(store, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "log.npz",
        obs=rng.normal(size=(9, 2)),
        actions=rng.uniform(-3, 3, (9, 1)),
        rewards=rng.normal(size=9),
        terminals=np.arange(9) % 3 == 2,
    )
    source = load(f"file:{tmp_path / 'log.npz'},low=-3,high=3")
    written = minari_store.write_transitions("mine/log-v0", source, description="a log")
    back = load("minari:mine/log-v0").transitions
    assert len(written) == 6 and back.fingerprint() == written.fingerprint()
    assert minari.load_dataset("mine/log-v0").total_episodes == 3


def test_many_episodes_are_read_from_the_flat_copy_and_a_changed_dataset_is_read_anew(store):
    make_named(Named(RECIPES["four-rooms"], 600), workers=1)
    copy = store / "gelato/four-rooms-600-seed0-v0/.gelato/transitions.npz"
    assert copy.exists()
    fresh = load("four-rooms,transitions=600").transitions
    main = copy.parents[1] / "data/main_data.hdf5"
    copy.write_bytes(b"damaged")
    assert load("four-rooms,transitions=600").transitions.fingerprint() == fresh.fingerprint()
    assert copy.read_bytes()[:2] == b"PK", "the damaged copy was replaced"
    with h5py.File(main, "a") as file:
        file["episode_0/observations"][...] = 0.25
    assert load("four-rooms,transitions=600").transitions.states[0, 0] == 0.25


def test_a_failure_in_the_middle_leaves_nothing_behind(store):
    def episodes():
        from gelato.data.generate import generate

        yield from generate(RECIPES["hopper-random"], 50, seed=0, workers=1)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        minari_store.write("gelato/broken-v0", episodes(), 100, env="Hopper-v5")
    assert not list(store.iterdir()) and not minari.list_local_datasets()


def test_a_damaged_or_absent_dataset_is_named(store):
    make_named(Named(RECIPES["four-rooms"], 10), workers=1)
    main = store / "gelato/four-rooms-10-seed0-v0/data/main_data.hdf5"
    main.write_bytes(main.read_bytes()[:100])
    with pytest.raises(InputError, match="minari:gelato/four-rooms-10-seed0-v0"):
        load("minari:gelato/four-rooms-10-seed0-v0")


def test_a_plain_name_means_the_largest_made_before_the_default_if_it_is_there(store):
    for transitions, seed in ((20, 0), (30, 2), (30, 1)):
        make_named(Named(RECIPES["hopper-random"], transitions, seed), workers=1)
    assert resolve_named(parse_reference("hopper-random")) == Named(RECIPES["hopper-random"], 30, 1)
    assert resolve_named(parse_reference("hopper-random,seed=2,transitions=30")) == Named(
        RECIPES["hopper-random"], 30, 2
    )
    assert resolve_named(parse_reference("walker2d-random")) == Named(
        RECIPES["walker2d-random"], 1_000_000
    )
    assert load("hopper-random").reference == "hopper-random,transitions=30,seed=1"


def test_a_folder_that_is_no_dataset_does_not_stand_in_the_way(store):
    (store / "gelato/four-rooms-7-seed0-v0").mkdir(parents=True)
    make_named(Named(RECIPES["four-rooms"], 7), workers=1)
    assert len(load("four-rooms,transitions=7").transitions) == 7


def test_an_import_keeps_the_environment_and_a_path_may_hold_commas(store, tmp_path):
    dataset = load("hopper-random,transitions=30")
    minari_store.write_transitions("mine/hopper-v0", dataset, description="a copy")
    again = load("minari:mine/hopper-v0")
    assert (
        again.environment == "Hopper-v5"
        and again.transitions.fingerprint() == dataset.transitions.fingerprint()
    )
    path = tmp_path / "a, b=c.npz"
    np.savez(path, obs=np.zeros((3, 1)), actions=np.zeros((3, 1)), rewards=np.zeros(3))
    assert load(f"file:{path},low=-2,high=2").transitions.action_space == Continuous(
        (-2.0,), (2.0,)
    )


BOX = gymnasium.spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"actions": np.zeros((1, 1), np.float32)},
            r"episode 0: actions has shape \(1, 1\), it must have \(2, 1\)",
        ),
        (
            {"observations": np.zeros((3, 2), np.float32)},
            r"episode 0: observations has shape \(3, 2\)",
        ),
        ({"rewards": np.zeros((2, 3))}, r"episode 0: rewards has shape \(2, 3\)"),
        ({"terminations": np.array([0.0, 7.0])}, "terminals holds 7.0 in row 1"),
        ({"rewards": np.array([0.0, np.nan])}, "rewards holds nan in row 1"),
    ],
)
def test_a_minari_episode_that_does_not_fit_is_named(store, change, message):
    fields = {
        "observations": np.zeros((3, 1), np.float32),
        "actions": np.zeros((2, 1), np.float32),
        "rewards": np.ones(2),
        "terminations": np.array([False, True]),
        "truncations": np.zeros(2, bool),
    }
    plain_minari(
        "other/bad-v0",
        [EpisodeBuffer(**(fields | change))],
        observation_space=BOX,
        action_space=BOX,
    )
    with pytest.raises(InputError, match=message):
        load("minari:other/bad-v0")


def test_discrete_actions_that_are_no_whole_numbers_are_refused(store):
    episode = buffer(
        2, True, observations=np.zeros((3, 1), np.float32), actions=np.array([1.7, 0.0])
    )
    plain_minari(
        "other/odd-v0", [episode], observation_space=BOX, action_space=gymnasium.spaces.Discrete(3)
    )
    with pytest.raises(InputError, match=r"actions holds 1.7 in row 0"):
        load("minari:other/odd-v0")


def test_several_choices_as_observation_are_one_hot_each(store):
    space = gymnasium.spaces.MultiDiscrete([2, 3])
    episode = buffer(
        1, True, observations=np.array([[0, 2], [1, 0]]), actions=np.zeros((1, 1), np.float32)
    )
    plain_minari("other/multi-v0", [episode], observation_space=space, action_space=BOX)
    np.testing.assert_array_equal(
        load("minari:other/multi-v0").transitions.states, [[1, 0, 0, 0, 1]]
    )


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("hopper-random,transitions=0", "transitions=0 must be a whole number of at least 1"),
        ("hopper-random,seed=-1", "seed=-1 must be a whole number"),
        ("hopper-random,size=3", "unknown option 'size=3'"),
        ("hopper-random,sed=3", "unknown option 'sed=3'; did you mean seed"),
        ("file:", "is not a reference to data"),
        (
            "file:x.npz,observation=obs",
            "unknown option 'observation=obs'; did you mean observations",
        ),
        ("file:x.npz,transitions=5", "unknown option 'transitions=5'; file: takes observations"),
        ("minari:a/b-v0,seed=1", "unknown option 'seed=1'; minari: takes reward"),
        ("log.npz,low=1", "for a file write file:log.npz,low=1"),
        ("file:x.npz,low=1", "needs both low= and high="),
        ("file:x.npz,low=1,high=0", "must lie below high=0"),
        ("file:x.npz,discrete=one", "must be the number of actions"),
        ("minari:not a name-v0", "minari:not a name-v0"),
        ("minari:gelato/four-rooms", "ends in its version"),
        ("hopper-random,transitions=²", "must be a whole number"),
        ("d4rl:absent.hdf5", "absent.hdf5: no such file"),
    ],
)
def test_a_bad_reference_is_refused_in_one_line(store, reference, message):
    with pytest.raises(InputError, match=message) as error:
        load(reference)
    assert "\n" not in str(error.value)


def test_a_file_can_be_told_its_environment_and_box_of_actions(tmp_path):
    columns = {
        "obs": np.zeros((4, 3)),
        "actions": np.linspace(-1, 1, 4)[:, None],
        "rewards": np.arange(4.0),
    }
    np.savez(tmp_path / "log, of=mine.npz", **columns)
    dataset = load(f"file:{tmp_path}/log, of=mine.npz,low=-2,high=2,environment=Pendulum-v1")
    assert dataset.environment == "Pendulum-v1"
    assert dataset.transitions.action_space == Continuous((-2.0,), (2.0,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_halfcheetah_transitions_take_at_most_two_and_a_half_times_their_bytes(
    store, tmp_path, dtype
):
    """Measure in a new process, on files of a tenth of the size. Only the ratio matters."""
    n = 200_000
    with h5py.File(tmp_path / "halfcheetah.hdf5", "w") as file:
        for name, shape in {
            "observations": (n, 17),
            "next_observations": (n, 17),
            "actions": (n, 6),
        }.items():
            file[name] = np.zeros(shape, dtype)
        file["rewards"] = np.zeros(n, dtype)
        file["terminals"] = np.zeros(n, bool)
        file["timeouts"] = np.arange(n) % 1000 == 999
    script = f"""
import tracemalloc
from gelato import load
load("d4rl:{tmp_path}/halfcheetah.hdf5")
tracemalloc.start()
data = load("d4rl:{tmp_path}/halfcheetah.hdf5").transitions
print(tracemalloc.get_traced_memory()[1] / data.nbytes)
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert float(answer.stdout) <= 2.5


def test_datasets_keep_their_provenance(store):
    dataset = load("four-rooms,transitions=5,seed=3")
    assert isinstance(dataset, Dataset)
    assert (dataset.reference, dataset.environment) == (
        "four-rooms,transitions=5,seed=3",
        "gelato/FourRooms-v0",
    )


def test_a_range_of_actions_is_that_of_every_dimension_and_in_the_precision_of_the_data(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, observations=np.zeros((4, 1)), actions=np.full((4, 2), 0.4), rewards=np.zeros(4))
    for reference in ("low=-0.4,high=0.4", "low=-0.4/-0.4,high=0.4/0.4"):
        transitions = load(f"file:{path},{reference}").transitions
        space = gymnasium.spaces.Box(-0.4, 0.4, (2,))
        assert transitions.action_space == Continuous(
            tuple(map(float, space.low)), tuple(map(float, space.high))
        )
        assert (np.asarray(transitions.actions) <= transitions.action_space.high).all()
    with pytest.raises(InputError, match="in row 0, column 0, outside the space"):
        load(f"file:{path},low=-1e-6,high=1e-6")


def test_an_action_that_is_always_large_has_room(tmp_path):
    np.savez(
        tmp_path / "log.npz",
        observations=np.zeros((4, 1)),
        actions=np.full((4, 1), 1e8),
        rewards=np.zeros(4),
    )
    space = load(f"file:{tmp_path / 'log.npz'}").transitions.action_space
    assert np.float32(space.low[0]) < np.float32(1e8) < np.float32(space.high[0])


def test_data_without_any_successor_is_refused(tmp_path):
    columns = {
        "observations": np.arange(4.0)[:, None],
        "actions": np.zeros((4, 1)),
        "rewards": np.zeros(4),
    }
    np.savez(tmp_path / "log.npz", **columns, terminals=np.ones(4))
    dataset = load(f"file:{tmp_path / 'log.npz'}")
    with pytest.raises(InputError, match="no step has a successor"):
        split_dataset(dataset)


def test_a_file_is_known_by_its_whole_path(tmp_path, monkeypatch):
    np.savez(
        tmp_path / "log.npz",
        observations=np.zeros((4, 1)),
        actions=np.zeros((4, 1)),
        rewards=np.zeros(4),
    )
    monkeypatch.chdir(tmp_path)
    assert (
        load("file:log.npz,low=-1,high=1").reference == f"file:{tmp_path / 'log.npz'},low=-1,high=1"
    )
