"""Theorem 2: the metric of a stochastic forward model followed by a random decoder of an ensemble.

    G(e) = J_μFᵀ Ḡ J_μF + J_σFᵀ diag(Ḡ) J_σF,    Ḡ = E_{x ~ F(·|e)} J_Φ(x)ᵀ J_Φ(x),

with the stacked ensemble `Φ = (μ¹, σ¹, …, μᴹ, σᴹ)/√M`, so that

    vᵀGv = ‖J_Φ J_μF v‖² + Σₖ (J_σF v)ₖ² Ḡₖₖ.

Only the last sum needs `diag(Ḡ)`, which costs one product per latent dimension. There are three
methods to compute it: `ExactScale`, `FrozenScale` (the diagonal at one fixed point) and
`ProbedScale` (random signs ε, for which `E‖J_Φ(ε ⊙ u)‖² = Σₖ uₖ² Ḡₖₖ`).
"""

from abc import abstractmethod

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
    def compute_rows(self, phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
        """Compute a vector, linear in `u`, whose squared norm is the term."""

    @abstractmethod
    def weights(self, phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
        """Compute the matrix of the term, `diag(Ḡ)` or its estimate."""


class ExactScale(AbstractScaleTerm):
    """`diag(Ḡ)` from the whole Jacobian, at every point."""

    def compute_rows(self, phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
        return jnp.sqrt(_diagonal(phi, x)) * u

    def weights(self, phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
        return jnp.diag(_diagonal(phi, x))


class FrozenScale(AbstractScaleTerm):
    """`diag(Ḡ)` computed once, at a fixed point (see `freeze`)."""

    diagonal: Latent

    def compute_rows(self, phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
        del phi, x
        return jnp.sqrt(self.diagonal) * u

    def weights(self, phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
        del phi, x
        return jnp.diag(self.diagonal)


class ProbedScale(AbstractScaleTerm):
    """The unbiased estimate `mean_p ‖J_Φ(εₚ ⊙ u)‖²` from random signs (see `probe`).

    It costs one product for each probe.
    """

    signs: Float[Array, "probes latent"]

    def compute_rows(self, phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
        pushed = jax.vmap(lambda sign: _push_samples(phi, x, sign * u))(self.signs)
        return jnp.ravel(pushed) / jnp.sqrt(len(self.signs))

    def weights(self, phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
        G = _mean_gram(phi, x)
        return jnp.mean(jax.vmap(lambda sign: sign[:, None] * G * sign)(self.signs), axis=0)


class Composite(AbstractImmersed):
    """The metric of Theorem 2 for a forward model and an ensemble of decoders.

    The forward model is `e -> (μ_F, σ_F)`; the decoders are `x -> ([M, out] means, [M, out]
    scales)`. `noise` holds standard normal draws: `Ḡ` is averaged over `x = μ_F + σ_F ⊙ noise`. By
    default `x` is the mean of F, as in the paper's algorithm. Fixed draws keep the metric
    deterministic and smooth.
    """

    forward: Gaussian
    decoder: Gaussian
    noise: Float[Array, "samples latent"] | None = None
    scale_term: AbstractScaleTerm = ExactScale()

    def __call__(self, point: Point) -> Float[Array, "dim dim"]:
        J_mean, J_scale = jax.jacfwd(self.forward)(point)
        x = self.samples(point)
        G = _mean_gram(self.phi, x)
        return J_mean.T @ G @ J_mean + J_scale.T @ self.scale_term.weights(self.phi, x) @ J_scale

    def quadratic(self, point: Point, tangent: Tangent) -> Float[Array, ""]:
        _, (d_mean, d_scale) = jax.jvp(self.forward, (point,), (tangent,))
        x = self.samples(point)
        first = _push_samples(self.phi, x, d_mean)
        second = self.scale_term.compute_rows(self.phi, x, d_scale)
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
                [jnp.ravel(outputs), self.scale_term.compute_rows(self.phi, x, scale)]
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
    diagonal = _diagonal(metric.phi, metric.samples(point))
    return Composite(metric.forward, metric.decoder, metric.noise, FrozenScale(diagonal))


def compute_noise_effect(metric: Composite, point: Point) -> Float[Array, ""]:
    """Compute `√(Σₖ σ_F(e)ₖ² Ḡₖₖ)`.

    To first order, this is how far the noise of the forward model moves the outputs.
    """
    _, scale = metric.forward(point)
    return jnp.sqrt(jnp.sum(scale**2 * _diagonal(metric.phi, metric.samples(point))))


def probe(metric: Composite, latent: int, probes: int = 1, *, key: PRNGKeyArray) -> Composite:
    """Return the metric with its variance term estimated by random signs.

    `latent` is the number of dimensions of the forward model's output.
    """
    term = ProbedScale(jr.rademacher(key, (probes, latent), dtype=float))
    return Composite(metric.forward, metric.decoder, metric.noise, term)


def sample(metric: Composite, latent: int, samples: int, *, key: PRNGKeyArray) -> Composite:
    """Return the metric whose `Ḡ` is averaged over samples `x ~ F(·|e)`.

    By default `Ḡ` is taken at the mean of `F`.
    """
    return Composite(
        metric.forward, metric.decoder, jr.normal(key, (samples, latent)), metric.scale_term
    )


def _push_samples(phi: Immersion, x: Samples, u: Latent) -> Float[Array, " rows"]:
    pushed = jax.vmap(lambda x: jax.jvp(phi, (x,), (u,))[1])(x)
    return jnp.ravel(pushed) / jnp.sqrt(len(x))


def _mean_gram(phi: Immersion, x: Samples) -> Float[Array, "latent latent"]:
    J = jax.vmap(jax.jacfwd(phi))(x)
    return jnp.einsum("sni,snj->ij", J, J) / len(x)


def _diagonal(phi: Immersion, x: Samples) -> Latent:
    return jnp.sum(jax.vmap(jax.jacfwd(phi))(x) ** 2, axis=(0, 1)) / len(x)
