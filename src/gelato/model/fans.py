"""Sampled rollouts along one held-out action sequence, for fan charts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gelato.model.check import choose_sequence_starts, find_longest_horizon, sample_rollouts
from gelato.model.fit import normalise_batch
from gelato.model.training import FittedModel

_SAMPLES = 256
_DIMENSIONS = 5


@dataclass(frozen=True)
class Fan:
    """Rollouts in the data's units. The first step is the state that they start from.

    `moving` are the dimensions that move most, in ascending order.
    """

    sampled: Float[np.ndarray, "samples steps state"]
    truth: Float[np.ndarray, "steps state"]
    moving: tuple[int, ...]


def sample_fan(fitted: FittedModel, *, seed_index: int = 0) -> Fan:
    """Sample rollouts of one model along the action sequence in the middle of the held-out data."""
    _, held_out = fitted.parts
    model, horizon = fitted.seed(seed_index), find_longest_horizon(held_out)
    starts = choose_sequence_starts(held_out, horizon, 9)
    start = int(starts[len(starts) // 2])
    batch = normalise_batch(
        held_out[start : start + horizon], fitted.scaling, jnp.zeros((horizon, 0))
    )
    key = jax.random.key(0)
    sampled = sample_rollouts(model, batch.inputs[0], batch.actions, samples=_SAMPLES, key=key)
    raw = np.asarray(fitted.scaling.states.inverse(np.asarray(sampled)))
    first = np.asarray(held_out.states[start], np.float32)
    truth = np.asarray(held_out.next_states[start : start + horizon], np.float32)
    raw = np.concatenate([np.broadcast_to(first, (_SAMPLES, 1, len(first))), raw], axis=1)
    moving = np.argsort(-np.asarray(batch.next_states).std(axis=0))[:_DIMENSIONS]
    return Fan(raw, np.concatenate([first[None], truth]), tuple(sorted(moving.tolist())))
