"""Known rules of termination, on unnormalised states; an environment without one needs a learned head."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gelato.envs.scores import task_of

Rule = Callable[[Float[Array, " state"]], Bool[Array, ""]]


def hopper_fell(state: Float[Array, " state"]) -> Bool[Array, ""]:
    """Hopper ends when its torso is low or tilted, or any velocity or joint runs away."""
    height, angle = state[0], state[1]
    healthy = (height > 0.7) & (jnp.abs(angle) < 0.2) & jnp.all(jnp.abs(state[1:]) < 100)
    return ~(healthy & jnp.all(jnp.isfinite(state)))


def walker2d_fell(state: Float[Array, " state"]) -> Bool[Array, ""]:
    """Walker2d ends when its torso leaves `0.8 < height < 2` or tilts by a radian."""
    height, angle = state[0], state[1]
    return ~((height > 0.8) & (height < 2.0) & (jnp.abs(angle) < 1.0))


def never(state: Float[Array, " state"]) -> Bool[Array, ""]:
    """HalfCheetah ends by the time limit alone."""
    del state
    return jnp.zeros((), bool)


# And the size of the states they are for.
_RULES: dict[str, tuple[Rule, int]] = {
    "hopper": (hopper_fell, 11),
    "walker2d": (walker2d_fell, 17),
    "halfcheetah": (never, 17),
}


def termination_rule(environment: str | None, state_size: int) -> Rule | None:
    """The rule on the next state that an environment's episodes end by, or None where none is known."""
    task = task_of(environment)
    if task is None:
        return None
    rule, size = _RULES[task]
    return rule if state_size == size else None
