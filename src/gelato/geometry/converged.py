"""Minimise the energy of a curve with a fixed number of modes.

    min_c  E(c) = Σ_q w_q γ'(t_q)ᵀ G(γ(t_q)) γ'(t_q),    γ = straight line + Σⱼ cⱼ φⱼ

with Legendre shape functions `φⱼ` and Gauss nodes `t_q`: for a smooth metric the error falls
exponentially in the number of modes. L-BFGS minimises the energy. Its preconditioner is the step
that minimises the quadratic model of `variation.py` with the metric at the start. The result does
not depend on units, and tens of evaluations are enough even if `G` is nearly singular or changes
by orders of magnitude along the curve. The solver works for any metric.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.geometry.curve import (
    Curve,
    Legendre,
    Scalar,
    compute_gauss_nodes,
    compute_length_and_energy,
    energy,
    make_straight_curve,
)
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.minimise import minimise
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions, make_geodesic
from gelato.geometry.variation import invert_hessian


class Converged(AbstractSolver):
    """Preconditioned L-BFGS on Legendre modes.

    It stops when the predicted relative decrease of the energy is less than `precision`. The result
    has `converged` if the estimated error of its length is at most `tolerance`.
    """

    modes: int = eqx.field(static=True, default=8)
    nodes: int = eqx.field(static=True, default=24)
    iterations: int = eqx.field(static=True, default=200)
    tolerance: float | Scalar = 1e-3
    precision: float | Scalar = 1e-6
    damping: float = eqx.field(static=True, default=1e-3)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        return self.refine(metric, make_straight_curve(a, b, Legendre(self.modes)))

    def refine(
        self, metric: AbstractMetric, start: Curve, iterations: Int[Array, ""] | None = None
    ) -> Geodesic:
        """Shorten a given curve by minimising its energy.

        The result is never longer than the given curve.
        """
        fixed = jax.lax.stop_gradient(start)
        scale = energy(metric, fixed, self.nodes)
        unit = jnp.sqrt(jnp.where(scale > 0, scale, 1))
        inverse = invert_hessian(metric, fixed, self.nodes, self.damping)
        t, w = compute_gauss_nodes(self.nodes)
        slopes = jnp.asarray(fixed.basis.tables(t)[1], fixed.start.dtype)
        weighted = jnp.asarray(w, slopes.dtype)[:, None] * slopes

        def coefficients(v: Float[Array, " n"]) -> Float[Array, "modes dim"]:
            return fixed.coefficients + unit * jnp.reshape(v, fixed.coefficients.shape)

        def objective(v: Float[Array, " n"]) -> Float[Array, ""]:
            curve = Curve(fixed.start, fixed.end, coefficients(v), fixed.basis)
            return energy(metric, curve, self.nodes) / (2 * unit**2)

        def precondition(gradient: Float[Array, " n"]) -> Float[Array, " n"]:
            momentum = slopes @ jnp.reshape(gradient, fixed.coefficients.shape)
            return jnp.ravel(weighted.T @ inverse(momentum))

        origin = jnp.zeros(fixed.coefficients.size, fixed.start.dtype)
        smallest = 8 * float(jnp.finfo(origin.dtype).eps)
        precision = jnp.maximum(self.precision, smallest)
        found = jax.lax.stop_gradient(
            minimise(
                objective,
                origin,
                precondition,
                self.iterations if iterations is None else iterations,
                precision,
            )
        )
        shape = jnp.where(
            jnp.isfinite(found.value), coefficients(found.argument), fixed.coefficients
        )
        shape = self._choose_shorter(metric, fixed, shape)
        # By the envelope theorem, derivatives of the length may treat the coefficients as constant.
        curve = Curve(start.start, start.end, jax.lax.stop_gradient(shape), start.basis)
        remaining = jnp.where(jnp.isfinite(found.predicted_gain), found.predicted_gain, 0)
        return make_geodesic(metric, curve, self.nodes, self.tolerance, remaining)

    def _choose_shorter(
        self, metric: AbstractMetric, start: Curve, shape: Float[Array, "modes dim"]
    ) -> Float[Array, "modes dim"]:
        # A curve with less energy may still be longer, if the speed of the start varies.
        curve = Curve(start.start, start.end, shape, start.basis)
        before, _ = compute_length_and_energy(metric, start, self.nodes)
        after, _ = compute_length_and_energy(metric, curve, self.nodes)
        return jnp.where(after <= before, shape, start.coefficients)
