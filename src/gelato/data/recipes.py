"""The named datasets, and how each one is made."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from gelato.errors import InputError
from gelato.tasks.driving import DRIVING_TASKS
from gelato.tasks.four_rooms import FOUR_ROOMS, FOUR_ROOMS_GOAL, Region
from gelato.tasks.pixels import HIGHWAY_GRAY, PENDULUM_PIXELS


@dataclass(frozen=True)
class Recipe:
    """The recipe of a named dataset: each policy contributes an equal part in the real environment.

    `size` counts transitions or whole episodes (`unit`). `episode_steps` is a time limit: with 1,
    each sample starts from a fresh state. Episodes that enter the `hole` of Four Rooms are dropped.
    """

    name: str
    environment: str
    policies: tuple[str, ...]
    size: int
    description: str
    unit: Literal["transitions", "episodes"] = "transitions"
    episode_steps: int | None = None
    hole: Region | None = None


def _locomotion(task: str, environment: str) -> tuple[Recipe, ...]:
    return (
        Recipe(f"{task}-random", environment, ("random",), 1_000_000, "uniform actions"),
        Recipe(
            f"{task}-medium", environment, (f"{task}-medium",), 1_000_000, "partly trained policy"
        ),
        Recipe(
            f"{task}-medium-expert",
            environment,
            (f"{task}-medium", f"{task}-expert"),
            2_000_000,
            "half partly trained, half expert",
        ),
    )


def _driving() -> tuple[Recipe, ...]:
    return tuple(
        Recipe(
            task.name, task.environment, (task.name,), 5, "partly trained driver", unit="episodes"
        )
        for task in DRIVING_TASKS
    )


def _pendulum() -> tuple[Recipe, ...]:
    """Return the same episodes, with the state and with images as observations."""
    policies, how = ("random", "pendulum-medium"), "half uniform actions, half partly trained"
    return (
        Recipe("pendulum", "Pendulum-v1", policies, 50_000, how),
        Recipe("pendulum-pixels", PENDULUM_PIXELS.environment, policies, 50_000, f"{how}; images"),
    )


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "four-rooms",
            FOUR_ROOMS.environment,
            ("random",),
            10_000,
            "random moves, random positions",
            episode_steps=1,
        ),
        Recipe(
            "four-rooms-hole",
            FOUR_ROOMS_GOAL.environment,
            ("random",),
            10_000,
            "random moves that never enter a region before the goal",
            episode_steps=1,
            hole=(4, 4, 6, 6),
        ),
        *_locomotion("hopper", "Hopper-v5"),
        *_locomotion("walker2d", "Walker2d-v5"),
        *_locomotion("halfcheetah", "HalfCheetah-v5"),
        *_pendulum(),
        *_driving(),
        Recipe(
            HIGHWAY_GRAY.name,
            HIGHWAY_GRAY.environment,
            ("highway-fast",),
            200,
            "partly trained driver; gray images",
            unit="episodes",
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe with this name, or raise an error that suggests a similar name."""
    if name in RECIPES:
        return RECIPES[name]
    near = get_close_matches(name, RECIPES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`gelato data list` shows the names."
    raise InputError(
        f"unknown dataset {name!r}; {hint} For a file, write file:PATH or d4rl:PATH; for a Minari "
        "dataset, minari:ID"
    )
