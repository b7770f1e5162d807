import gymnasium
import numpy as np
import pytest

import gelato
from gelato.errors import InputError
from gelato.tasks.environments import make_environment
from gelato.tasks.partial import find_view
from gelato.tasks.task import find_task, find_termination_rule

WHOLE = {
    "hopper": ("Hopper-v5", 5),
    "walker2d": ("Walker2d-v5", 8),
    "halfcheetah": ("HalfCheetah-v5", 8),
}


@pytest.mark.parametrize("name", WHOLE)
def test_positions_are_the_observation_without_velocities(name: str) -> None:
    whole, positions = WHOLE[name]
    view = find_view(whole, "positions", name)
    full, partial = gymnasium.make(whole), make_environment(view.environment)
    state, seen = full.reset(seed=3)[0], partial.reset(seed=3)[0]
    np.testing.assert_array_equal(seen, state[:positions])
    action = full.action_space.sample()
    state, reward, *_ = full.step(action)
    seen, other, *_ = partial.step(action)
    np.testing.assert_array_equal(seen, state[:positions])
    assert reward == other
    task = find_task(view.environment)
    assert task is not None and all("speed" not in each for each in task.state_names)
    assert find_termination_rule(view.environment, positions) is not None
    assert task.reference_returns == find_task(whole).reference_returns  # type: ignore[union-attr]


def test_highway_hides_the_speeds_of_other_cars_only() -> None:
    view = find_view("gelato/HighwayFast-v0", "positions", "highway-fast")
    full = make_environment("gelato/HighwayFast-v0")
    partial = make_environment(view.environment)
    state, seen = full.reset(seed=1)[0], partial.reset(seed=1)[0]
    assert seen.shape == (17,)
    np.testing.assert_array_equal(seen[:5], state[0])
    np.testing.assert_array_equal(seen[5:].reshape(4, 3), state[1:, :3])


def test_data_loses_the_hidden_columns_and_nothing_else() -> None:
    whole = gelato.load("hopper-random,transitions=300")
    shown = gelato.load("hopper-random,transitions=300,observe=positions,history=2")
    assert shown.reference.endswith(",observe=positions,history=2")
    assert shown.environment == "gelato/HopperPositions-v0"
    one, other = whole.transitions, shown.transitions
    np.testing.assert_array_equal(other.states, np.asarray(one.states)[:, :5])
    np.testing.assert_array_equal(other.next_states, np.asarray(one.next_states)[:, :5])
    np.testing.assert_array_equal(other.actions, one.actions)
    assert gelato.load(shown.reference).transitions.fingerprint() == other.fingerprint()


def test_an_unknown_view_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="no view observe=velocities; it has observe=positions"):
        gelato.load("hopper-random,transitions=300,observe=velocities")
    with pytest.raises(InputError, match=r"these have: .*Hopper"):
        gelato.load("four-rooms,observe=positions")
