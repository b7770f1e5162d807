"""The default for long distances and pictures: the energy minimised to convergence over a spectral family of curves.

    min_c  E(c) = Σ_q w_q γ'(t_q)ᵀ G(γ(t_q)) γ'(t_q),    γ = straight line + Σⱼ cⱼ φⱼ

with Legendre shape functions `φⱼ` and Gauss nodes `t_q`: for a smooth metric the error falls exponentially in the
number of modes. Because `∫φⱼ'φₖ' = δⱼₖ`, the energy's Hessian is `2G` for every mode if `G` is constant; dividing the
coefficients by the Cholesky factor of the mean `G` along the start (damped by its own diagonal, so that no unit enters)
makes it near the identity, and L-BFGS converges in tens of evaluations where `G` is nearly singular, too. Any metric
will do.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from gelato.geometry.curve import Curve, Legendre, energy, gauss, length_and_energy, straight
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.minimise import minimise
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

PRECONDITIONER_NODES = 4


class Converged(AbstractSolver):
    """Preconditioned L-BFGS on Legendre modes until the energy promises to fall by less than `tolerance` of itself."""

    modes: int = eqx.field(static=True, default=8)
    nodes: int = eqx.field(static=True, default=24)
    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=1e-6)
    damping: float = eqx.field(static=True, default=1e-3)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        return self.refine(metric, straight(a, b, Legendre(self.modes)))

    def refine(self, metric: AbstractMetric, start: Curve) -> Geodesic:
        """The geodesic that descent reaches from a given curve; never longer than that curve."""
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
        found = jax.lax.stop_gradient(minimise(objective, origin, self.iterations, max(self.tolerance, smallest)))
        shape = jnp.where(jnp.isfinite(found.value), coefficients(found.argument), fixed.coefficients)
        # By the envelope theorem the coefficients may be held fixed when the length is differentiated.
        return self._measure(metric, start, jax.lax.stop_gradient(shape), found.converged)

    def _measure(self, metric: AbstractMetric, start: Curve, shape: Array, converged: Array) -> Geodesic:
        curve = Curve(start.start, start.end, shape, start.basis)
        before, after = (length_and_energy(metric, curve, self.nodes) for curve in (start, curve))
        # Less energy does not mean less length where the start has constant speed and the curve found has not.
        shorter = after[0] <= before[0]
        curve = Curve(start.start, start.end, jnp.where(shorter, shape, start.coefficients), start.basis)
        L, E = (jnp.where(shorter, new, old) for new, old in zip(after, before))
        return Geodesic(curve, L, E, converged & jnp.isfinite(L))


def _factor(metric: AbstractMetric, curve: Curve, damping: float) -> Float[Array, "dim dim"]:
    t, w = gauss(PRECONDITIONER_NODES)
    G = jnp.einsum("q,qij->ij", jnp.asarray(w, curve.start.dtype), jax.vmap(metric)(curve.at(t)[0]))
    diagonal = jnp.diagonal(G)
    # A direction of no length at all still needs a finite step: the smallest that the dtype tells from zero.
    floor = jnp.finfo(G.dtype).eps * jnp.max(diagonal) + jnp.finfo(G.dtype).tiny
    return jnp.linalg.cholesky(G + jnp.diag(damping * diagonal + floor))
