"""The geodesic equation as an initial and a boundary value problem, an oracle for the variational solvers.

    G(γ) γ'' = ½ ∇_z(γ'ᵀG(z)γ') − (D_z G)[γ'] γ'

is the Euler–Lagrange equation of the energy. `exponential` integrates it; `Shooting` finds the initial velocity that
hits the other end by Newton's method. It needs a regular `G`, and a solution only has to be a geodesic, not a shortest
one.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.geometry.curve import Curve, Legendre, Scalar, gauss, length_and_energy
from gelato.geometry.metric import AbstractMetric, Point, Tangent
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

FIT_NODES = 32


def acceleration(metric: AbstractMetric, point: Point, velocity: Tangent) -> Tangent:
    """`γ'' = −Γ(γ', γ')` of the geodesic through a point with a velocity."""
    gradient = jax.grad(lambda z: metric.quadratic(z, velocity))(point)
    drift = jax.jvp(lambda z: metric(z) @ velocity, (point,), (velocity,))[1]
    return jnp.linalg.solve(metric(point), gradient / 2 - drift)


def exponential(
    metric: AbstractMetric,
    point: Point,
    velocity: Tangent,
    times: Float[Array, " times"],
    tolerance: float = 1e-6,
    max_steps: int = 512,
) -> tuple[Float[Array, "times dim"], Float[Array, "times dim"]]:
    """Points and velocities at given times of the geodesic with given `γ(0)` and `γ'(0)` (NaN if it diverges)."""

    def field(t: Any, y: tuple[Point, Tangent], args: None) -> tuple[Tangent, Tangent]:  # noqa: ARG001
        z, v = y
        return v, acceleration(metric, z, v)

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=1.0,
        dt0=None,
        y0=(point, velocity),
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=max_steps,
        # Newton's method differentiates forwards through the solver.
        adjoint=diffrax.ForwardMode(),
        throw=False,
    )
    ok = solution.result == diffrax.RESULTS.successful
    return jax.tree.map(lambda x: jnp.where(ok, x, jnp.nan), solution.ys)


class Shooting(AbstractSolver):
    """Newton's method on `exp_a(v) = b`, started from the straight line's velocity and halved where it overshoots."""

    steps: int = eqx.field(static=True, default=12)
    modes: int = eqx.field(static=True, default=12)
    tolerance: float = eqx.field(static=True, default=1e-6)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        one = jnp.ones((1,), a.dtype)

        def miss(v: Tangent) -> Tangent:
            return exponential(metric, a, v, one, self.tolerance)[0][0] - b

        # Every call of `miss` is a solver to compile: the value comes with the Jacobian, the last error with the step.
        linearised = jax.jacfwd(lambda v: (miss(v),) * 2, has_aux=True)

        def newton(v: Tangent, _: None) -> tuple[Tangent, Scalar]:
            J, missed = linearised(v)
            trials = v - jnp.asarray([1.0, 0.5, 0.2, 0.05], v.dtype)[:, None] * jnp.linalg.solve(J, missed)
            errors = jnp.nan_to_num(jax.vmap(lambda v: jnp.linalg.norm(miss(v)))(trials), nan=jnp.inf)
            return trials[jnp.argmin(errors)], jnp.min(errors)

        velocity, errors = jax.lax.scan(newton, b - a, None, length=self.steps)
        curve = self._fit(metric, a, b, velocity)
        error = errors[-1] / jnp.maximum(jnp.linalg.norm(b - a), jnp.finfo(a.dtype).tiny)
        converged = (error <= 100 * self.tolerance) | jnp.all(a == b)
        L, E = length_and_energy(metric, curve, FIT_NODES)
        return Geodesic(curve, L, E, converged & jnp.isfinite(L))

    def _fit(self, metric: AbstractMetric, a: Point, b: Point, velocity: Tangent) -> Curve:
        # The shape functions' slopes are orthonormal, so projecting the velocity gives the coefficients.
        basis = Legendre(self.modes)
        t, w = gauss(FIT_NODES)
        _, velocities = exponential(metric, a, velocity, jnp.asarray(t, a.dtype), self.tolerance)
        project = jnp.asarray((basis.tables(t)[1] * w[:, None]).T, a.dtype)
        return Curve(a, b, project @ velocities, basis)
