"""Simulators: Four Rooms, and what is known of the benchmark environments others made."""

import gymnasium

FOUR_ROOMS = "gelato/FourRooms-v0"


def register() -> None:
    """Make `gymnasium.make("gelato/FourRooms-v0")` work; a second call changes nothing."""
    if FOUR_ROOMS not in gymnasium.registry:
        gymnasium.register(FOUR_ROOMS, "gelato.envs.four_rooms:FourRooms", max_episode_steps=100)
