"""Riemannian metrics on a latent space: `point -> G`, one point at a time.

A metric computes the tensor `G(z)` and the squared length `vᵀG(z)v` of a tangent. The squared
length uses one Jacobian-vector product, because forming `G` costs one product per dimension. All
metrics except `Tensor` are pullbacks of one deterministic map Φ into an ambient space (the variance
term of the forward model needs an anchor). Their method `immersion` returns this map. Solvers then
need only forward passes, and `‖Φ(a) − Φ(b)‖` is a lower bound of the length of every curve.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Point = Float[Array, " dim"]
Tangent = Float[Array, " dim"]
Map = Callable[[Point], Array]
Immersion = Callable[[Point], Float[Array, " ambient"]]
# Mean and scale come from one call: most decoders share layers between them, and XLA does not merge
# two passes through shared layers.
Gaussian = Callable[[Point], tuple[Array, Array]]


class AbstractMetric(eqx.Module):
    """A smooth field of positive semi-definite tensors `G(z)`."""

    @abstractmethod
    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        """Compute the tensor `G(z)`."""

    @abstractmethod
    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        """Compute the squared length `vᵀG(z)v` of a tangent."""


class AbstractImmersed(AbstractMetric):
    """A metric that is the pullback of a deterministic map near each anchor point."""

    @abstractmethod
    def immersion(self, anchor: Point) -> Immersion:
        """Return a map into Euclidean space whose pullback is the metric.

        They agree exactly at the anchor, and everywhere if `G` is a plain pullback.
        """


class Euclidean(AbstractImmersed):
    """`G(z) = I`."""

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        return jnp.eye(point.size, dtype=point.dtype)

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:  # noqa: ARG002
        return tangent @ tangent

    def immersion(self, anchor: Point) -> Immersion:  # noqa: ARG002
        return lambda point: point


class Tensor(AbstractMetric):
    """Any tensor field `G(z)` given as a function, such as a hyperbolic plane."""

    tensor: Callable[[Point], Float[Array, "dim dim"]]

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        return self.tensor(point)

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        return tangent @ self.tensor(point) @ tangent


class AbstractPullback(AbstractImmersed):
    """`G(z) = JᵀJ` for the Jacobian of one map, which does not depend on the anchor."""

    @abstractmethod
    def phi(self, point: Point) -> Float[Array, " ambient"]:
        """Compute the map whose pullback is the metric."""

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        # Forward mode: the latent space is smaller than the ambient space.
        J = jax.jacfwd(self.phi)(point)
        return J.T @ J

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        pushed = jax.jvp(self.phi, (point,), (tangent,))[1]
        return pushed @ pushed

    def immersion(self, anchor: Point) -> Immersion:  # noqa: ARG002
        return self.phi


class Pullback(AbstractPullback):
    """`G(z) = JᵀJ` for a deterministic map (Proposition 1): a decoder mean, a reward, a Q-value."""

    map: Map

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return jnp.ravel(self.map(point))


class GaussianPullback(AbstractPullback):
    """`E[JᵀJ] = JμᵀJμ + JσᵀJσ` for a decoder `N(μ(z), σ(z)²)` (Theorem 1)."""

    decoder: Gaussian

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return jnp.concatenate([jnp.ravel(output) for output in self.decoder(point)])


class EnsemblePullback(AbstractPullback):
    """`(1/M) Σᵢ JμᵢᵀJμᵢ + JσᵢᵀJσᵢ` for `M` decoders (the corollary).

    The decoder returns `[M, out]` means and scales. `G` can only be positive definite if
    `2·M·out ≥ dim` (see `rank_bound`).
    """

    decoder: Gaussian

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return stack_ensemble(*self.decoder(point))


def gaussian(mean: Map, scale: Map) -> Gaussian:
    """Join two functions `μ(z)` and `σ(z)` into one decoder."""
    return lambda point: (mean(point), scale(point))


def stack_ensemble(
    mean: Float[Array, "M out"], scale: Float[Array, "M out"]
) -> Float[Array, " ambient"]:
    """Stack the output of an ensemble: `Φ = (μ¹, σ¹, …, μᴹ, σᴹ)/√M`.

    Its pullback is the average over the members.
    """
    return jnp.ravel(jnp.concatenate([mean, scale], axis=-1)) / jnp.sqrt(mean.shape[0])


def volume(metric: AbstractMetric, point: Point) -> Float[Array, ""]:
    """Compute the volume measure `√det G(z)`; zero if `G` is singular."""
    # Use eigenvalues, because rounding can give a singular G a tiny negative determinant.
    eigenvalues = jnp.linalg.eigvalsh(metric(point))
    return jnp.prod(jnp.sqrt(jnp.maximum(eigenvalues, 0)))


def log_volume(metric: AbstractMetric, point: Point) -> Float[Array, ""]:
    """Compute `½ log det G(z)`; `-inf` if `G` is singular.

    Use it where the volume itself would overflow or underflow.
    """
    eigenvalues = jnp.linalg.eigvalsh(metric(point))
    return 0.5 * jnp.sum(jnp.log(jnp.maximum(eigenvalues, 0)))


def rank_bound(metric: AbstractImmersed, point: Point) -> int:
    """Compute the largest possible rank of `G`.

    It is the smaller of the ambient dimension and the dimension of the point (note 5).
    """
    ambient = jax.eval_shape(lambda z: metric.immersion(z)(z), point)
    return min(ambient.size, point.size)
