"""The paper's Algorithm "Geodesic Distance Estimation", to the letter where it can be: the reproduction mode.

A cubic spline of 8 coefficients, SGD with momentum 0.99 and rate 1e-3, 20 steps, on the discrete energy over 10 points,

    E(θ) = Σᵢ ‖Φ(γ(i/n)) − Φ(γ((i−1)/n))‖²,

the squared norms that the pseudo-code's differences must mean (they telescope as printed). The length is
`Σᵢ √(γ'ᵀG(γ)γ') / n` with the root that Definition 1 has and the algorithm lacks. Its step size carries a unit:
rescaled observations make it diverge, so the result is flagged, and may be longer than the straight line, as the
paper's is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Spline, root, straight
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions


class PaperSGD(AbstractSolver):
    """SGD steps on a spline's discrete energy (`converged`: the last step changed it by less than a thousandth)."""

    coefficients: int = eqx.field(static=True, default=8)
    steps: int = eqx.field(static=True, default=20)
    points: int = eqx.field(static=True, default=10)
    rate: float = eqx.field(static=True, default=1e-3)
    momentum: float = eqx.field(static=True, default=0.99)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(f"{type(metric).__name__} has no immersion, which the paper's solver needs: use Converged")
        line = straight(a, b, Spline(self.coefficients))
        phi = metric.immersion(jax.lax.stop_gradient((a + b) / 2))
        grid = np.linspace(0, 1, self.points + 1)

        def with_shape(shape: Array) -> Curve:
            return Curve(a, b, shape, line.basis)

        def discrete_energy(shape: Array) -> Float[Array, ""]:
            outputs = jax.vmap(phi)(with_shape(shape).at(grid)[0])
            return jnp.sum(jnp.diff(outputs, axis=0) ** 2)

        optimiser = optax.sgd(self.rate, self.momentum)

        def step(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], Array]:
            shape, state = carry
            value, gradient = jax.value_and_grad(discrete_energy)(shape)
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(shape, updates), state), value

        origin = line.coefficients
        (shape, _), values = jax.lax.scan(step, (origin, optimiser.init(origin)), None, length=self.steps)
        curve = with_shape(jax.lax.stop_gradient(shape))
        squares = jax.vmap(metric.quadratic)(*curve.at(grid[1:]))
        L = jnp.mean(root(squares))
        settled = (jnp.abs(values[-1] - values[-2]) <= 1e-3 * values[-1]) & (values[-1] <= values[0])
        return Geodesic(curve, L, jnp.mean(squares), settled & jnp.isfinite(L))
