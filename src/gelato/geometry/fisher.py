"""Pullbacks of the Fisher–Rao metric: the length of a path of distributions.

The squared length of a small step is twice the Kullback–Leibler divergence that it causes, so it
does not depend on the units of the output. The expected metric of Theorem 1 measures the outputs in
their own units instead.

| family | squared length of a step | coordinates |
|---|---|---|
| Gaussian `N(μ, σ²)` | `Σ (dμ² + 2dσ²)/σ²` | a product of hyperbolic planes |
| categorical `p` | `Σ dp²/p` | `2√p`, on a sphere of radius 2 |
| Bernoulli `p` | `Σ dp²/(p(1 − p))` | `2 arcsin √p` |
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.geometry.metric import (
    AbstractMetric,
    AbstractPullback,
    Gaussian,
    Map,
    Point,
    Tangent,
)


class GaussianFisherRao(AbstractMetric):
    """Fisher–Rao for a decoder `z -> (μ, σ)` with independent Gaussian outputs."""

    decoder: Gaussian

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        J = jax.jacfwd(lambda z: self._scale(self.decoder(point)[1], z))(point)
        return J.T @ J

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        (_, scale), (d_mean, d_scale) = jax.jvp(self.decoder, (point,), (tangent,))
        return jnp.sum((d_mean**2 + 2 * d_scale**2) / scale**2)

    def _scale(self, unit: Array, point: Point) -> Float[Array, " ambient"]:
        mean, scale = self.decoder(point)
        return jnp.concatenate([jnp.ravel(mean / unit), jnp.ravel(jnp.sqrt(2.0) * scale / unit)])


class CategoricalFisherRao(AbstractPullback):
    """Fisher–Rao for a decoder that returns logits `[..., classes]` of categorical outputs."""

    logits: Map

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return jnp.ravel(2 * jnp.exp(jax.nn.log_softmax(self.logits(point), axis=-1) / 2))


class BernoulliFisherRao(AbstractPullback):
    """Fisher–Rao for a decoder that returns the logits of independent binary outputs."""

    logits: Map

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        # arcsin √p = arctan √(p/(1 − p)); a logit is log(p/(1 − p)).
        return jnp.ravel(2 * jnp.arctan(jnp.exp(self.logits(point) / 2)))
