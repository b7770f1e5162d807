"""The geodesic equation as an initial and as a boundary value problem.

It is an independent check of the variational solvers and needs diffrax (extra `geodesics`).

    G(γ) γ'' = ½ ∇_z(γ'ᵀG(z)γ') − (D_z G)[γ'] γ'

is the Euler–Lagrange equation of the energy. `exponential` integrates it; `Shooting` finds the
initial velocity that reaches the other end by Newton's method. Both need a regular `G`. A solution
is a geodesic, but not always a shortest one.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.errors import import_extra
from gelato.geometry.curve import (
    Curve,
    Legendre,
    Scalar,
    compute_gauss_nodes,
    compute_length_and_energy,
)
from gelato.geometry.metric import AbstractMetric, Point, Tangent
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

FIT_NODES = 32


def compute_acceleration(metric: AbstractMetric, point: Point, velocity: Tangent) -> Tangent:
    """Compute `γ'' = −Γ(γ', γ')` of the geodesic through a point with a velocity."""
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
    """Follow the geodesic that starts at a point with a velocity.

    Returns points and velocities at the given times in `[0, 1]`, or NaN if the solver diverges.
    """
    diffrax = import_extra("diffrax", "geodesics")

    def field(t: Scalar, y: tuple[Point, Tangent], args: None) -> tuple[Tangent, Tangent]:
        del t, args
        z, v = y
        return v, compute_acceleration(metric, z, v)

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
    """Newton's method on `exp_a(v) = b`, with shorter steps where a full step overshoots.

    It starts from the velocity of the straight line.
    """

    steps: int = eqx.field(static=True, default=12)
    modes: int = eqx.field(static=True, default=12)
    tolerance: float = eqx.field(static=True, default=1e-6)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        one = jnp.ones((1,), a.dtype)

        def compute_endpoint_error(v: Tangent) -> Tangent:
            return exponential(metric, a, v, one, self.tolerance)[0][0] - b

        # Each use of `compute_endpoint_error` compiles one more solver. Therefore one call returns
        # the value with the Jacobian, and each step returns its error.
        linearise = jax.jacfwd(lambda v: (compute_endpoint_error(v),) * 2, has_aux=True)

        def newton(v: Tangent, _: None) -> tuple[Tangent, Scalar]:
            J, missed = linearise(v)
            rates = jnp.asarray([1.0, 0.5, 0.2, 0.05], v.dtype)
            trials = v - rates[:, None] * jnp.linalg.solve(J, missed)
            errors = jax.vmap(lambda v: jnp.linalg.norm(compute_endpoint_error(v)))(trials)
            errors = jnp.nan_to_num(errors, nan=jnp.inf)
            return trials[jnp.argmin(errors)], jnp.min(errors)

        velocity, errors = jax.lax.scan(newton, b - a, None, length=self.steps)
        curve = self._fit(metric, a, b, velocity)
        error = errors[-1] / jnp.maximum(jnp.linalg.norm(b - a), jnp.finfo(a.dtype).tiny)
        converged = (error <= 100 * self.tolerance) | jnp.all(a == b)
        L, E = compute_length_and_energy(metric, curve, FIT_NODES)
        return Geodesic(curve, L, E, converged & jnp.isfinite(L))

    def _fit(self, metric: AbstractMetric, a: Point, b: Point, velocity: Tangent) -> Curve:
        # The slopes of the shape functions are orthonormal, so the coefficients are projections of
        # the velocity.
        basis = Legendre(self.modes)
        t, w = compute_gauss_nodes(FIT_NODES)
        _, velocities = exponential(metric, a, velocity, jnp.asarray(t, a.dtype), self.tolerance)
        project = jnp.asarray((basis.tables(t)[1] * w[:, None]).T, a.dtype)
        return Curve(a, b, project @ velocities, basis)
