"""The datasets that have a name, and how each is made."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from gelato.envs import FOUR_ROOMS, FOUR_ROOMS_GOAL
from gelato.envs.driving import TASKS
from gelato.envs.four_rooms import Region
from gelato.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """So many transitions or whole episodes in `environment`, an equal share from each policy.

    `episode_steps` cuts every episode after so many steps: with 1, each sample starts from a fresh state. No episode
    that enters the `hole` (of Four Rooms) is kept.
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
        Recipe(f"{task}-medium", environment, (f"{task}-medium",), 1_000_000, "partly trained policy"),
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
        Recipe(task.name, task.environment, (task.name,), 5, "partly trained driver", unit="episodes")
        for task in TASKS.values()
    )


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("four-rooms", FOUR_ROOMS, ("random",), 10_000, "random moves, random positions", episode_steps=1),
        Recipe(
            "four-rooms-hole",
            FOUR_ROOMS_GOAL,
            ("random",),
            10_000,
            "random moves towards nothing, a stretch before the goal never seen",
            episode_steps=1,
            hole=(4, 4, 6, 6),
        ),
        *_locomotion("hopper", "Hopper-v5"),
        *_locomotion("walker2d", "Walker2d-v5"),
        *_locomotion("halfcheetah", "HalfCheetah-v5"),
        *_driving(),
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name, or an error that suggests the nearest."""
    if name in RECIPES:
        return RECIPES[name]
    near = get_close_matches(name, RECIPES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`gelato data list` shows the names"
    raise InputError(
        f"no dataset is called {name!r}; {hint} (a file is d4rl:PATH or file:PATH, a Minari dataset minari:ID)"
    )
