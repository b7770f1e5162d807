"""The invertible embedding `E(z, a)`: affine couplings over the concatenation of latent state and action.

A coupling leaves one half of its input as it is and maps the other by `y = x ⊙ exp(s(u)) + t(u)`, with `u` the half
that stays: its inverse is exact and its log-determinant is `Σ s(u)`.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.model.networks import MLP


class AffineCoupling(eqx.Module):
    """One coupling; `flip` says which half is mapped."""

    conditioner: MLP
    split: int = eqx.field(static=True)
    flip: bool = eqx.field(static=True)

    def __init__(self, size: int, hidden: Sequence[int], activation: str, *, flip: bool, key: PRNGKeyArray) -> None:
        self.split, self.flip = size // 2, flip
        kept = self.split if flip else size - self.split
        # Nearly the identity at first: the embedding starts as (z, a) itself.
        self.conditioner = MLP(kept, 2 * (size - kept), hidden, activation, final_scale=0.01, key=key)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        kept, mapped = self._halves(x)
        log_scale, shift = self._scale_and_shift(kept)
        return self._join(kept, mapped * jnp.exp(log_scale) + shift)

    def inverse(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """The `x` that this coupling maps to `y`."""
        kept, mapped = self._halves(y)
        log_scale, shift = self._scale_and_shift(kept)
        return self._join(kept, (mapped - shift) * jnp.exp(-log_scale))

    def log_determinant(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """`log |det ∂y/∂x|`."""
        kept, _ = self._halves(x)
        return jnp.sum(self._scale_and_shift(kept)[0])

    def _halves(self, x: Float[Array, " d"]) -> tuple[Float[Array, " kept"], Float[Array, " mapped"]]:
        first, second = x[: self.split], x[self.split :]
        return (first, second) if self.flip else (second, first)

    def _join(self, kept: Float[Array, " kept"], mapped: Float[Array, " mapped"]) -> Float[Array, " d"]:
        return jnp.concatenate([kept, mapped] if self.flip else [mapped, kept])

    def _scale_and_shift(self, kept: Float[Array, " kept"]) -> tuple[Float[Array, " mapped"], Float[Array, " mapped"]]:
        raw_scale, shift = jnp.split(self.conditioner(kept), 2)
        # Bounded, so that neither direction can overflow.
        return jnp.tanh(raw_scale), shift


class Embedding(eqx.Module):
    """`e = E(z, a)`: couplings that map the halves in turn, invertible without loss."""

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
            AffineCoupling(size, hidden, activation, flip=index % 2 == 1, key=k) for index, k in enumerate(keys)
        )

    def __call__(self, z: Float[Array, " latent"], a: Float[Array, " action"]) -> Float[Array, " embedding"]:
        e = jnp.concatenate([z, a])
        for coupling in self.couplings:
            e = coupling(e)
        return e

    def inverse(self, e: Float[Array, " embedding"]) -> tuple[Float[Array, " latent"], Float[Array, " action"]]:
        """The `(z, a)` that `e` embeds."""
        for coupling in reversed(self.couplings):
            e = coupling.inverse(e)
        return e[: self.latent_size], e[self.latent_size :]

    def log_determinant(self, z: Float[Array, " latent"], a: Float[Array, " action"]) -> Float[Array, ""]:
        """`log |det ∂e/∂(z, a)|`."""
        e, total = jnp.concatenate([z, a]), jnp.zeros(())
        for coupling in self.couplings:
            total, e = total + coupling.log_determinant(e), coupling(e)
        return total
