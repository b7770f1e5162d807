"""The first variation of the energy: how far a curve is from the geodesic between its ends.

For a variation `η` of a curve that vanishes at both ends,

    ½ dE(γ)[η] = ∫ η'·p + η·f dt = ∫ η'·m dt,    p = Gγ',  f = ½ ∇_z(γ'ᵀGγ'),  m = p − ∫₀ᵗ f.

The first step is the chain rule, the second integrates by parts. A curve is a geodesic if the
momentum `m` is constant, because `η'` is any function with mean zero. To leading order in the
derivatives of `η`, the second variation is `∫ η'ᵀGη' dt`. The minimum of the quadratic model

    E(γ + η) ≈ E(γ) + 2 ∫ η'·m dt + ∫ η'ᵀGη' dt

over all `η` that vanish at both ends has the closed form

    η' = −G⁻¹(m − m̄),    m̄ = (∫G⁻¹)⁻¹ ∫G⁻¹m,    E(γ) − E(γ + η) = ∫ (m − m̄)ᵀG⁻¹(m − m̄) dt.

The step is the preconditioner of `Converged`. The decrease is the estimate of the error. A part of
`m − m̄` along `Gγ'` only changes the speed along the curve, which costs energy but no length. With
the rest, `r = m − m̄ − ((m − m̄)·γ' / γ'ᵀGγ') Gγ'`, and `E = L²` at constant speed,

    (L(γ) − d) / L(γ)  ≈  ∫ rᵀG⁻¹r dt / 2E,
    rᵀG⁻¹r = (m − m̄)ᵀG⁻¹(m − m̄) − ((m − m̄)·γ')² / γ'ᵀGγ'.

It counts the modes that the curve lacks as well as those that the minimiser left too early. The
neglected terms of the second variation contain fewer derivatives of `η`. They shrink with the
square of the frequency, so the estimate is sharpest for the high modes, which a curve lacks. The
terms of third order are smaller than the decrease `g` by a factor proportional to `‖η‖`, that is to
`√g`. On spheres and hyperbolic planes the true error is up to `(1 + 100 √g) g`.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial.legendre import legvander

from gelato.geometry.curve import (
    Curve,
    Scalar,
    compute_gauss_nodes,
    compute_length_and_energy,
    safe_sqrt,
)
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.roots import Matrix, invert_root

Field = Float[Array, "nodes dim"]
# The damping only keeps the inverse finite: directions of almost zero length have little momentum.
DAMPING = 1e-5
# The estimated decrease `g` is multiplied by `SAFETY (1 + CUBIC √g)`. Rounding costs a length
# ROUNDING units.
SAFETY, CUBIC, ROUNDING = 3.0, 100.0, 4.0


class InverseHessian(eqx.Module):
    """The map `m -> G⁻¹(m − m̄)` with the metric at the Gauss nodes of one curve."""

    inverses: Float[Array, "nodes dim dim"]
    mean: Matrix
    weights: Float[Array, " nodes"]

    def __call__(self, momentum: Field) -> Field:
        mean = self.average(momentum)
        return self._solve(momentum - mean)

    def average(self, momentum: Field) -> Float[Array, " dim"]:
        """Compute the mean `m̄` with weights `G⁻¹`."""
        return self.mean @ (self.weights @ self._solve(momentum))

    def _solve(self, field: Field) -> Field:
        return jax.vmap(jnp.matmul)(self.inverses, field)


def invert_hessian(
    metric: AbstractMetric, curve: Curve, nodes: int, damping: float
) -> InverseHessian:
    """Invert the metric along a curve, with damping proportional to its diagonal."""
    t, w = compute_gauss_nodes(nodes)
    G = jax.vmap(metric)(curve.at(t)[0])
    weights = jnp.asarray(w, G.dtype)
    diagonal = jnp.diagonal(G, axis1=1, axis2=2)
    # The floor keeps the inverses finite in directions of zero length.
    floor = jnp.finfo(G.dtype).eps * jnp.max(diagonal) + jnp.finfo(G.dtype).tiny
    eye = jnp.eye(G.shape[-1], dtype=G.dtype)
    inverses = jax.vmap(_invert)(G + (damping * diagonal + floor)[:, :, None] * eye)
    mean = _invert(jnp.tensordot(weights, inverses, axes=1))
    return InverseHessian(inverses, mean, weights)


def _invert(G: Matrix) -> Matrix:
    R = invert_root(G)
    return R.T @ R


def compute_momentum(metric: AbstractMetric, curve: Curve, nodes: int) -> tuple[Field, Array]:
    """Compute the momentum `m` and the squared speeds at the Gauss nodes."""
    points, velocities = curve.at(compute_gauss_nodes(nodes)[0])
    squares, (forces, momenta) = jax.vmap(jax.value_and_grad(metric.quadratic, argnums=(0, 1)))(
        points, velocities
    )
    integrate = jnp.asarray(_tabulate_integrals(nodes), squares.dtype)
    return (momenta - integrate @ forces) / 2, squares


def measure_curve(
    metric: AbstractMetric, curve: Curve, nodes: int
) -> tuple[Scalar, Scalar, Scalar]:
    """Measure the length and the energy of a curve, and estimate the relative error of the length.

    The estimate adds three terms: the decrease above with its safety factor, the difference from a
    quadrature with half as many nodes more, and rounding.
    """
    L, E = compute_length_and_energy(metric, curve, nodes)
    more = nodes + nodes // 2 + 1
    momentum, squares = compute_momentum(metric, curve, more)
    inverse = invert_hessian(metric, curve, more, DAMPING)
    residual = momentum - inverse.average(momentum)
    along = jnp.sum(residual * curve.at(compute_gauss_nodes(more)[0])[1], axis=1)
    across = jnp.sum(residual * inverse(momentum), axis=1) - _divide(along**2, squares)
    finer, energy = inverse.weights @ safe_sqrt(squares), inverse.weights @ squares
    gain = _divide(inverse.weights @ jnp.maximum(across, 0), 2 * energy)
    error = SAFETY * (1 + CUBIC * safe_sqrt(gain)) * gain + _divide(jnp.abs(finer - L), L)
    return L, E, jax.lax.stop_gradient(error) + ROUNDING * float(jnp.finfo(L.dtype).eps)


def _divide(above: Float[Array, "*shape"], below: Float[Array, "*shape"]) -> Array:
    # A curve of length zero has no error.
    return jnp.where(below == 0, 0, above / jnp.where(below == 0, 1, below))


@lru_cache
def _tabulate_integrals(nodes: int) -> Float[np.ndarray, "nodes nodes"]:
    """Tabulate `∫₀ᵗ` at the Gauss nodes of the polynomial through values at the nodes."""
    t, w = compute_gauss_nodes(nodes)
    P = legvander(2 * t - 1, nodes)
    # ∫₀ᵗ P₀ = t, and ∫₀ᵗ Pⱼ(2s − 1) ds = (Pⱼ₊₁ − Pⱼ₋₁)(2t − 1) / (4j + 2).
    degrees = np.arange(1, nodes)
    integrals = np.concatenate([t[:, None], (P[:, 2:] - P[:, :-2]) / (4 * degrees + 2)], axis=1)
    project = (2 * np.arange(nodes) + 1)[:, None] * P[:, :-1].T * w
    return integrals @ project
