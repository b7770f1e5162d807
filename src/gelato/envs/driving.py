"""The six driving tasks on highway-env, with every setting that decides what a number means written down here.

Observations are matrices: five (intersection: fifteen) cars by presence, position and speed (intersection: heading
too), the own car first; or, on the racetrack, a grid of 12 × 12 cells of 3 m that says where cars are and where road
is. Actions are choices of lane and speed (intersection: speed alone), on the racetrack the steering angle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CARS = ["presence", "x", "y", "vx", "vy"]


@dataclass(frozen=True)
class DrivingTask:
    """A task: highway-env's class and its settings.

    `steps` is an episode's limit, `step_seconds` what a step takes on one core of a laptop, and `horizon` the steps an
    imagined episode takes.
    """

    name: str
    environment: str
    entry_point: str
    settings: dict[str, Any]
    step_seconds: float
    horizon: int = 10

    @property
    def steps(self) -> int:
        return int(self.settings["duration"] * self.settings["policy_frequency"])


def _kinematics(cars: int = 5, features: list[str] = _CARS, **others: Any) -> dict[str, Any]:
    return {"type": "Kinematics", "vehicles_count": cars, "features": features, "normalize": True, **others}


_HIGHWAY = {
    "observation": _kinematics(absolute=False),
    "action": {"type": "DiscreteMetaAction", "longitudinal": True, "lateral": True},
    "policy_frequency": 1,
}
_AROUND = {"x": [-100, 100], "y": [-100, 100]}
_ROUNDABOUT = {
    "observation": _kinematics(absolute=True, features_range={**_AROUND, "vx": [-15, 15], "vy": [-15, 15]}),
    "action": {"type": "DiscreteMetaAction", "longitudinal": True, "lateral": True, "target_speeds": [0, 8, 16]},
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
    "action": {"type": "DiscreteMetaAction", "longitudinal": True, "lateral": False, "target_speeds": [0, 4.5, 9]},
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
    "action": {"type": "ContinuousAction", "longitudinal": False, "lateral": True, "target_speeds": [0, 5, 10]},
    "simulation_frequency": 15,
    "policy_frequency": 5,
    "other_vehicles": 1,
    "terminate_off_road": True,
    # 200 steps, where highway-env's 300 s are 1,500: an evaluation in minutes, and a lap all the same.
    "duration": 40,
}

TASKS = {
    task.name: task
    for task in (
        DrivingTask(
            "highway",
            "gelato/Highway-v0",
            "highway_env.envs.highway_env:HighwayEnv",
            {**_HIGHWAY, "simulation_frequency": 15, "lanes_count": 4, "vehicles_count": 50, "duration": 40},
            step_seconds=0.28,
        ),
        DrivingTask(
            "highway-fast",
            "gelato/HighwayFast-v0",
            "highway_env.envs.highway_env:HighwayEnvFast",
            {**_HIGHWAY, "simulation_frequency": 5, "lanes_count": 3, "vehicles_count": 20, "duration": 30},
            step_seconds=0.028,
        ),
        DrivingTask(
            "roundabout",
            "gelato/Roundabout-v0",
            "highway_env.envs.roundabout_env:RoundaboutEnv",
            _ROUNDABOUT,
            step_seconds=0.03,
        ),
        DrivingTask(
            "intersection",
            "gelato/Intersection-v0",
            "highway_env.envs.intersection_env:IntersectionEnv",
            _INTERSECTION,
            step_seconds=0.055,
        ),
        DrivingTask(
            "intersection-hard",
            "gelato/IntersectionHard-v0",
            "highway_env.envs.intersection_env:IntersectionEnv",
            # Three times the cars; one more enters every second, as often as highway-env can.
            {**_INTERSECTION, "initial_vehicle_count": 30, "spawn_probability": 1.0},
            step_seconds=0.12,
        ),
        DrivingTask(
            "racetrack",
            "gelato/Racetrack-v0",
            "highway_env.envs.racetrack_env:RacetrackEnv",
            _RACETRACK,
            step_seconds=0.015,
            horizon=50,
        ),
    )
}
_BY_ENVIRONMENT = {task.environment: task for task in TASKS.values()}


def driving_task(environment: str | None) -> DrivingTask | None:
    """The driving task of an environment id, or None for any other."""
    return _BY_ENVIRONMENT.get(environment or "")


def drives(environment: str | None) -> bool:
    """Whether an environment id is one of these tasks or of highway-env's own, such as `intersection-v0`."""
    name = (environment or "").lower()
    return any(road in name for road in ("highway", "roundabout", "intersection", "racetrack"))


def crashed(info: Mapping[str, Any]) -> bool:
    """Whether a step ended against another car or off the road."""
    return bool(info.get("crashed")) or not info.get("rewards", {}).get("on_road_reward", True)
