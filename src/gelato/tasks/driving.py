"""The six driving tasks on highway-env, with every setting that affects a result.

An observation is a matrix with one row per car, the own car first. The columns are presence,
position and speed. An observation has five cars. At the intersection it has fifteen cars and also
their heading. On the racetrack an observation is a grid of 12 × 12 cells of 3 m that shows cars and
road. An action chooses lane and speed. At the intersection it chooses only the speed, on the
racetrack only the steering angle.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from gelato.tasks.task import Settings, Task, register_task

_CARS = ["presence", "x", "y", "vx", "vy"]


def has_crashed(info: Mapping[str, object]) -> bool:
    """Return whether a step ended in another car or off the road."""
    rewards = info.get("rewards")
    off_road = isinstance(rewards, Mapping) and not rewards.get("on_road_reward", True)
    return bool(info.get("crashed")) or off_road


class _Camera:
    """A substitute for the video wrapper that highway-env calls for every frame."""

    frames_per_sec = 0

    def __init__(self, capture: Callable[[], None]) -> None:
        self._capture_frame = capture


def capture_frames(environment: Any, capture: Callable[[], None]) -> None:
    """Call `capture` for every frame that highway-env simulates between two decisions."""
    environment.unwrapped.set_record_video_wrapper(_Camera(capture))


def _kinematics(cars: int = 5, features: list[str] = _CARS, **others: Any) -> dict[str, Any]:
    return {
        "type": "Kinematics",
        "vehicles_count": cars,
        "features": features,
        "normalize": True,
        **others,
    }


_HIGHWAY = {
    "observation": _kinematics(absolute=False),
    "action": {"type": "DiscreteMetaAction", "longitudinal": True, "lateral": True},
    "policy_frequency": 1,
}
_AROUND = {"x": [-100, 100], "y": [-100, 100]}
_ROUNDABOUT = {
    "observation": _kinematics(
        absolute=True, features_range={**_AROUND, "vx": [-15, 15], "vy": [-15, 15]}
    ),
    "action": {
        "type": "DiscreteMetaAction",
        "longitudinal": True,
        "lateral": True,
        "target_speeds": [0, 8, 16],
    },
    "simulation_frequency": 15,
    "policy_frequency": 1,
    "duration": 11,
}
_INTERSECTION = {
    "observation": _kinematics(
        15,
        [*_CARS, "cos_h", "sin_h"],
        absolute=True,
        features_range={**_AROUND, "vx": [-20, 20], "vy": [-20, 20]},
        flatten=False,
        observe_intentions=False,
    ),
    "action": {
        "type": "DiscreteMetaAction",
        "longitudinal": True,
        "lateral": False,
        "target_speeds": [0, 4.5, 9],
    },
    "simulation_frequency": 15,
    "policy_frequency": 1,
    "duration": 13,
    "initial_vehicle_count": 10,
    "spawn_probability": 0.6,
}
_RACETRACK = {
    "observation": {
        "type": "OccupancyGrid",
        "features": ["presence", "on_road"],
        "grid_size": [[-18, 18], [-18, 18]],
        "grid_step": [3, 3],
        "as_image": False,
        "align_to_vehicle_axes": True,
    },
    "action": {
        "type": "ContinuousAction",
        "longitudinal": False,
        "lateral": True,
        "target_speeds": [0, 5, 10],
    },
    "simulation_frequency": 15,
    "policy_frequency": 5,
    "other_vehicles": 1,
    "terminate_off_road": True,
    # 200 steps are enough for a lap. highway-env's 1,500 would make an evaluation take hours.
    "duration": 40,
}

# A few hundred transitions need small networks. PPO and the number of neighbours follow the paper.
_SMALL_MODEL = {"batch_size": 32, "updates": 10_000, "variance_updates": 2_000}


def _make_task(
    name: str,
    environment: str,
    entry_point: str,
    config: Settings,
    step_seconds: float,
    horizon: int = 10,
) -> Task:
    # highway-env ends an episode itself, so Gymnasium needs no time limit.
    gymnasium.register(
        environment, f"highway_env.envs.{entry_point}", kwargs={"config": dict(config)}
    )
    return Task(
        name,
        (environment,),
        options=config,
        steps=int(config["duration"] * config["policy_frequency"]),
        simulator_can_be_copied=True,
        has_crashed=has_crashed,
        behaviour_policy=name,
        capture_frames=capture_frames,
        frames_per_second=float(config["simulation_frequency"]),
        drawing_help="highway-env needs pygame for rendering: pip install pygame-ce",
        step_seconds=step_seconds,
        presets={
            "default": {
                "model": {"hidden": (128, 128), "forward_hidden": (128, 128), **_SMALL_MODEL},
                "latent": {"state_noise": 0.0},
                "ensemble": {"updates": 5_000, "hidden": (64, 64), "batch_size": 32},
                "sac": {
                    "hidden": (64, 64),
                    "discount": 0.95,
                    "batch_size": 64,
                    "updates": 4_000,
                    "epoch": 500,
                },
                "ppo": {"updates": 350_000, "discount": 0.95, "horizon": horizon},
                "train": {"neighbours": 5, "evaluations": 5},
            },
            "small": {"ppo": {"updates": 50_000}, "train": {"evaluations": 2}},
            "paper": {"model": _SMALL_MODEL},
        },
        batch_fraction=0.5,
    )


DRIVING_TASKS = (
    _make_task(
        "highway",
        "gelato/Highway-v0",
        "highway_env:HighwayEnv",
        {
            **_HIGHWAY,
            "simulation_frequency": 15,
            "lanes_count": 4,
            "vehicles_count": 50,
            "duration": 40,
        },
        step_seconds=0.28,
    ),
    _make_task(
        "highway-fast",
        "gelato/HighwayFast-v0",
        "highway_env:HighwayEnvFast",
        {
            **_HIGHWAY,
            "simulation_frequency": 5,
            "lanes_count": 3,
            "vehicles_count": 20,
            "duration": 30,
        },
        step_seconds=0.028,
    ),
    _make_task(
        "roundabout",
        "gelato/Roundabout-v0",
        "roundabout_env:RoundaboutEnv",
        _ROUNDABOUT,
        step_seconds=0.03,
    ),
    _make_task(
        "intersection",
        "gelato/Intersection-v0",
        "intersection_env:IntersectionEnv",
        _INTERSECTION,
        step_seconds=0.055,
    ),
    _make_task(
        "intersection-hard",
        "gelato/IntersectionHard-v0",
        "intersection_env:IntersectionEnv",
        # Three times as many cars at the start, and a new car every second, the maximum.
        {**_INTERSECTION, "initial_vehicle_count": 30, "spawn_probability": 1.0},
        step_seconds=0.12,
    ),
    _make_task(
        "racetrack",
        "gelato/Racetrack-v0",
        "racetrack_env:RacetrackEnv",
        _RACETRACK,
        step_seconds=0.015,
        horizon=50,
    ),
)

for _task in DRIVING_TASKS:
    register_task(_task)
