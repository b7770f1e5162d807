"""A dataset in a model's embedding space: each transition's embedding and the model's error."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.column_store import open_column, write_rows
from gelato.data.disk_columns import DiskColumn
from gelato.data.spaces import Discrete
from gelato.data.transitions import Transitions, choose_evenly
from gelato.errors import InputError
from gelato.geometry import Index, prepare
from gelato.model.fit import normalise_batch
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.progress import note, progress
from gelato.runs.files import write_atomically

_CHUNK, _IMAGE_CHUNK, _LONG = 4096, 256, 1024
# Rows on the disk that are embedded together, and points that are taken from the disk at most.
_BLOCK = 65_536
_MOST_FROM_DISK = 1_000_000
# Function from one normalised pair `(s, a)` to the predicted normalised next state.
Predictor = Callable[[Float[Array, " pair"]], Float[Array, " state"]]


class EmbeddedData(eqx.Module):
    """Transitions in the embedding space, or as pairs `(s, a)` in state space.

    `residuals` are the model's one-step errors and `rows` are `(s, a, s′)`, both normalised. If the
    states hold images, `rows` are empty, because they could be too large.
    """

    index: Index
    residuals: Float[Array, " n"]
    rows: Float[Array, "n columns"]

    def __len__(self) -> int:
        return len(self.residuals)

    @property
    def embeddings(self) -> Float[Array, "n embedding"]:
        """The embeddings of the transitions."""
        return self.index.data


def embed(
    model: LatentModel, scaling: Scaling, transitions: Transitions, points: int | None = None
) -> EmbeddedData:
    """Embed transitions, at most `points` of them, spread evenly.

    Of rows on the disk, at most a million are used, because all points are on the device.
    """
    return _embed(_LatentPredictor(model), scaling, transitions, points)


class EmbeddedColumns(NamedTuple):
    """The embedding and the residual of every transition, in files."""

    embeddings: DiskColumn
    residuals: DiskColumn


def embed_all(
    model: LatentModel, scaling: Scaling, transitions: Transitions, folder: Path
) -> EmbeddedColumns:
    """Embed any number of transitions, in one pass in blocks, into `.npy` files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "embeddings.npy", folder / "residuals.npy"
    rows, predictor = len(transitions), _LatentPredictor(model)
    with ExitStack() as stack:
        partial = [stack.enter_context(write_atomically(path)) for path in paths]
        advance = stack.enter_context(progress("embedding", rows))
        for start in range(0, rows, _BLOCK):
            stop = min(start + _BLOCK, rows)
            # The last block begins earlier, so that one compiled program serves all.
            first = max(0, stop - _BLOCK)
            part = transitions.read(first, stop)
            batch = normalise_batch(part, scaling)
            found = _predict_all(predictor, batch.inputs, batch.actions, batch.next_states)
            for path, values in zip(partial, found, strict=True):
                write_rows(path, np.asarray(values), first, rows)
            advance(stop - start)
    columns = [DiskColumn(open_column(path)) for path in paths]
    return EmbeddedColumns(*columns)


def embed_pairs(
    predictor: Predictor, scaling: Scaling, transitions: Transitions, points: int | None = None
) -> EmbeddedData:
    """Make the data of a penalty in state space, where the embedding is the pair `(s, a)` itself.

    `predictor` maps one normalised pair to the predicted normalised next state. Make it an
    `eqx.Module`: a new function would be compiled anew.
    """
    return _embed(_PairPredictor(predictor), scaling, transitions, points)


class _LatentPredictor(eqx.Module):
    """`(s, a) -> (e, ŝ′)` of the latent model."""

    model: LatentModel

    def __call__(self, state: Array, action: Array) -> tuple[Array, Array]:
        prediction = predict(self.model, state, action)
        return prediction.embedding, prediction.next_state().mean


class _PairPredictor(eqx.Module):
    """`(s, a) -> ((s, a), ŝ′)` of dynamics in state space."""

    predictor: Predictor

    def __call__(self, state: Array, action: Array) -> tuple[Array, Array]:
        pair = jnp.concatenate([state, action])
        return pair, self.predictor(pair)


def _embed(
    predictor: _LatentPredictor | _PairPredictor,
    scaling: Scaling,
    transitions: Transitions,
    points: int | None,
) -> EmbeddedData:
    if points is not None and points < 1:
        raise InputError(f"points={points}: must be at least 1")
    if transitions.on_disk:
        points = min(points or len(transitions), _MOST_FROM_DISK)
        if points < len(transitions):
            note(f"{points:,} of {len(transitions):,} transitions are embedded, spread evenly")
        else:
            transitions = transitions.read(0, len(transitions))
    if points is not None and points < len(transitions):
        transitions = transitions[choose_evenly(transitions, points)]
    # Windows and images of all rows together could be too large.
    found, rows = [], []
    for start in range(0, len(transitions), transitions.part_size):
        part = transitions[start : start + transitions.part_size]
        batch = normalise_batch(part, scaling)
        found.append(_predict_all(predictor, batch.inputs, batch.actions, batch.next_states))
        columns = (batch.states, batch.actions, batch.next_states)
        rows.append(jnp.concatenate(columns, axis=1))
        if transitions.images:
            rows[-1] = rows[-1][:, :0]
    embeddings, residuals = map(jnp.concatenate, zip(*found, strict=True))
    return EmbeddedData(prepare(embeddings), residuals, jnp.concatenate(rows))


@eqx.filter_jit
def _predict_all(
    predictor: _LatentPredictor | _PairPredictor, states: Array, actions: Array, next_states: Array
) -> tuple[Array, Array]:
    def one(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        state, action, truth = row
        embedding, predicted = predictor(state, action)
        return embedding, rms(predicted - truth)

    # Several decoders predict a long row of pixels.
    chunk = _IMAGE_CHUNK if next_states.shape[1] >= _LONG else _CHUNK
    return jax.lax.map(one, (states, actions, next_states), batch_size=min(chunk, len(states)))


def rms(error: Float[Array, "*batch state"]) -> Float[Array, "*batch"]:
    """Return `‖x‖/√d`: the size of an error for any number of dimensions."""
    return jnp.sqrt(jnp.mean(error**2, axis=-1))


@eqx.filter_jit
def sample_out_of_distribution(
    model: LatentModel, scaling: Scaling, data: EmbeddedData, count: int, *, key: PRNGKeyArray
) -> Float[Array, "count embedding"]:
    """Sample out-of-distribution pairs, embedded.

    Take two random latent states of the data. Move the first away from the second by half their
    distance. The action is uniform.
    """
    row_key, action_key = jax.random.split(key)
    rows = jax.random.randint(row_key, (count, 2), 0, len(data))
    from_, z = jax.vmap(jax.vmap(lambda row: model.embedding.inverse(data.embeddings[row])[0]))(
        rows.T
    )
    return jax.vmap(model.embedding)(
        z + (z - from_) / 2, sample_actions(scaling, count, action_key)
    )


def sample_actions(scaling: Scaling, count: int, key: PRNGKeyArray) -> Float[Array, "count action"]:
    """Sample actions uniformly from the space, in the model's form."""
    space = scaling.action_space
    if isinstance(space, Discrete):
        return jax.nn.one_hot(jax.random.randint(key, (count,), 0, space.n), space.n)
    low, high = jnp.array(space.low), jnp.array(space.high)
    return jax.random.uniform(key, (count, space.size), minval=low, maxval=high)
