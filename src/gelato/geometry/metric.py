"""Riemannian metrics on a latent space: `point -> G`, one point at a time.

A metric answers two questions: the tensor `G(z)` and the squared length `vᵀG(z)v` of a tangent, the latter by
Jacobian-vector products, since forming `G` costs one product for every dimension. All but `Tensor` are pullbacks
of one deterministic map Φ into an ambient space (up to the forward model's variance term, which needs an anchor), and
say so by `immersion`: solvers then only need forward passes, and `‖Φ(a) − Φ(b)‖` bounds every curve's length from
below.
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
# Mean and scale from one call: most decoders share a trunk, and XLA does not merge two passes through it.
Gaussian = Callable[[Point], tuple[Array, Array]]


class AbstractMetric(eqx.Module):
    """A smooth field of positive semi-definite tensors `G(z)`."""

    @abstractmethod
    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        """The tensor `G(z)`."""

    @abstractmethod
    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        """The squared length `vᵀG(z)v` of a tangent."""


class AbstractImmersed(AbstractMetric):
    """A metric that is, near any anchor, the pullback of one deterministic map into Euclidean space."""

    @abstractmethod
    def immersion(self, anchor: Point) -> Immersion:
        """A map whose pullback is the metric: exactly at the anchor, and everywhere if `G` is a plain pullback."""


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
    """`G(z) = JᵀJ` for the Jacobian of one map, the same whatever the anchor."""

    @abstractmethod
    def phi(self, point: Point) -> Float[Array, " ambient"]:
        """The map whose pullback the metric is."""

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
    """`G(z) = JᵀJ` for a deterministic map (Proposition 1): a decoder's mean, a reward, a Q-value."""

    map: Map

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return jnp.ravel(self.map(point))


class GaussianPullback(AbstractPullback):
    """`E[JᵀJ] = JμᵀJμ + JσᵀJσ` for a decoder `N(μ(z), σ(z)²)` (Theorem 1)."""

    decoder: Gaussian

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return jnp.concatenate([jnp.ravel(output) for output in self.decoder(point)])


class EnsemblePullback(AbstractPullback):
    """`(1/M) Σᵢ JμᵢᵀJμᵢ + JσᵢᵀJσᵢ` for decoders returning `[M, out]` means and scales (the corollary).

    It is a metric, and not only positive semi-definite, if `2·M·out ≥ dim` (see `rank_bound`).
    """

    decoder: Gaussian

    def phi(self, point: Point) -> Float[Array, " ambient"]:
        return stack_ensemble(*self.decoder(point))


def gaussian(mean: Map, scale: Map) -> Gaussian:
    """A Gaussian from two separate functions `μ(z)` and `σ(z)`."""
    return lambda point: (mean(point), scale(point))


def stack_ensemble(mean: Float[Array, "M out"], scale: Float[Array, "M out"]) -> Float[Array, " ambient"]:
    """The stacked output `Φ = (μ¹, σ¹, …, μᴹ, σᴹ)/√M` of an ensemble, whose pullback averages over the members."""
    return jnp.ravel(jnp.concatenate([mean, scale], axis=-1)) / jnp.sqrt(mean.shape[0])


def volume(metric: AbstractMetric, point: Point) -> Float[Array, ""]:
    """The volume measure `√det G(z)`, zero where `G` is singular."""
    # The product of the eigenvalues' roots, since rounding may leave a singular G with a tiny negative determinant.
    eigenvalues = jnp.linalg.eigvalsh(metric(point))
    return jnp.prod(jnp.sqrt(jnp.maximum(eigenvalues, 0)))


def log_volume(metric: AbstractMetric, point: Point) -> Float[Array, ""]:
    """`½ log det G(z)`: the volume where its value leaves the floating-point range; `-inf` where `G` is singular."""
    eigenvalues = jnp.linalg.eigvalsh(metric(point))
    return 0.5 * jnp.sum(jnp.log(jnp.maximum(eigenvalues, 0)))


def rank_bound(metric: AbstractImmersed, point: Point) -> int:
    """The largest rank `G` can have: the ambient dimension, or the point's if that is smaller (note 5)."""
    ambient = jax.eval_shape(lambda z: metric.immersion(z)(z), point)
    return min(ambient.size, point.size)
