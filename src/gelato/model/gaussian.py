"""Diagonal Gaussians as values: density, sample and Kullback–Leibler divergence in closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Gaussian(eqx.Module):
    """`N(mean, diag(variance))`; leading axes are independent distributions."""

    mean: Float[Array, "*batch dim"]
    variance: Float[Array, "*batch dim"]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, "*batch dim"]:
        """Sample `μ + σ ε` with `ε ~ N(0, I)`."""
        return self.sample_from_noise(jax.random.normal(key, self.mean.shape, self.mean.dtype))

    def sample_from_noise(self, noise: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """Return `μ + σ ε` for a given `ε`, differentiable in `μ` and `σ`."""
        return self.mean + jnp.sqrt(self.variance) * noise

    def log_density(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
        """Return `log N(x; μ, σ²)`, summed over dimensions."""
        return log_density(jnp.square(x - self.mean), self.variance)

    def merge(self) -> "Gaussian":
        """Return mean and variance of the equal mixture over the first axis.

        By the law of total variance, `σ² = mean σᵢ² + var μᵢ`.
        """
        variance = self.variance.mean(axis=0) + self.mean.var(axis=0)
        return Gaussian(self.mean.mean(axis=0), variance)

    def divergence(self, other: "Gaussian") -> Float[Array, "*batch"]:
        """Return `KL(self ‖ other) = ½ Σ (σ₁²/σ₂² + (μ₁ − μ₂)²/σ₂² − 1 + log σ₂²/σ₁²)`."""
        ratio = self.variance / other.variance
        distance = jnp.square(self.mean - other.mean) / other.variance
        return 0.5 * jnp.sum(ratio + distance - 1 - jnp.log(ratio), axis=-1)


def log_density(
    squared_error: Float[Array, "*batch dim"],
    variance: Float[Array, "*#batch dim"] | Float[Array, "*#batch 1"],
) -> Float[Array, "*batch"]:
    """Return the Gaussian log-density `−½ Σ (error²/σ² + log 2πσ²)` of an error."""
    return -0.5 * jnp.sum(squared_error / variance + jnp.log(2 * jnp.pi * variance), axis=-1)


def make_standard_like(gaussian: Gaussian) -> Gaussian:
    """Return `N(0, I)` of the same shape, the prior of the first latent state."""
    return Gaussian(jnp.zeros_like(gaussian.mean), jnp.ones_like(gaussian.variance))
