"""The dataset as the model embeds it: where its transitions lie, and how wrong the model is at each of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.spaces import Discrete
from gelato.data.transitions import Transitions, evenly
from gelato.errors import InputError
from gelato.geometry import Index, prepare
from gelato.model.fit import normalised_batch
from gelato.model.latent import LatentModel, Scaling, predict

_CHUNK = 4096


class EmbeddedData(eqx.Module):
    """Transitions in the embedding space; `residuals` are the model's one-step errors, in normalised states."""

    index: Index
    residuals: Float[Array, " n"]
    rows: Float[Array, "n columns"]

    def __len__(self) -> int:
        return len(self.residuals)

    @property
    def embeddings(self) -> Float[Array, "n embedding"]:
        """Where the transitions lie."""
        return self.index.data


def embed(model: LatentModel, scaling: Scaling, transitions: Transitions, points: int | None = None) -> EmbeddedData:
    """Embed transitions, chunk by chunk; of more than `points` so many, spread evenly."""
    if points is not None and points < 1:
        raise InputError(f"points is {points}; neighbours have to be sought among at least one")
    if points is not None and points < len(transitions):
        transitions = transitions[evenly(transitions, points)]
    batch = normalised_batch(transitions, scaling, jnp.zeros((len(transitions), 0)))
    embeddings, residuals = _embed(model, batch.states, batch.actions, batch.next_states)
    rows = jnp.concatenate([batch.states, batch.actions, batch.next_states], axis=1)
    return EmbeddedData(prepare(embeddings), residuals, rows)


@eqx.filter_jit
def _embed(model: LatentModel, states: Array, actions: Array, next_states: Array) -> tuple[Array, Array]:
    def one(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        state, action, truth = row
        prediction = predict(model, state, action)
        return prediction.embedding, rms(prediction.next_state().mean - truth)

    return jax.lax.map(one, (states, actions, next_states), batch_size=min(_CHUNK, len(states)))


def rms(error: Float[Array, "*batch state"]) -> Float[Array, "*batch"]:
    """`‖x‖/√d`: the size of an error, whatever the number of dimensions."""
    return jnp.sqrt(jnp.mean(error**2, axis=-1))


@eqx.filter_jit
def foreign_pairs(
    model: LatentModel, scaling: Scaling, data: EmbeddedData, count: int, *, key: PRNGKeyArray
) -> Float[Array, "count embedding"]:
    """Embeddings beyond the data: a latent state moved away from a random other one by half their distance.

    Actions are drawn uniformly.
    """
    row_key, action_key = jax.random.split(key)
    rows = jax.random.randint(row_key, (count, 2), 0, len(data))
    from_, z = jax.vmap(jax.vmap(lambda row: model.embedding.inverse(data.embeddings[row])[0]))(rows.T)
    return jax.vmap(model.embedding)(z + (z - from_) / 2, uniform_actions(scaling, count, action_key))


def uniform_actions(scaling: Scaling, count: int, key: PRNGKeyArray) -> Float[Array, "count action"]:
    """Actions drawn uniformly from the space, as the model sees them."""
    space = scaling.action_space
    if isinstance(space, Discrete):
        return jax.nn.one_hot(jax.random.randint(key, (count,), 0, space.n), space.n)
    low, high = jnp.array(space.low), jnp.array(space.high)
    return jax.random.uniform(key, (count, space.size), minval=low, maxval=high)
