"""Simulators: Four Rooms, and what is known of the benchmark environments others made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

FOUR_ROOMS = "gelato/FourRooms-v0"


def register() -> None:
    """Make `gymnasium.make("gelato/FourRooms-v0")` work; a second call changes nothing."""
    if FOUR_ROOMS not in gymnasium.registry:
        gymnasium.register(FOUR_ROOMS, "gelato.envs.four_rooms:FourRooms", max_episode_steps=100)


def make_environment(environment_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """`gymnasium.make` without the checks of every step, and without MuJoCo's remarks on Gymnasium's own models."""
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
