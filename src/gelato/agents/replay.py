"""Replay: a ring that keeps the newest rows. A row is `(z, a, r, z′, end)` side by side, so a batch is one gather."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.mdp.pessimistic import Experience


def packed(rows: Experience) -> Float[Array, "n columns"]:
    """Experience as rows of one array."""
    columns = (rows.latents, rows.actions, rows.rewards[:, None], rows.next_latents, rows.terminated[:, None])
    return jnp.concatenate(columns, axis=1)


def unpacked(rows: Float[Array, "n columns"], latent_size: int) -> Experience:
    """Rows of one array taken apart again."""
    action_size = rows.shape[1] - 2 * latent_size - 2
    stops = np.cumsum([latent_size, action_size, 1, latent_size])
    latents, actions, rewards, next_latents, terminated = jnp.split(rows, stops, axis=1)
    return Experience(latents, actions, rewards[:, 0], next_latents, terminated[:, 0])


class Ring(eqx.Module):
    """A buffer of fixed capacity; `written` counts every row ever written."""

    rows: Float[Array, "*policies capacity columns"]
    written: Int[Array, "*policies"]

    @staticmethod
    def empty(capacity: int, columns: int) -> "Ring":
        """A buffer without rows."""
        return Ring(jnp.zeros((capacity, columns)), jnp.zeros((), jnp.int32))

    @property
    def filled(self) -> Int[Array, ""]:
        """How many rows there are to draw from."""
        return jnp.minimum(self.written, self.rows.shape[0])

    def write(self, rows: Float[Array, "n columns"]) -> "Ring":
        """Write rows over the oldest; of more than fit, the last."""
        capacity = self.rows.shape[0]
        kept = rows[-capacity:]
        skipped = len(rows) - len(kept)
        places = (self.written + skipped + jnp.arange(len(kept))) % capacity
        return Ring(self.rows.at[places].set(kept), self.written + len(rows))
