"""The part of learned dynamics that a policy uses, one step at a time:

    z = encode(s)      e = embed(z, a)      (z′, r, end) ~ imagine(e)

A policy acts on `z`; penalties judge `e`. Rewards are in the data's units, states are normalised.
"""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

Latent = Float[Array, " latent"]
Action = Float[Array, " action"]
Embedded = Float[Array, " embedding"]


class Imagined(eqx.Module):
    """The outcome of one imagined step."""

    latent: Float[Array, "*batch latent"]
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]


class AbstractDynamics(eqx.Module):
    """A learned model of an environment."""

    @abstractmethod
    def encode(self, state: Float[Array, " input"]) -> Latent:
        """Encode a normalised state, or a window if the data has a history."""

    def decode(self, latent: Latent, *, key: PRNGKeyArray) -> Float[Array, " state"]:
        """Return the normalised state that a latent state stands for."""
        del key
        return latent

    @abstractmethod
    def embed(self, latent: Latent, action: Action) -> Embedded:
        """Return the state-action that penalties judge."""

    @abstractmethod
    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        """Sample one step."""
