"""The paper's grid world: 15×15 cells, four rooms, an impassable obstacle in the middle of each.

An action picks a direction; the move is 1, 2 or 3 cells, uniformly, and stops at what it hits. The observation is the
cell's position scaled to `[-1, 1]²`. `land_distances` is the yardstick for the learned geometry: how far apart two
cells are on foot.
"""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

# Rows run downwards. `#` is impassable; a room is 7×7 cells around its 3×3 obstacle, and four doors join the rooms.
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


def free_cells() -> Int[np.ndarray, "cells 2"]:
    """Every free cell as `(row, column)`, in reading order."""
    return np.argwhere(FREE)


def position(cells: Int[np.ndarray, "*batch 2"]) -> Float[np.ndarray, "*batch 2"]:
    """The observation `(x, y)` of cells: columns and rows scaled to `[-1, 1]`, `y` upwards."""
    half = (SIZE - 1) / 2
    return (np.stack([cells[..., 1] - half, half - cells[..., 0]], axis=-1) / half).astype(np.float32)


@cache
def land_distances() -> Float[np.ndarray, "cells cells"]:
    """Steps of one cell on the shortest walk between any two free cells, in the order of `free_cells`."""
    # Here, since workers that only step simulators import this module and need no SciPy.
    from scipy.sparse.csgraph import shortest_path

    cells = free_cells()
    neighbours = np.abs(cells[:, None] - cells[None]).sum(-1) == 1
    return shortest_path(neighbours, unweighted=True)


def land_distance(a: Cell, b: Cell) -> int:
    """Steps of one cell on the shortest walk from `a` to `b` that passes no wall and no obstacle."""
    index = {tuple(cell): i for i, cell in enumerate(free_cells().tolist())}
    for cell in (a, b):
        if tuple(cell) not in index:
            raise ValueError(f"cell {tuple(cell)} is not a free cell of Four Rooms")
    return int(land_distances()[index[tuple(a)], index[tuple(b)]])


class FourRooms(gymnasium.Env[np.ndarray, int | np.int64]):
    """Four Rooms as a Gymnasium environment.

    Without a `goal`, as in the paper, the reward is 0 and only the time limit ends an episode. Reaching a cell of the
    goal pays 1 and terminates, or, with `stay`, pays 1 at every step there. Episodes start in the region `starts`, or
    on any cell. `reset(options={"cell": (row, column)})` starts from that one, `options={"anywhere": True}` from any.
    """

    metadata = {  # noqa: RUF012 - Gymnasium declares it as an instance variable
        "render_modes": ["rgb_array"],
        "render_fps": 8,
    }

    def __init__(
        self,
        render_mode: str | None = None,
        goal: Region | None = None,
        starts: Region | None = None,
        longest_move: int = LONGEST_MOVE,
        stay: bool = False,
    ) -> None:
        for name, region in (("goal", goal), ("starts", starts)):
            if region is not None and not len(_cells_in(region)):
                raise ValueError(f"{name} {region} holds no free cell of Four Rooms")
        self._starts = free_cells() if starts is None else _cells_in(starts)
        self.render_mode, self.goal, self.longest_move, self.stay = render_mode, goal, longest_move, stay
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.cell: Cell = (0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start from a uniformly drawn free cell, or from `options["cell"]`."""
        super().reset(seed=seed)
        cell = (options or {}).get("cell")
        if cell is None:
            cells = free_cells() if (options or {}).get("anywhere") else self._starts
            cell = cells[self.np_random.integers(len(cells))]
        elif not is_free(cell):
            raise ValueError(f"cell {tuple(cell)} is not a free cell of Four Rooms")
        self.cell = (int(cell[0]), int(cell[1]))
        return position(np.array(self.cell)), {"cell": self.cell}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move 1 to `longest_move` cells in the chosen direction, as far as the way is free."""
        distance = int(self.np_random.integers(1, self.longest_move + 1))
        self.cell = move(self.cell, int(action), distance)
        reached = self.goal is not None and in_region(self.cell, self.goal)
        return position(np.array(self.cell)), float(reached), reached and not self.stay, False, {"cell": self.cell}

    def render(self) -> UInt8[np.ndarray, "height width 3"]:
        """The room plan as an image: walls dark, free cells light, the goal green, the agent orange."""
        pixels_per_cell = 16
        image = np.where(FREE[..., None], np.array([240, 240, 235]), np.array([60, 60, 70])).astype(np.uint8)
        if self.goal is not None:
            top, left, bottom, right = self.goal
            image[top : bottom + 1, left : right + 1] = (60, 160, 90)
        image[self.cell] = (230, 120, 20)
        return image.repeat(pixels_per_cell, 0).repeat(pixels_per_cell, 1)


def move(cell: Cell, action: int, distance: int) -> Cell:
    """Where a move of `distance` cells from `cell` ends: before the first wall, obstacle or edge."""
    row, column = cell
    down, right = _STEPS[action]
    for _ in range(distance):
        if not is_free((row + down, column + right)):
            break
        row, column = row + down, column + right
    return row, column


def cell_at(observation: Float[np.ndarray, " 2"]) -> Cell:
    """The cell an observation lies in."""
    half = (SIZE - 1) / 2
    return int(np.rint(half - observation[1] * half)), int(np.rint(observation[0] * half + half))


def in_region(cell: Cell | Int[np.ndarray, " 2"], region: Region) -> bool:
    """Whether a cell lies in a region."""
    top, left, bottom, right = region
    return bool(top <= cell[0] <= bottom and left <= cell[1] <= right)


def _cells_in(region: Region) -> Int[np.ndarray, "cells 2"]:
    cells = free_cells()
    return cells[[in_region(cell, region) for cell in cells]]


def is_free(cell: Cell) -> bool:
    """Whether a cell is inside the plan and passable."""
    row, column = cell
    return 0 <= row < SIZE and 0 <= column < SIZE and bool(FREE[row, column])
