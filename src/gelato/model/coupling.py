"""The invertible embedding `E(z, a)`: affine couplings of latent state and action.

A coupling keeps one half `u` of its input and maps the other half by `y = x ⊙ exp(s(u)) + t(u)`.
Its inverse is exact, and its log-determinant is `Σ s(u)`.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.model.networks import MLP


class AffineCoupling(eqx.Module):
    """One coupling. It maps the first half of its input, or the second half with `flip`."""

    conditioner: MLP
    split: int = eqx.field(static=True)
    flip: bool = eqx.field(static=True)

    def __init__(
        self, size: int, hidden: Sequence[int], activation: str, *, flip: bool, key: PRNGKeyArray
    ) -> None:
        self.split, self.flip = size // 2, flip
        kept = self.split if flip else size - self.split
        # The small scale makes the embedding start close to (z, a).
        self.conditioner = MLP(
            kept, 2 * (size - kept), hidden, activation, final_scale=0.01, key=key
        )

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        kept, mapped = self._halves(x)
        log_scale, shift = self._scale_and_shift(kept)
        return self._join(kept, mapped * jnp.exp(log_scale) + shift)

    def inverse(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the `x` that this coupling maps to `y`."""
        kept, mapped = self._halves(y)
        log_scale, shift = self._scale_and_shift(kept)
        return self._join(kept, (mapped - shift) * jnp.exp(-log_scale))

    def log_determinant(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Return `log |det ∂y/∂x|`."""
        kept, _ = self._halves(x)
        return jnp.sum(self._scale_and_shift(kept)[0])

    def _halves(
        self, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " kept"], Float[Array, " mapped"]]:
        first, second = x[: self.split], x[self.split :]
        return (first, second) if self.flip else (second, first)

    def _join(
        self, kept: Float[Array, " kept"], mapped: Float[Array, " mapped"]
    ) -> Float[Array, " d"]:
        return jnp.concatenate([kept, mapped] if self.flip else [mapped, kept])

    def _scale_and_shift(
        self, kept: Float[Array, " kept"]
    ) -> tuple[Float[Array, " mapped"], Float[Array, " mapped"]]:
        raw_scale, shift = jnp.split(self.conditioner(kept), 2)
        # The bound prevents overflow in both directions.
        return jnp.tanh(raw_scale), shift


class Embedding(eqx.Module):
    """`e = E(z, a)`: couplings that map the two halves alternately; exactly invertible."""

    couplings: tuple[AffineCoupling, ...]
    latent_size: int = eqx.field(static=True)

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        layers: int,
        hidden: Sequence[int],
        activation: str,
        *,
        key: PRNGKeyArray,
    ) -> None:
        size, keys = latent_size + action_size, jax.random.split(key, layers)
        self.latent_size = latent_size
        self.couplings = tuple(
            AffineCoupling(size, hidden, activation, flip=index % 2 == 1, key=k)
            for index, k in enumerate(keys)
        )

    def __call__(
        self, z: Float[Array, " latent"], a: Float[Array, " action"]
    ) -> Float[Array, " embedding"]:
        e = jnp.concatenate([z, a])
        for coupling in self.couplings:
            e = coupling(e)
        return e

    def inverse(
        self, e: Float[Array, " embedding"]
    ) -> tuple[Float[Array, " latent"], Float[Array, " action"]]:
        """Return the `(z, a)` whose embedding is `e`."""
        for coupling in reversed(self.couplings):
            e = coupling.inverse(e)
        return e[: self.latent_size], e[self.latent_size :]

    def log_determinant(
        self, z: Float[Array, " latent"], a: Float[Array, " action"]
    ) -> Float[Array, ""]:
        """Return `log |det ∂e/∂(z, a)|`."""
        e, total = jnp.concatenate([z, a]), jnp.zeros(())
        for coupling in self.couplings:
            total, e = total + coupling.log_determinant(e), coupling(e)
        return total
