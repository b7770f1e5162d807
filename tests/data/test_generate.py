from importlib.resources import files

import gymnasium
import numpy as np
import pytest

from gelato.data.behaviour import load_policy
from gelato.data.generate import generate
from gelato.data.named import Named, resolve_named
from gelato.data.recipes import RECIPES, find_recipe
from gelato.data.sources import parse_reference
from gelato.errors import InputError
from gelato.tasks.four_rooms import FREE, encode_position, list_free_cells


def episodes_equal(first, second) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a.observations, b.observations)
        and np.array_equal(a.actions, b.actions)
        and np.array_equal(a.rewards, b.rewards)
        and a.terminated == b.terminated
        for a, b in zip(first, second)
    )


@pytest.mark.parametrize("name", ["four-rooms", "hopper-random", "walker2d-medium-expert"])
def test_the_number_of_workers_changes_nothing_and_the_seed_everything(name):
    recipe = RECIPES[name]
    alone = list(generate(recipe, 600, seed=1, workers=1))
    together = list(generate(recipe, 600, seed=1, workers=3))
    other = list(generate(recipe, 600, seed=2, workers=1))
    assert episodes_equal(alone, together)
    assert not episodes_equal(alone, other)


@pytest.mark.parametrize("transitions", [1, 7, 501])
def test_exactly_as_many_transitions_as_asked_for(transitions):
    assert (
        sum(map(len, generate(RECIPES["hopper-medium-expert"], transitions, seed=0, workers=1)))
        == transitions
    )


def test_medium_expert_is_half_and_half():
    recipe = RECIPES["hopper-medium-expert"]
    episodes = list(generate(recipe, 3001, seed=0, workers=1))
    medium = list(generate(RECIPES["hopper-medium"], 1500, seed=0, workers=1))
    assert episodes_equal(episodes[: len(medium)], medium)
    assert sum(map(len, episodes[len(medium) :])) == 1501


def test_only_a_fall_terminates_and_the_cut_episode_is_truncated():
    episodes = list(generate(RECIPES["hopper-medium"], 1000, seed=0, workers=1))
    assert all(episode.terminated for episode in episodes[:-1]) and not episodes[-1].terminated


def test_four_rooms_samples_start_from_every_free_cell_alike():
    episodes = list(generate(RECIPES["four-rooms"], 8200, seed=0, workers=1))
    assert {len(episode) for episode in episodes} == {1}
    starts = np.array([episode.observations[0] for episode in episodes])
    cells = encode_position(list_free_cells())
    counts = [(starts == cell).all(axis=1).sum() for cell in cells]
    assert len(counts) == FREE.sum() == 164 and sum(counts) == 8200
    assert all(abs(count - 50) < 5 * np.sqrt(50) for count in counts)
    actions = np.bincount([int(episode.actions[0]) for episode in episodes])
    assert all(abs(count - 2050) < 5 * np.sqrt(2050) for count in actions)


def test_a_behaviour_policy_is_the_tanh_gaussian_its_weights_describe():
    weights = np.load(files("gelato.data") / "policies" / "hopper-medium.npz")
    observation = np.linspace(-0.1, 0.1, 11)
    hidden = observation
    for layer in (0, 1):
        hidden = np.maximum(hidden @ weights[f"w{layer}"].astype(float) + weights[f"b{layer}"], 0)
    mean, log_std = np.split(hidden @ weights["w2"].astype(float) + weights["b2"], 2)
    policy = load_policy("hopper-medium", gymnasium.spaces.Box(-1, 1, (3,)))
    rng = np.random.default_rng(0)
    noise = np.arctanh(np.array([policy(observation, rng) for _ in range(4000)], float))
    np.testing.assert_allclose(
        noise.mean(axis=0), mean, atol=4 * np.exp(log_std).max() / np.sqrt(4000)
    )
    np.testing.assert_allclose(noise.std(axis=0), np.exp(log_std), rtol=0.06)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean walker2d-medium"):
        find_recipe("walker-medium")
    with pytest.raises(InputError, match="gelato data list"):
        find_recipe("zzz")


def test_driving_is_counted_in_whole_episodes() -> None:
    episodes = list(generate(RECIPES["roundabout"], 2, seed=0, workers=1))
    assert len(episodes) == 2 and all(
        episode.terminated or len(episode) == 11 for episode in episodes
    )
    assert episodes[0].observations.shape == (len(episodes[0]) + 1, 5, 5)
    assert resolve_named(parse_reference("roundabout,episodes=2,seed=1")) == Named(
        RECIPES["roundabout"], 2, 1
    )
    assert Named(RECIPES["roundabout"], 2, 1).reference == "roundabout,episodes=2,seed=1"


@pytest.mark.parametrize("wrong", ["roundabout,transitions=50", "hopper-medium,episodes=5"])
def test_the_wrong_unit_is_refused_with_the_right_one(wrong: str) -> None:
    with pytest.raises(InputError, match=r"has its size in (episodes|transitions). Write .*=N"):
        resolve_named(parse_reference(wrong))
