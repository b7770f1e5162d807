import gymnasium
import numpy as np
import pytest

from gelato.tasks import find_task, make_environment
from gelato.tasks.driving import DRIVING_TASKS, has_crashed

TASKS = {task.name: task for task in DRIVING_TASKS}

SPACES = {
    "highway": ((5, 5), 5),
    "highway-fast": ((5, 5), 5),
    "roundabout": ((5, 5), 5),
    "intersection": ((15, 7), 3),
    "intersection-hard": ((15, 7), 3),
    "racetrack": ((2, 12, 12), None),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_its_spaces_and_is_the_same_for_the_same_seed(name: str) -> None:
    environment = make_environment(TASKS[name].environment)
    shape, actions = SPACES[name]
    assert environment.observation_space.shape == shape
    assert getattr(environment.action_space, "n", None) == actions
    action = 1 if actions else np.array([0.1], np.float32)
    seen = [(environment.reset(seed=3)[0], environment.step(action)[0]) for _ in range(2)]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert find_task(TASKS[name].environment) is TASKS[name]


def test_the_hard_intersection_has_more_cars() -> None:
    cars = []
    for name in ("intersection", "intersection-hard"):
        environment = make_environment(TASKS[name].environment)
        environment.reset(seed=0)
        cars.append(len(environment.unwrapped.road.vehicles))
    assert (
        TASKS["intersection-hard"].options["initial_vehicle_count"] == 30
        and cars[1] > 1.5 * cars[0]
    )


def test_a_crash_and_the_road_left_are_told_from_time_that_ran_out() -> None:
    environment = make_environment(TASKS["racetrack"].environment)
    environment.reset(seed=0)
    ended, info = False, {}
    while not ended:
        *_, terminated, truncated, info = environment.step(np.array([1.0], np.float32))
        ended = terminated or truncated
    assert terminated and has_crashed(info)
    environment.reset(seed=0)
    assert not has_crashed(environment.step(np.array([0.0], np.float32))[-1])
    assert has_crashed({"crashed": True, "rewards": {"on_road_reward": 1.0}}) and not has_crashed(
        {}
    )


def test_gymnasium_knows_the_tasks() -> None:
    assert {task.environment for task in TASKS.values()} <= set(gymnasium.registry)


def test_only_our_driving_ids_drive_and_other_rewards_are_no_crash():
    assert find_task("gelato/Intersection-v0").has_crashed is has_crashed
    assert find_task("HighwayMaintenanceArm-v0") is None and find_task("intersection-v0") is None
    assert not has_crashed({"rewards": [1.0, 2.0]})
