from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gelato  # noqa: F401 - registers the environment
from experiments.rooms import compute_walking_distances
from gelato.tasks.four_rooms import (
    FREE,
    SIZE,
    encode_position,
    list_free_cells,
    move,
)

WALL_SIDES = (6, 6), (6, 8)


def test_it_passes_gymnasiums_checks():
    check_env(gymnasium.make("gelato/FourRooms-v0", render_mode="rgb_array").unwrapped)


def test_the_plan_is_15_by_15_with_an_obstacle_in_each_room_and_four_doors():
    assert FREE.shape == (15, 15)
    for row, column in ((3, 3), (3, 11), (11, 3), (11, 11)):
        assert not FREE[row - 1 : row + 2, column - 1 : column + 2].any()
    assert FREE[7].sum() == 2 and FREE[:, 7].sum() == 2


def test_observations_are_positions_between_minus_one_and_one():
    positions = encode_position(list_free_cells())
    assert positions.min() == -1 and positions.max() == 1
    np.testing.assert_array_equal(encode_position(np.array([0, 14])), [1, 1])


def test_a_move_stops_at_what_it_hits():
    assert move((6, 6), 3, 3) == (6, 6), "the wall to the right"
    assert move((3, 0), 3, 3) == (3, 1), "the obstacle two cells on"
    assert move((0, 1), 2, 3) == (0, 0), "the edge"
    assert move((3, 6), 3, 3) == (3, 9), "through the door"


def test_moves_are_one_two_or_three_cells_uniformly():
    environment = gymnasium.make("gelato/FourRooms-v0")
    environment.reset(seed=0)
    lengths: Counter[int] = Counter()
    for _ in range(3000):
        environment.reset(options={"cell": (0, 0)})
        *_, info = environment.step(3)
        lengths[info["cell"][1]] += 1
    assert set(lengths) == {1, 2, 3}
    assert all(abs(count - 1000) < 4 * np.sqrt(3000 * 2 / 9) for count in lengths.values())


def test_walks_go_around_walls_and_obstacles():
    cells = [tuple(cell) for cell in list_free_cells().tolist()]

    def measure_walk(start, end):
        return compute_walking_distances()[cells.index(start), cells.index(end)]

    assert measure_walk((0, 0), (0, 6)) == 6
    assert measure_walk((3, 1), (3, 5)) == 8, "around the obstacle: two more rows each way"
    assert measure_walk(*WALL_SIDES) == 3 + 2 + 3, "through the door in row 3"


def test_walking_distance_is_a_metric_that_agrees_with_brute_force():
    distances = compute_walking_distances()
    cells = [tuple(cell) for cell in list_free_cells().tolist()]
    assert (
        np.isfinite(distances).all()
        and (distances == distances.T).all()
        and (np.diag(distances) == 0).all()
    )
    start, reached, frontier = cells[0], {cells[0]: 0}, [cells[0]]
    while frontier:
        row, column = frontier.pop(0)
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= cell[0] < SIZE and 0 <= cell[1] < SIZE
            if inside and FREE[cell] and cell not in reached:
                reached[cell] = reached[row, column] + 1
                frontier.append(cell)
    np.testing.assert_array_equal(distances[cells.index(start)], [reached[cell] for cell in cells])


def test_reaching_the_goal_pays_and_terminates():
    environment = gymnasium.make("gelato/FourRooms-v0", goal=(0, 3, 0, 3))
    environment.reset(seed=0, options={"cell": (0, 0)})
    outcomes = set()
    for _ in range(40):
        environment.reset(options={"cell": (0, 0)})
        _, reward, terminated, _, info = environment.step(3)
        outcomes.add((info["cell"] == (0, 3), reward, terminated))
    assert outcomes == {(True, 1.0, True), (False, 0.0, False)}


def test_the_goal_task_pays_for_every_step_at_the_goal_and_starts_where_it_should():
    environment = gymnasium.make("gelato/FourRoomsGoal-v0")
    starts = {environment.reset(seed=seed)[1]["cell"] for seed in range(40)}
    assert starts == {(5, 0), (5, 1), (6, 0), (6, 1)}
    environment.reset(options={"cell": (4, 8)})
    outcomes = [environment.step(action)[1:3] for action in (1, 1, 1, 0, 0)]
    assert outcomes == [(1.0, False), (1.0, False), (1.0, False), (1.0, False), (0.0, False)]


def test_rendering_shows_the_agent():
    environment = gymnasium.make("gelato/FourRooms-v0", render_mode="rgb_array")
    environment.reset(seed=0, options={"cell": (0, 0)})
    image = environment.render()
    assert image.shape == (240, 240, 3) and tuple(image[0, 0]) == (230, 120, 20)


@pytest.mark.parametrize("cell", [(7, 7), (3, 3), (15, 0)])
def test_a_start_or_goal_inside_a_wall_is_refused(cell):
    with pytest.raises(ValueError, match="holds no free cell"):
        gymnasium.make("gelato/FourRooms-v0", goal=(*cell, *cell))
    with pytest.raises(ValueError, match="not a free cell"):
        gymnasium.make("gelato/FourRooms-v0").reset(options={"cell": cell})


def test_a_goal_may_be_a_cell_or_a_region():
    cell = gymnasium.make("gelato/FourRooms-v0", goal=(0, 3)).unwrapped
    region = gymnasium.make("gelato/FourRooms-v0", goal=(0, 3, 0, 3)).unwrapped
    assert cell.goal == region.goal == (0, 3, 0, 3)
