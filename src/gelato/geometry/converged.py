"""The default solver for long distances and figures: minimise the energy to convergence.

    min_c  E(c) = Σ_q w_q γ'(t_q)ᵀ G(γ(t_q)) γ'(t_q),    γ = straight line + Σⱼ cⱼ φⱼ

with Legendre shape functions `φⱼ` and Gauss nodes `t_q`: for a smooth metric the error falls
exponentially in the number of modes. Because `∫φⱼ'φₖ' = δⱼₖ`, the energy's Hessian is `2G` for
every mode if `G` is constant. The coefficients are therefore divided by the Cholesky factor of the
mean `G` along the start, with damping proportional to its diagonal, so that the result does not
depend on units. This brings the Hessian near the identity, and L-BFGS converges in tens of
evaluations even if `G` is nearly singular. The solver works for any metric.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from gelato.geometry.curve import (
    Curve,
    Legendre,
    compute_gauss_nodes,
    compute_length_and_energy,
    energy,
    make_straight_curve,
)
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.minimise import minimise
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

PRECONDITIONER_NODES = 4


class Converged(AbstractSolver):
    """Preconditioned L-BFGS on Legendre modes.

    It stops when the predicted relative decrease of the energy is less than `tolerance`.
    """

    modes: int = eqx.field(static=True, default=8)
    nodes: int = eqx.field(static=True, default=24)
    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=1e-6)
    damping: float = eqx.field(static=True, default=1e-3)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        return self.refine(metric, make_straight_curve(a, b, Legendre(self.modes)))

    def refine(self, metric: AbstractMetric, start: Curve) -> Geodesic:
        """Shorten a given curve by minimising its energy.

        The result is never longer than the given curve.
        """
        fixed = jax.lax.stop_gradient(start)
        scale = energy(metric, fixed, self.nodes)
        L = _factor(metric, fixed, self.damping)
        unit = jnp.sqrt(jnp.where(scale > 0, scale, 1))

        def coefficients(v: Float[Array, " n"]) -> Float[Array, "modes dim"]:
            whitened = jnp.reshape(v, fixed.coefficients.shape)
            return fixed.coefficients + unit * solve_triangular(L.T, whitened.T, lower=False).T

        def objective(v: Float[Array, " n"]) -> Float[Array, ""]:
            curve = Curve(fixed.start, fixed.end, coefficients(v), fixed.basis)
            return energy(metric, curve, self.nodes) / (2 * unit**2)

        origin = jnp.zeros(fixed.coefficients.size, fixed.start.dtype)
        smallest = 8 * float(jnp.finfo(origin.dtype).eps)
        found = jax.lax.stop_gradient(
            minimise(objective, origin, self.iterations, max(self.tolerance, smallest))
        )
        shape = jnp.where(
            jnp.isfinite(found.value), coefficients(found.argument), fixed.coefficients
        )
        # By the envelope theorem, derivatives of the length may treat the coefficients as constant.
        return self._measure(metric, start, jax.lax.stop_gradient(shape), found.converged)

    def _measure(
        self, metric: AbstractMetric, start: Curve, shape: Array, converged: Array
    ) -> Geodesic:
        curve = Curve(start.start, start.end, shape, start.basis)
        before, after = (
            compute_length_and_energy(metric, curve, self.nodes) for curve in (start, curve)
        )
        # A curve with less energy may still be longer, if the speed of the start varies.
        shorter = after[0] <= before[0]
        curve = Curve(
            start.start, start.end, jnp.where(shorter, shape, start.coefficients), start.basis
        )
        L, E = (jnp.where(shorter, new, old) for new, old in zip(after, before))
        return Geodesic(curve, L, E, converged & jnp.isfinite(L))


def _factor(metric: AbstractMetric, curve: Curve, damping: float) -> Float[Array, "dim dim"]:
    t, w = compute_gauss_nodes(PRECONDITIONER_NODES)
    G = jnp.einsum("q,qij->ij", jnp.asarray(w, curve.start.dtype), jax.vmap(metric)(curve.at(t)[0]))
    diagonal = jnp.diagonal(G)
    # The floor keeps the factor finite in directions of zero length.
    floor = jnp.finfo(G.dtype).eps * jnp.max(diagonal) + jnp.finfo(G.dtype).tiny
    return jnp.linalg.cholesky(G + jnp.diag(damping * diagonal + floor))
