"""Bounds of the model's one-step error with finite-sample coverage (`conformal.py`).

The score of a row is its error over the σ that the model predicts there, so that a bound is wide
where the model is unsure. There is one threshold per state dimension and one for the norm. Each of
them covers on its own; they do not cover together.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.data.transitions import Transitions
from gelato.model.fit import normalise_batch
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.uncertainty.conformal import find_threshold

_CHUNK = 1024
# Rows that thresholds are computed from, at most.
_ROWS = 20_000


class Predicted(eqx.Module):
    """Embeddings of pairs, and mean and deviation of their next states, in normalised units."""

    embeddings: Float[Array, "*n embedding"]
    mean: Float[Array, "*n state"]
    deviation: Float[Array, "*n state"]


@dataclass(frozen=True)
class ErrorBounds:
    """Multiples of the predicted deviation that bound the error, and what they promise.

    The norm is `‖s′ − ŝ′‖/√d` in standard deviations of the data's states.
    """

    norm: float
    per_dimension: Float[np.ndarray, " state"]
    coverage: float

    def bound_norm(self, predicted: Predicted) -> Float[np.ndarray, " n"]:
        """Return the bound of the norm of each row's error."""
        return self.norm * rms_rows(np.asarray(predicted.deviation))

    def bound_dimensions(self, predicted: Predicted) -> Float[np.ndarray, "n state"]:
        """Return the bound of each dimension's error, in normalised units."""
        return self.per_dimension * np.asarray(predicted.deviation)


def fit_bounds(
    predicted: Predicted,
    truth: Float[np.ndarray, "n state"],
    episodes: Int[np.ndarray, " n"],
    coverage: float,
) -> ErrorBounds:
    """Find the multiples on calibration rows; `truth` are their normalised next states."""
    error = np.abs(np.asarray(predicted.mean) - truth)
    deviation = np.asarray(predicted.deviation)
    norm = find_threshold(rms_scores(predicted, truth), episodes, coverage)
    multiples = []
    for dimension in range(truth.shape[1]):
        scores = error[:, dimension] / deviation[:, dimension]
        multiples.append(find_threshold(scores, episodes, coverage).value)
    return ErrorBounds(norm.value, np.array(multiples, np.float32), norm.coverage)


def rms_scores(
    predicted: Predicted, truth: Float[np.ndarray, "n state"]
) -> Float[np.ndarray, " n"]:
    """Return the norm of each row's error over the norm of its predicted deviation."""
    error = np.asarray(predicted.mean) - truth
    return rms_rows(error) / rms_rows(np.asarray(predicted.deviation))


def rms_rows(error: Float[np.ndarray, "n state"]) -> Float[np.ndarray, " n"]:
    """Return the root of the mean square of each row."""
    return np.sqrt(np.mean(error**2, axis=1))


def predict_rows(model: LatentModel, scaling: Scaling, transitions: Transitions) -> Predicted:
    """Predict the next state of every row."""
    batch = normalise_batch(transitions, scaling)
    return predict_pairs(model, batch.inputs, batch.actions)


@eqx.filter_jit
def predict_pairs(
    model: LatentModel, states: Float[Array, "n input"], actions: Float[Array, "n action"]
) -> Predicted:
    """Predict the next state of normalised inputs of the encoder under encoded actions."""

    def one(pair: tuple[Array, Array]) -> Predicted:
        prediction = predict(model, *pair)
        following = prediction.next_state()
        return Predicted(prediction.embedding, following.mean, jnp.sqrt(following.variance))

    return jax.lax.map(one, (states, actions), batch_size=min(_CHUNK, len(states)))


def number_episodes(transitions: Transitions) -> Int[np.ndarray, " n"]:
    """Return the number of each row's episode."""
    lengths = [rows.stop - rows.start for rows in transitions.episode_slices]
    return np.repeat(np.arange(len(lengths)), lengths)


def choose_calibration_rows(transitions: Transitions, most: int = _ROWS) -> Int[np.ndarray, " k"]:
    """Choose rows at random, the same number from every episode that has as many.

    A random row of those chosen is a random row of the episode, so coverage is the same.
    """
    slices = transitions.episode_slices
    each = max(1, most // len(slices))
    rng = np.random.default_rng(0)
    chosen = []
    for rows in slices:
        count = min(each, rows.stop - rows.start)
        chosen.append(rows.start + np.sort(rng.permutation(rows.stop - rows.start)[:count]))
    return np.concatenate(chosen)
