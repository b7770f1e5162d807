"""Theorem 2: the metric of a stochastic forward model followed by a random decoder of an ensemble.

    G(e) = J_μFᵀ Ḡ J_μF + J_σFᵀ diag(Ḡ) J_σF,    Ḡ = E_{x ~ F(·|e)} J_Φ(x)ᵀ J_Φ(x),

with the stacked ensemble `Φ = (μ¹, σ¹, …, μᴹ, σᴹ)/√M`, so that

    vᵀGv = ‖J_Φ J_μF v‖² + Σₖ (J_σF v)ₖ² Ḡₖₖ.

**Several forward models.** Draw a member `j` of `N` with equal probability, and hold it, as the
noise is held, while the point moves. (Drawn anew in every point, even the shortest curve would jump
from one member to another.) Given `j`, the theorem holds for `F_j`. Its expectation over `j` is

    G(e) = 1/N Σⱼ (J_μFⱼᵀ Ḡⱼ J_μFⱼ + J_σFⱼᵀ diag(Ḡⱼ) J_σFⱼ),    Ḡⱼ = E_{x ~ Fⱼ(·|e)} J_Φ(x)ᵀ J_Φ(x),

the mean of the members' metrics. There is no further term for the spread of the members' *means*: a
constant difference does not change when the point moves. The spread of their *slopes* is inside. If
all `Ḡⱼ` equal `Ḡ`, the first part is, with `m = 1/N Σⱼ μ_Fⱼ`,

    J_mᵀ Ḡ J_m + 1/N Σⱼ (J_μFⱼ − J_m)ᵀ Ḡ (J_μFⱼ − J_m).

This metric is the theorem's own for stacked maps: a forward model `(μ_F1, …, μ_FN)`, the same for
σ, and decoders that map `(x¹, …, xᴺ)` to the outputs `(Φ(x¹), …, Φ(xᴺ))/√N`. The Jacobian of the
latter is block diagonal, with one block for each member.

Only the last sum needs `diag(Ḡ)`, which costs one product per latent dimension. There are three
methods to compute it: `ExactScale`, `FrozenScale` (the diagonal at one fixed point) and
`ProbedScale` (random signs ε, for which `E‖J_Φ(ε ⊙ u)‖² = Σₖ uₖ² Ḡₖₖ`).
"""

from abc import abstractmethod
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.geometry.metric import (
    AbstractImmersed,
    Gaussian,
    Immersion,
    Point,
    Tangent,
    stack_ensemble,
)

Latent = Float[Array, " latent"]
Samples = Float[Array, "samples latent"]


class AbstractScaleTerm(eqx.Module):
    """A method to compute the variance term `Σₖ uₖ² Ḡₖₖ` from `J_Φ` at the samples of x."""

    @abstractmethod
    def compute_rows(self, metric: "Composite", x: Samples, u: Latent) -> Float[Array, " rows"]:
        """Compute a vector, linear in `u`, whose squared norm is the term."""

    @abstractmethod
    def weights(self, metric: "Composite", x: Samples) -> Float[Array, "latent latent"]:
        """Compute the matrix of the term, `diag(Ḡ)` or its estimate."""


class ExactScale(AbstractScaleTerm):
    """`diag(Ḡ)` from the whole Jacobian, at every point."""

    def compute_rows(self, metric: "Composite", x: Samples, u: Latent) -> Float[Array, " rows"]:
        return jnp.sqrt(_diagonal(metric, x)) * u

    def weights(self, metric: "Composite", x: Samples) -> Float[Array, "latent latent"]:
        return jnp.diag(_diagonal(metric, x))


class FrozenScale(AbstractScaleTerm):
    """`diag(Ḡ)` computed once, at a fixed point (see `freeze`)."""

    diagonal: Latent

    def compute_rows(self, metric: "Composite", x: Samples, u: Latent) -> Float[Array, " rows"]:
        del metric, x
        return jnp.sqrt(self.diagonal) * u

    def weights(self, metric: "Composite", x: Samples) -> Float[Array, "latent latent"]:
        del metric, x
        return jnp.diag(self.diagonal)


class ProbedScale(AbstractScaleTerm):
    """The unbiased estimate `mean_p ‖J_Φ(εₚ ⊙ u)‖²` from random signs (see `probe`).

    It costs one product for each probe.
    """

    signs: Float[Array, "probes latent"]

    def compute_rows(self, metric: "Composite", x: Samples, u: Latent) -> Float[Array, " rows"]:
        pushed = jax.vmap(lambda sign: _push_samples(metric.phi, x, sign * u))(self.signs)
        return jnp.ravel(pushed) / jnp.sqrt(len(self.signs))

    def weights(self, metric: "Composite", x: Samples) -> Float[Array, "latent latent"]:
        G = _mean_gram(metric.phi, x)
        return jnp.mean(jax.vmap(lambda sign: sign[:, None] * G * sign)(self.signs), axis=0)


class Composite(AbstractImmersed):
    """The metric of Theorem 2 for a forward model and an ensemble of decoders.

    The forward model is `e -> (μ_F, σ_F)`; the decoders are `x -> ([M, out] means, [M, out]
    scales)`. `noise` holds standard normal draws: `Ḡ` is averaged over `x = μ_F + σ_F ⊙ noise`. By
    default `x` is the mean of F, as in the paper's algorithm. Fixed draws keep the metric
    deterministic and smooth.

    With several forward `members`, `forward` returns the values of all members, one after the
    other. `decoder` takes such a vector. It returns the outputs for the first member, then those
    for the second, and so on.
    """

    forward: Gaussian
    decoder: Gaussian
    noise: Float[Array, "samples latent"] | None = None
    scale_term: AbstractScaleTerm = ExactScale()
    members: int = eqx.field(static=True, default=1)

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        J_mean, J_scale = jax.jacfwd(self.forward)(point)
        x = self.samples(point)
        G = _mean_gram(self.phi, x)
        return J_mean.T @ G @ J_mean + J_scale.T @ self.scale_term.weights(self, x) @ J_scale

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        _, (d_mean, d_scale) = jax.jvp(self.forward, (point,), (tangent,))
        x = self.samples(point)
        first = _push_samples(self.phi, x, d_mean)
        second = self.scale_term.compute_rows(self, x, d_scale)
        return first @ first + second @ second

    def immersion(self, anchor: Point) -> Immersion:
        """Return `e -> (Φ(μ_F(e) + σ_F(anchor) ⊙ noise), √diag(Ḡ(anchor)) ⊙ σ_F(e))`.

        The noise and `diag(Ḡ)` are fixed at the anchor.
        """
        offsets = self.samples(anchor) - self.forward(anchor)[0]
        x = self.samples(anchor)

        def immerse(point: Point) -> Float[Array, " ambient"]:
            mean, scale = self.forward(point)
            outputs = jax.vmap(lambda offset: self.phi(mean + offset))(offsets) / jnp.sqrt(
                len(offsets)
            )
            return jnp.concatenate(
                [jnp.ravel(outputs), self.scale_term.compute_rows(self, x, scale)]
            )

        return immerse

    def phi(self, latent: Latent) -> Float[Array, " ambient"]:
        """Compute the stacked ensemble `Φ(x)`."""
        return stack_ensemble(*self.decoder(latent))

    def samples(self, point: Point) -> Samples:
        """Compute the points `x` that `Ḡ` is averaged over."""
        mean, scale = self.forward(point)
        return mean[None] if self.noise is None else mean + scale * self.noise


def freeze(metric: Composite, point: Point) -> Composite:
    """Return the metric with `diag(Ḡ)` fixed at its value at a point."""
    diagonal = _diagonal(metric, metric.samples(point))
    return replace(metric, scale_term=FrozenScale(diagonal))


def compute_noise_effect(metric: Composite, point: Point) -> Float[Array, ""]:
    """Compute `√(Σₖ σ_F(e)ₖ² Ḡₖₖ)`.

    To first order, this is how far the noise of the forward model moves the outputs. With several
    members it is, by the law of total variance,

        √(1/N Σⱼ (Σₖ σ_Fⱼ(e)ₖ² Ḡⱼₖₖ + ‖Φ(μ_Fⱼ(e)) − 1/N Σᵢ Φ(μ_Fᵢ(e))‖²)):

    the noise of the members and their disagreement about the outputs.
    """
    mean, scale = metric.forward(point)
    squared = jnp.sum(scale**2 * _diagonal(metric, metric.samples(point)))
    if metric.members > 1:
        outputs = metric.phi(mean).reshape(metric.members, -1)
        squared += jnp.sum((outputs - jnp.mean(outputs, axis=0)) ** 2)
    return jnp.sqrt(squared)


def probe(metric: Composite, latent: int, probes: int = 1, *, key: PRNGKeyArray) -> Composite:
    """Return the metric with its variance term estimated by random signs.

    `latent` is the number of dimensions of the forward model's output, of all members together.
    """
    term = ProbedScale(jr.rademacher(key, (probes, latent), dtype=float))
    return replace(metric, scale_term=term)


def sample(metric: Composite, latent: int, samples: int, *, key: PRNGKeyArray) -> Composite:
    """Return the metric whose `Ḡ` is averaged over samples `x ~ F(·|e)`.

    By default `Ḡ` is taken at the mean of `F`. `latent` is as in `probe`.
    """
    return replace(metric, noise=jr.normal(key, (samples, latent)))


def _push_samples(phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
    pushed = jax.vmap(lambda x: jax.jvp(phi, (x,), (u,))[1])(x)
    return jnp.ravel(pushed) / jnp.sqrt(len(x))


def _mean_gram(phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
    J = jax.vmap(jax.jacfwd(phi))(x)
    return jnp.einsum("sni,snj->ij", J, J) / len(x)


def _diagonal(metric: Composite, x: Samples) -> Latent:
    """Compute `diag(Ḡ)`, in one pass for all members: their blocks of `J_Φ` do not overlap."""
    members = metric.members
    if members == 1:
        return jnp.sum(jax.vmap(jax.jacfwd(metric.phi))(x) ** 2, axis=(0, 1)) / len(x)

    def push(x: Latent, direction: Float[Array, " one"]) -> Float[Array, " members"]:
        pushed = jax.jvp(metric.phi, (x,), (jnp.tile(direction, members),))[1]
        return jnp.sum(pushed.reshape(members, -1) ** 2, axis=1)

    basis = jnp.eye(x.shape[1] // members, dtype=x.dtype)
    squared = jax.vmap(lambda x: jax.vmap(push, in_axes=(None, 0), out_axes=1)(x, basis))(x)
    return jnp.ravel(jnp.mean(squared, axis=0))
