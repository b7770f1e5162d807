"""Dynamics that carry a window, for policies that another model's encoder reads for.

A policy encodes with the model it was trained in. To roll it out in a different model, it needs
observations: those that the other model decodes. So a latent state is joined with the memory of
the observations decoded so far and of the actions taken, after those of the logged start:

    (z, memory)      e = (E(z, a), memory after decode(z) and a)      (z′, memory after …)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.history import WindowLayout
from gelato.dynamics.interface import AbstractDynamics, Action, Embedded, Imagined, Latent


class WindowedDynamics(AbstractDynamics):
    """Dynamics with a memory. Memories and decoded windows are normalised."""

    dynamics: AbstractDynamics
    layout: WindowLayout = eqx.field(static=True)

    def encode(self, state: Float[Array, " window"]) -> Latent:
        memory = state[self.layout.row_size :]
        return jnp.concatenate([self.dynamics.encode(state), memory])

    def decode(self, latent: Latent, *, key: PRNGKeyArray) -> Float[Array, " window"]:
        """Return the window of the observation that is decoded now."""
        z, memory = self.split(latent)
        return jnp.asarray(self.layout.open(self.dynamics.decode(z, key=key), memory))

    def embed(self, latent: Latent, action: Action) -> Embedded:
        z, _ = self.split(latent)
        # Judges decode without noise, so the key decides nothing.
        window = self.decode(latent, key=jax.random.key(0))
        memory = self.layout.remember(window, action)
        return jnp.concatenate([self.dynamics.embed(z, action), memory])

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        e, memory = self.split(embedding)
        outcome = self.dynamics.imagine(e, key=key)
        latent = jnp.concatenate([outcome.latent, memory])
        return Imagined(latent, outcome.reward, outcome.terminated)

    def split(
        self, joined: Float[Array, "*batch joined"]
    ) -> tuple[Float[Array, "*batch own"], Float[Array, "*batch memory"]]:
        """Split a latent state or an embedding into the model's own part and the memory."""
        size = joined.shape[-1] - self.layout.memory_size
        return joined[..., :size], joined[..., size:]
