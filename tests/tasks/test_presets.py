"""The settings of every kind of dataset equal stored settings."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.tuned import choose_tuned
from gelato.data.spaces import Continuous
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset, Transitions
from gelato.model.config import preset
from gelato.tasks.task import normalise_score
from gelato.training.presets import choose_parts

VALUES = Path(__file__).parent / "golden" / "presets.json"
# Environment, state size, number of transitions, return of the one episode.
CASES = {
    "hopper-poor": ("Hopper-v5", 11, 2_000, 100.0),
    "hopper-usual": ("hopper_medium-v2", 11, 2_000, 1_300.0),
    "hopper-good": ("Hopper-v4", 11, 2_000, 3_000.0),
    "walker2d-poor": ("Walker2d-v5", 17, 2_000, 10.0),
    "walker2d-good": ("walker2d_medium_expert-v2", 17, 2_000, 4_000.0),
    "halfcheetah-poor": ("HalfCheetah-v5", 17, 2_000, 0.0),
    "halfcheetah-usual": ("halfcheetah_medium", 17, 2_000, 4_000.0),
    "four-rooms": ("gelato/FourRooms-v0", 2, 2_000, 0.0),
    "four-rooms-goal": ("gelato/FourRoomsGoal-v0", 2, 2_000, 5.0),
    "highway": ("gelato/Highway-v0", 25, 200, 20.0),
    "highway-fast": ("gelato/HighwayFast-v0", 25, 200, 20.0),
    "roundabout": ("gelato/Roundabout-v0", 25, 50, 8.0),
    "intersection": ("gelato/Intersection-v0", 105, 40, 3.0),
    "intersection-hard": ("gelato/IntersectionHard-v0", 105, 40, 3.0),
    "racetrack": ("gelato/Racetrack-v0", 288, 500, 60.0),
    "pendulum": ("Pendulum-v1", 3, 2_000, -900.0),
    "unknown": (None, 40, 2_000, 1.0),
}


def make_dataset(environment: str | None, size: int, count: int, total: float) -> Dataset:
    states = np.zeros((count, size), np.float32)
    rewards, ends = np.zeros(count, np.float32), np.zeros(count, bool)
    rewards[0], ends[-1] = total, True
    space = Continuous((-1.0,), (1.0,))
    actions, known = np.zeros((count, 1), np.float32), np.ones(count, bool)
    rows = Transitions(states, actions, rewards, states, ends, ~known, known, (size,), space)
    return Dataset("test", environment, rows)


def describe(case: str) -> dict[str, object]:
    dataset = make_dataset(*CASES[case])
    found: dict[str, object] = {}
    for name in ("default", "small"):
        parts = choose_parts(dataset, name)
        for part in ("latent", "ensemble", "sac", "cloning", "ppo", "settings"):
            found[f"{name} {part}"] = repr(getattr(parts, part))
        mean = float(episode_returns(dataset.transitions).mean())
        found[f"{name} score"] = normalise_score(dataset.environment, mean)
        for fit in (parts.latent, parts.ensemble):
            choice = choose_tuned(dataset, fit)
            found[f"{name} {fit.space} weight and fraction"] = list(choice)
    for name in ("default", "paper"):
        found[f"model {name}"] = repr(preset(name, dataset))
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_dataset_gets_the_settings_it_always_had(case: str) -> None:
    assert describe(case) == json.loads(VALUES.read_text())[case]
