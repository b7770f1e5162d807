"""L-BFGS with backtracking and a given approximate inverse of the Hessian.

Each iteration evaluates the function once, so that the members of a batch advance together.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gelato.geometry.curve import Scalar

Vector = Float[Array, " n"]
MEMORY = 12
ARMIJO_FACTOR, STEP_DECAY, SMALLEST_STEP = 1e-4, 0.3, 1e-5


class Minimum(eqx.Module):
    """The result of a minimisation.

    `predicted_gain` is the decrease that one more step would bring.
    """

    argument: Vector
    value: Scalar
    predicted_gain: Scalar
    iterations: Int[Array, ""]


class _State(eqx.Module):
    x: Vector
    value: Scalar
    gradient: Vector
    direction: Vector
    rate: Scalar
    steps: Float[Array, "memory n"]
    changes: Float[Array, "memory n"]
    iterations: Int[Array, ""]
    predicted_gain: Scalar


def minimise(
    function: Callable[[Vector], Scalar],
    x: Vector,
    precondition: Callable[[Vector], Vector],
    iterations: int | Int[Array, ""],
    tolerance: float | Scalar,
) -> Minimum:
    """Minimise a function; `precondition` is an approximate inverse of its Hessian.

    It stops when the predicted gain of a step is less than `tolerance`.
    """
    evaluate = jax.value_and_grad(function)
    empty, still = jnp.zeros((MEMORY, x.size), x.dtype), jnp.zeros_like(x)
    infinite = jnp.asarray(jnp.inf, x.dtype)
    # The start has infinite value, so that a first step of zero length is accepted and evaluates
    # it. This way `function` is compiled only once.
    start = _State(
        x,
        infinite,
        still,
        still,
        jnp.ones_like(infinite),
        empty,
        empty,
        jnp.zeros((), int),
        infinite,
    )

    def is_unfinished(state: _State) -> Bool[Array, ""]:
        # NaN compares false, which ends the loop.
        return (
            (state.iterations < iterations)
            & (state.predicted_gain > tolerance)
            & (state.rate > SMALLEST_STEP)
        )

    end = jax.lax.while_loop(
        is_unfinished, lambda state: _advance(evaluate, precondition, state), start
    )
    return Minimum(end.x, end.value, end.predicted_gain, end.iterations)


def _advance(
    evaluate: Callable[[Vector], tuple[Scalar, Vector]],
    precondition: Callable[[Vector], Vector],
    state: _State,
) -> _State:
    step = state.rate * state.direction
    value, gradient = evaluate(state.x + step)
    accepted = value <= state.value + ARMIJO_FACTOR * (state.gradient @ step)
    change = gradient - state.gradient
    # Only positive curvature keeps the inverse Hessian positive definite.
    remembered = accepted & (step @ change > 1e-8 * (change @ change))
    steps = jnp.where(remembered, jnp.roll(state.steps, 1, axis=0).at[0].set(step), state.steps)
    changes = jnp.where(
        remembered, jnp.roll(state.changes, 1, axis=0).at[0].set(change), state.changes
    )
    x = jnp.where(accepted, state.x + step, state.x)
    value = jnp.where(accepted, value, state.value)
    gradient = jnp.where(accepted, gradient, state.gradient)
    newton = -_inverse_hessian(steps, changes, precondition, gradient)
    direction = jnp.where(accepted, newton, state.direction)
    rate = jnp.where(accepted, 1.0, STEP_DECAY * state.rate)
    predicted_gain = jnp.where(accepted, -(gradient @ direction) / 2, state.predicted_gain)
    return _State(
        x, value, gradient, direction, rate, steps, changes, state.iterations + 1, predicted_gain
    )


def _inverse_hessian(
    steps: Float[Array, "memory n"],
    changes: Float[Array, "memory n"],
    precondition: Callable[[Vector], Vector],
    gradient: Vector,
) -> Vector:
    # The two-loop recursion, newest pair first. Empty rows have zero curvature and no effect.
    curvature = jnp.sum(steps * changes, axis=1)
    inverse = jnp.where(curvature > 0, 1 / jnp.where(curvature > 0, curvature, 1), 0)

    def forwards(q: Vector, pair: tuple[Vector, Vector, Scalar]) -> tuple[Vector, Scalar]:
        s, y, rho = pair
        alpha = rho * (s @ q)
        return q - alpha * y, alpha

    def backwards(q: Vector, pair: tuple[Vector, Vector, Scalar, Scalar]) -> tuple[Vector, None]:
        s, y, rho, alpha = pair
        return q + (alpha - rho * (y @ q)) * s, None

    q, alphas = jax.lax.scan(forwards, gradient, (steps, changes, inverse))
    return jax.lax.scan(
        backwards, precondition(q), (steps, changes, inverse, alphas), reverse=True
    )[0]
