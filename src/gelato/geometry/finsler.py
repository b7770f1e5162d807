"""The expected length of an ensemble: a Finsler metric.

    F(z, v) = (1/M) Σᵢ ‖Jᵢ(z) v‖

is the mean of the lengths that the members measure. The length under `EnsemblePullback` is the root
of the mean square, so it is never shorter (Jensen's inequality); the two agree where the members
do. `F` is a norm in `v`, but its square is not a quadratic form. Solvers use `F²` wherever they
need squared lengths. The tensor of the ensemble serves as preconditioner and in estimates of the
error, which are therefore less sharp than for a Riemannian metric.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.geometry.curve import safe_sqrt
from gelato.geometry.metric import AbstractMetric, EnsemblePullback, Gaussian, Point, Tangent


class ExpectedLength(AbstractMetric):
    """The mean length over an ensemble of decoders `z -> ([M, out] means, [M, out] scales)`."""

    decoder: Gaussian

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        """Compute the tensor of `EnsemblePullback`."""
        return EnsemblePullback(self.decoder)(point)

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        """Compute the square `F(z, v)²` of the expected length."""
        mean, scale = jax.jvp(self.decoder, (point,), (tangent,))[1]
        squares = jnp.sum(mean**2, axis=-1) + jnp.sum(scale**2, axis=-1)
        return jnp.mean(safe_sqrt(squares)) ** 2
