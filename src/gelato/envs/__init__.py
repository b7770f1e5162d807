"""Simulators: Four Rooms, and what is known of the benchmark environments others made."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from gelato.envs.driving import TASKS

FOUR_ROOMS = "gelato/FourRooms-v0"
# Cell by cell from the far corner of one room to a corner of the next, behind the wall between them.
FOUR_ROOMS_GOAL = "gelato/FourRoomsGoal-v0"
GOAL = (5, 8, 6, 10)
_GOAL_TASK = {"goal": GOAL, "stay": True, "starts": (5, 0, 6, 1), "longest_move": 1}


def register() -> None:
    """Make `gymnasium.make("gelato/FourRooms-v0")` work; a second call changes nothing."""
    if FOUR_ROOMS not in gymnasium.registry:
        entry = "gelato.envs.four_rooms:FourRooms"
        gymnasium.register(FOUR_ROOMS, entry, max_episode_steps=100)
        gymnasium.register(FOUR_ROOMS_GOAL, entry, max_episode_steps=60, kwargs=_GOAL_TASK)
        for task in TASKS.values():
            gymnasium.register(task.environment, task.entry_point, kwargs={"config": task.settings})


def make_environment(environment_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` without the checks of every step, and without the remarks of the libraries beneath."""
    if "render_mode" in options:
        # Pygame's library complains on machines without a desktop, where it is not needed.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    if not str(gymnasium.spec(environment_id).entry_point).startswith("gymnasium.envs.mujoco"):
        return gymnasium.make(environment_id, disable_env_checker=True, **options)
    with quiet_mujoco():
        return gymnasium.make(environment_id, disable_env_checker=True, **options)


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """MuJoCo prints each warning and also appends it to a file in the working directory; here it does neither."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
