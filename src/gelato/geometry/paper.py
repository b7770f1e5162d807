"""The paper's algorithm "Geodesic Distance Estimation", for reproduction.

The curve is a cubic spline with 8 coefficients. SGD with momentum 0.99 and rate 1e-3 makes 20 steps
on the discrete energy over 10 points:

    E(θ) = Σᵢ ‖Φ(γ(i/n)) − Φ(γ((i−1)/n))‖²

The paper's pseudo-code sums differences without squared norms. That sum would telescope, so we use
squared norms. The length is `Σᵢ √(γ'ᵀG(γ)γ') / n`, with the root of Definition 1 that the algorithm
omits. The step size depends on units: rescaled observations can make SGD diverge. Then `converged`
is false, and the result may be longer than the straight line, as in the paper.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Spline, make_straight_curve, safe_sqrt
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions, make_geodesic


class PaperSGD(AbstractSolver):
    """SGD on the discrete energy of a spline."""

    coefficients: int = eqx.field(static=True, default=8)
    steps: int = eqx.field(static=True, default=20)
    points: int = eqx.field(static=True, default=10)
    rate: float = eqx.field(static=True, default=1e-3)
    momentum: float = eqx.field(static=True, default=0.99)
    tolerance: float = eqx.field(static=True, default=1e-2)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(
                f"PaperSGD needs an immersion, which {type(metric).__name__} does not have. "
                "Use Converged."
            )
        line = make_straight_curve(a, b, Spline(self.coefficients))
        phi = metric.immersion(jax.lax.stop_gradient((a + b) / 2))
        grid = np.linspace(0, 1, self.points + 1)

        def with_shape(shape: Array) -> Curve:
            return Curve(a, b, shape, line.basis)

        def discrete_energy(shape: Array) -> Float[Array, ""]:
            outputs = jax.vmap(phi)(with_shape(shape).at(grid)[0])
            return jnp.sum(jnp.diff(outputs, axis=0) ** 2)

        optimiser = optax.sgd(self.rate, self.momentum)

        def step(
            carry: tuple[Array, optax.OptState], _: None
        ) -> tuple[tuple[Array, optax.OptState], Array]:
            shape, state = carry
            value, gradient = jax.value_and_grad(discrete_energy)(shape)
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(shape, updates), state), value

        origin = line.coefficients
        (shape, _), _ = jax.lax.scan(
            step, (origin, optimiser.init(origin)), None, length=self.steps
        )
        curve = with_shape(jax.lax.stop_gradient(shape))
        squares = jax.vmap(metric.quadratic)(*curve.at(grid[1:]))
        L = jnp.mean(safe_sqrt(squares))
        measured = make_geodesic(metric, curve, self.points, self.tolerance)
        gap = jnp.abs(measured.length - L) / jnp.where(L > 0, L, 1)
        error = jnp.where(jnp.isfinite(L), measured.error + gap, jnp.inf)
        energy = jnp.mean(squares)
        return Geodesic(curve, L, energy, error, error <= self.tolerance, measured.several)
