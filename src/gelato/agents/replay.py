"""A replay buffer that keeps the newest rows.

A row is the concatenation of `(z, a, r, z′, end)`, so that a batch is one gather.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Experience(eqx.Module):
    """Transitions that an agent learns from; every array has the row as its first axis."""

    latents: Float[Array, "*n latent"]
    actions: Float[Array, "*n action"]
    rewards: Float[Array, "*n"]
    next_latents: Float[Array, "*n latent"]
    terminated: Float[Array, "*n"]


def pack(rows: Experience) -> Float[Array, "n columns"]:
    """Put experience into the rows of one array."""
    columns = (
        rows.latents,
        rows.actions,
        rows.rewards[:, None],
        rows.next_latents,
        rows.terminated[:, None],
    )
    return jnp.concatenate(columns, axis=1)


def unpack(rows: Float[Array, "n columns"], latent_size: int) -> Experience:
    """Take the rows of one array apart again."""
    action_size = rows.shape[1] - 2 * latent_size - 2
    stops = np.cumsum([latent_size, action_size, 1, latent_size])
    latents, actions, rewards, next_latents, terminated = jnp.split(rows, stops, axis=1)
    return Experience(latents, actions, rewards[:, 0], next_latents, terminated[:, 0])


class ReplayBuffer(eqx.Module):
    """A buffer of fixed capacity; `written` counts every row ever written."""

    rows: Float[Array, "*policies capacity columns"]
    written: Int[Array, "*policies"]

    @staticmethod
    def create(capacity: int, columns: int) -> "ReplayBuffer":
        """Return an empty buffer."""
        return ReplayBuffer(jnp.zeros((capacity, columns)), jnp.zeros((), jnp.int32))

    @property
    def filled(self) -> Int[Array, ""]:
        """The number of rows to draw from."""
        return jnp.minimum(self.written, self.rows.shape[0])

    def write(
        self, rows: Float[Array, "n columns"], valid: Bool[Array, " n"] | None = None
    ) -> "ReplayBuffer":
        """Overwrite the oldest rows. If `rows` exceeds the capacity, keep only its last rows.

        With `valid`, only those rows are written.
        """
        capacity = self.rows.shape[0]
        if valid is not None:
            count = jnp.sum(valid, dtype=jnp.int32)
            number = jnp.cumsum(valid) - 1
            kept = valid & (number >= count - capacity)
            # An index beyond the end is dropped.
            places = jnp.where(kept, (self.written + number) % capacity, capacity)
            written = self.rows.at[places].set(rows, mode="drop")
            return ReplayBuffer(written, self.written + count)
        kept = rows[-capacity:]
        skipped = len(rows) - len(kept)
        places = (self.written + skipped + jnp.arange(len(kept))) % capacity
        return ReplayBuffer(self.rows.at[places].set(kept), self.written + len(rows))
