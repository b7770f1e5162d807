"""Hopper, Walker2d and HalfCheetah in MuJoCo, with the reference returns of D4RL."""

from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

from gelato.tasks.environments import make_environment, silence_mujoco
from gelato.tasks.task import AbstractSimulator, Rule, Task, register_task

# Gymnasium clips the velocities of Hopper and Walker2d in the observation, so the simulator cannot
# be put into a state at the bound.
_VELOCITY_BOUND = 10.0


# The rules import JAX when they are called, because worker processes import this module and need no
# JAX.


def has_hopper_fallen(state: Float[Any, " state"]) -> Bool[Any, ""]:
    """Return whether Hopper's torso is low or tilted, or any value is far out of range."""
    import jax.numpy as jnp

    height, angle = state[0], state[1]
    healthy = (height > 0.7) & (jnp.abs(angle) < 0.2) & jnp.all(jnp.abs(state[1:]) < 100)
    return ~(healthy & jnp.all(jnp.isfinite(state)))


def has_walker2d_fallen(state: Float[Any, " state"]) -> Bool[Any, ""]:
    """Return whether Walker2d's torso leaves `0.8 < height < 2` or tilts by a radian."""
    import jax.numpy as jnp

    height, angle = state[0], state[1]
    return ~((height > 0.8) & (height < 2.0) & (jnp.abs(angle) < 1.0))


def never_ends(state: Float[Any, " state"]) -> Bool[Any, ""]:
    """Return False: only the time limit ends an episode of HalfCheetah."""
    import jax.numpy as jnp

    del state
    return jnp.zeros((), bool)


class MujocoSimulator(AbstractSimulator):
    """Hopper, Walker2d or HalfCheetah.

    An observation holds every position except the first, then every velocity.
    """

    package = "mujoco"

    def __init__(self, environment: str, *, clips_velocities: bool) -> None:
        simulated: Any = make_environment(environment).unwrapped
        simulated.reset(seed=0)
        self._environment = simulated
        self._positions = simulated.model.nq - 1
        self._clips = clips_velocities
        self.state_size = self._positions + int(simulated.model.nv)

    def successor(
        self, state: Float[np.ndarray, " state"], action: Num[np.ndarray, " *action"]
    ) -> Float[np.ndarray, " state"]:
        """Return the next observation, or NaN if the state is impossible or clipped."""
        import mujoco

        unknown = np.full(len(state), np.nan)
        positions, velocities = np.split(np.asarray(state, np.float64), [self._positions])
        clipped = self._clips and np.abs(velocities).max() >= _VELOCITY_BOUND
        if clipped or not np.isfinite(state).all():
            return unknown
        model, data = self._environment.model, self._environment.data
        # Reset the contact solver, which otherwise starts from its last solution.
        mujoco.mj_resetData(model, data)
        with silence_mujoco():
            self._environment.set_state(np.concatenate([[0.0], positions]), velocities)
            found = self._environment.step(np.asarray(action))[0]
        # From an impossible state MuJoCo warns, resets itself, and continues from rest.
        kinds = mujoco.mjtWarning
        blown_up = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
        return unknown if any(data.warning[int(kind)].number for kind in blown_up) else found


def _make_task(
    name: str,
    environment: str,
    returns: tuple[float, float],
    rule: Rule,
    joints: tuple[str, ...],
    **others: Any,
) -> Task:
    clips_velocities = name != "halfcheetah"
    state_names = _name_states(joints)
    return Task(
        name,
        (f"{environment}-v5",),
        # The prefix matches other versions, and ids and file names of D4RL's datasets.
        prefix=name,
        steps=1000,
        reference_returns=returns,
        termination=rule,
        state_size=len(state_names),
        state_names=state_names,
        make_simulator=partial(
            MujocoSimulator, f"{environment}-v5", clips_velocities=clips_velocities
        ),
        behaviour_policy=f"{name}-medium",
        expert_policy=f"{name}-expert",
        drawing_help=(
            "without a display install EGL or OSMesa and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        ),
        **others,
    )


def _name_states(joints: tuple[str, ...]) -> tuple[str, ...]:
    """Name the values of an observation: positions without x, then velocities."""
    angles = [f"{part} angle (rad)" for part in ("torso", *joints)]
    turning = [f"{part} turning (rad/s)" for part in ("torso", *joints)]
    return ("height (m)", *angles, "forward speed (m/s)", "upward speed (m/s)", *turning)


_LEG = ("thigh", "shin", "foot")
_WALKER_JOINTS = ("right thigh", "right leg", "right foot", "left thigh", "left leg", "left foot")
_CHEETAH_JOINTS = (
    "back thigh",
    "back shin",
    "back foot",
    "front thigh",
    "front shin",
    "front foot",
)

# A hopper falls a few hundred steps after a mistake, so its discount must be closer to 1. Learning
# with this discount takes more updates than the preset `small` has.
_HOPPER_PRESETS = {"default": {"sac": {"discount": 0.995}}}

# The reference returns (random, expert) are those of D4RL.
LOCOMOTION_TASKS = (
    _make_task(
        "hopper",
        "Hopper",
        (-20.272305, 3234.3),
        has_hopper_fallen,
        ("thigh", "leg", "foot"),
        presets=_HOPPER_PRESETS,
    ),
    _make_task("walker2d", "Walker2d", (1.629008, 4592.3), has_walker2d_fallen, _WALKER_JOINTS),
    _make_task("halfcheetah", "HalfCheetah", (-280.178953, 12135.0), never_ends, _CHEETAH_JOINTS),
)

for _task in LOCOMOTION_TASKS:
    register_task(_task)
