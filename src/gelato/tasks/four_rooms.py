"""The paper's grid world: 15×15 cells in four rooms, each with an obstacle in the middle.

An action is a direction. The agent moves 1, 2 or 3 cells, drawn uniformly, and stops at walls and
obstacles. The observation is the cell's position scaled to `[-1, 1]²`.
"""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int, Num, UInt8

from gelato.tasks.task import AbstractSimulator, Task, register_task

# The first row is at the top, and `#` is impassable. A room has 7×7 cells around a 3×3 obstacle.
# Four doors connect the rooms.
PLAN = """
.......#.......
.......#.......
..###..#..###..
..###.....###..
..###..#..###..
.......#.......
.......#.......
###.#######.###
.......#.......
.......#.......
..###..#..###..
..###.....###..
..###..#..###..
.......#.......
.......#.......
"""
FREE: Bool[np.ndarray, "15 15"] = np.array([[cell == "." for cell in row] for row in PLAN.split()])
SIZE = len(FREE)
ACTIONS = ("up", "down", "left", "right")
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
LONGEST_MOVE = 3

Cell = tuple[int, int]
# First row, first column, last row, last column.
Region = tuple[int, int, int, int]


def list_free_cells() -> Int[np.ndarray, "cells 2"]:
    """Return every free cell as `(row, column)`, in reading order."""
    return np.argwhere(FREE)


STATE_NAMES = ("x position", "y position")


def encode_position(cells: Int[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 2"]:
    """Return the observations `(x, y)` of cells, scaled to `[-1, 1]`; `y` points upwards."""
    half = (SIZE - 1) / 2
    return (np.stack([cells[..., 1] - half, half - cells[..., 0]], axis=-1) / half).astype(
        np.float32
    )


class FourRooms(gymnasium.Env[np.ndarray, int | np.int64]):
    """Four Rooms as a Gymnasium environment.

    Without a `goal`, as in the paper, the reward is 0 and only the time limit ends an episode. With
    a goal, the reward is 1 for every step that ends in the goal, and 0 otherwise. Reaching the goal
    terminates the episode, except with `continue_at_goal`. Episodes start in the region `starts`,
    or on any cell. `reset(options={"cell": (row, column)})` starts from this cell, and
    `reset(options={"anywhere": True})` from any cell.
    """

    metadata = {  # noqa: RUF012 - Gymnasium declares it as an instance variable
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }

    def __init__(
        self,
        render_mode: str | None = None,
        goal: Cell | Region | None = None,
        starts: Cell | Region | None = None,
        longest_move: int = LONGEST_MOVE,
        continue_at_goal: bool = False,
    ) -> None:
        goal, starts = _as_region(goal), _as_region(starts)
        for name, region in (("goal", goal), ("starts", starts)):
            if region is not None and not len(_cells_in(region)):
                raise ValueError(f"{name} {region} holds no free cell of Four Rooms")
        self._starts = list_free_cells() if starts is None else _cells_in(starts)
        self.render_mode, self.goal, self.longest_move, self.continue_at_goal = (
            render_mode,
            goal,
            longest_move,
            continue_at_goal,
        )
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.cell: Cell = (0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start from `options["cell"]`, or from a free cell drawn uniformly."""
        super().reset(seed=seed)
        cell = (options or {}).get("cell")
        if cell is None:
            cells = list_free_cells() if (options or {}).get("anywhere") else self._starts
            cell = cells[self.np_random.integers(len(cells))]
        elif not is_free(cell):
            raise ValueError(f"cell {tuple(cell)} is not a free cell of Four Rooms")
        self.cell = (int(cell[0]), int(cell[1]))
        return encode_position(np.array(self.cell)), {"cell": self.cell}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move 1 to `longest_move` cells in the chosen direction, but stop at an obstacle."""
        distance = int(self.np_random.integers(1, self.longest_move + 1))
        self.cell = move(self.cell, int(action), distance)
        reached = self.goal is not None and in_region(self.cell, self.goal)
        return (
            encode_position(np.array(self.cell)),
            float(reached),
            reached and not self.continue_at_goal,
            False,
            {"cell": self.cell},
        )

    def render(self) -> UInt8[np.ndarray, "height width 3"]:
        """Return an image with dark walls, light free cells, a green goal and an orange agent."""
        pixels_per_cell = 16
        image = np.where(FREE[..., None], np.array([240, 240, 235]), np.array([60, 60, 70])).astype(
            np.uint8
        )
        if self.goal is not None:
            top, left, bottom, right = self.goal
            image[top : bottom + 1, left : right + 1] = (60, 160, 90)
        image[self.cell] = (230, 120, 20)
        return image.repeat(pixels_per_cell, 0).repeat(pixels_per_cell, 1)


def move(cell: Cell, action: int, distance: int) -> Cell:
    """Return where a move ends: after `distance` cells, or before a wall, obstacle or edge."""
    row, column = cell
    down, right = _STEPS[action]
    for _ in range(distance):
        if not is_free((row + down, column + right)):
            break
        row, column = row + down, column + right
    return row, column


def find_cell(observation: Float[np.ndarray, " 2"]) -> Cell:
    """Return the cell that contains an observation."""
    half = (SIZE - 1) / 2
    return int(np.rint(half - observation[1] * half)), int(np.rint(observation[0] * half + half))


def in_region(cell: Cell | Int[np.ndarray, " 2"], region: Region) -> bool:
    """Return whether a cell lies in a region."""
    top, left, bottom, right = region
    return bool(top <= cell[0] <= bottom and left <= cell[1] <= right)


def _as_region(place: Cell | Region | None) -> Region | None:
    """Convert a cell to the region of this cell; return a region unchanged."""
    if place is None:
        return None
    return (*place, *place) if len(place) == 2 else place


def _cells_in(region: Region) -> Int[np.ndarray, "cells 2"]:
    cells = list_free_cells()
    return cells[[in_region(cell, region) for cell in cells]]


def is_free(cell: Cell) -> bool:
    """Return whether a cell is inside the plan and passable."""
    row, column = cell
    return 0 <= row < SIZE and 0 <= column < SIZE and bool(FREE[row, column])


class FourRoomsSimulator(AbstractSimulator):
    """A simulator that computes the exact mean over the possible lengths of a move."""

    state_size = 2

    def __init__(self, longest_move: int = LONGEST_MOVE) -> None:
        self._longest_move = longest_move

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """Return the mean next position, from the free cell that `state` lies in."""
        if not np.isfinite(state).all():
            return np.full(2, np.nan)
        cell = find_cell(state)
        if not is_free(cell):
            return np.full(2, np.nan)
        lengths = range(1, self._longest_move + 1)
        reached = [move(cell, int(action), distance) for distance in lengths]
        return encode_position(np.array(reached)).mean(axis=0)


FOUR_ROOMS = register_task(
    Task(
        "four-rooms",
        ("gelato/FourRooms-v0",),
        entry_point="gelato.tasks.four_rooms:FourRooms",
        steps=100,
        state_names=STATE_NAMES,
        make_simulator=FourRoomsSimulator,
        presets={
            "default": {
                "model": {
                    "latent_size": 2,
                    "hidden": (64, 64),
                    "forward_hidden": (64, 64),
                    "activation": "tanh",
                    "variance_centres": 200,
                    "batch_size": 128,
                    "updates": 10_000,
                    "variance_updates": 2_000,
                }
            },
            "paper": {"model": {"latent_size": 2}},
        },
    )
)

# The goal and the start are in different rooms, with a wall between them.
GOAL = (5, 8, 6, 10)
FOUR_ROOMS_GOAL = register_task(
    Task(
        "four-rooms-goal",
        ("gelato/FourRoomsGoal-v0",),
        entry_point="gelato.tasks.four_rooms:FourRooms",
        options={"goal": GOAL, "continue_at_goal": True, "starts": (5, 0, 6, 1), "longest_move": 1},
        steps=60,
        state_names=STATE_NAMES,
        make_simulator=partial(FourRoomsSimulator, longest_move=1),
        presets={
            "default": {
                "model": {
                    "latent_size": 2,
                    "decoders": 3,
                    "hidden": (64, 64),
                    "forward_hidden": (128, 128),
                    "activation": "tanh",
                    "input_scale": 6.0,
                    "kl_weight": 0.01,
                    "updates": 8_000,
                    "variance_updates": 1_000,
                },
                "latent": {"state_noise": 0.0},
                "ensemble": {"updates": 8_000, "hidden": (128, 128)},
                "sac": {
                    "hidden": (64, 64),
                    "actor_rate": 1e-3,
                    "critic_rate": 1e-3,
                    "discount": 0.98,
                    "target_rate": 0.01,
                    "initial_temperature": 0.1,
                    "batch_size": 128,
                    "updates": 12_000,
                    "epoch": 500,
                    "branches": 200,
                    "replay": 10_000,
                },
                "train": {"evaluations": 4, "episodes": 20},
            },
            # The default settings are already small.
            "small": {},
            "paper": {"model": {"latent_size": 2}},
        },
    )
)
