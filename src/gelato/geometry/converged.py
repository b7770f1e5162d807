"""The default for long distances and pictures: the energy minimised to convergence over a spectral family of curves.

    min_c  E(c) = Σ_q w_q γ'(t_q)ᵀ G(γ(t_q)) γ'(t_q),    γ = straight line + Σⱼ cⱼ φⱼ

with Legendre shape functions `φⱼ` and Gauss nodes `t_q`: for a smooth metric the error falls exponentially in the number of
modes. Because `∫φⱼ'φₖ' = δⱼₖ`, the energy's Hessian is `2G` for every mode if `G` is constant; dividing the coefficients by the
Cholesky factor of the mean `G` along the start (damped by its own diagonal, so that no unit enters) makes it near the
identity, and L-BFGS converges in tens of evaluations where `G` is nearly singular, too. Any metric will do.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from gelato.geometry.curve import Curve, Legendre, energy, gauss, length, speeds_squared, straight
from gelato.geometry.metric import AbstractMetric, Point
from gelato.geometry.minimise import minimise
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

PRECONDITIONER_NODES = 4


class Converged(AbstractSolver):
    """Preconditioned L-BFGS on `modes` Legendre modes until the energy promises to fall by less than `tolerance`, relatively."""

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
        # Less energy does not mean less length where the start has constant speed and the curve found has not.
        shorter = length(metric, curve, self.nodes) <= length(metric, start, self.nodes)
        curve = Curve(start.start, start.end, jnp.where(shorter, shape, start.coefficients), start.basis)
        L = length(metric, curve, self.nodes)
        return Geodesic(curve, L, energy(metric, curve, self.nodes), converged & jnp.isfinite(L))


def _factor(metric: AbstractMetric, curve: Curve, damping: float) -> Float[Array, "dim dim"]:
    t, w = (jnp.asarray(x, curve.start.dtype) for x in gauss(PRECONDITIONER_NODES))
    G = jnp.einsum("q,qij->ij", w, jax.vmap(lambda t: metric(curve(t)))(t))
    diagonal = jnp.diagonal(G)
    # A direction of no length at all still needs a finite step: the smallest that the dtype tells from zero.
    floor = jnp.finfo(G.dtype).eps * jnp.max(diagonal) + jnp.finfo(G.dtype).tiny
    return jnp.linalg.cholesky(G + jnp.diag(damping * diagonal + floor))


def speed_variation(metric: AbstractMetric, curve: Curve, nodes: int = 24) -> Float[Array, ""]:
    """`1 − L²/E`: zero exactly at constant speed, as every geodesic has."""
    squares = speeds_squared(metric, curve, nodes)
    w = jnp.asarray(gauss(nodes)[1], squares.dtype)
    return 1 - (jnp.sqrt(squares) @ w) ** 2 / (squares @ w)
