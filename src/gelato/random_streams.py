"""The random streams of a seed, in one list.

A program draws every random number from `fold_in(key(seed), stream)`, usually with the step folded
in as well. So a resumed run draws the same numbers as an uninterrupted run, and a policy does not
depend on the other policies in the same program. Two uses must never share a stream: add new ones
here. Changing a number changes every result.
"""

import jax
from jaxtyping import Array, Int, PRNGKeyArray

# Batches and noise of the latent model's two phases; the stream is the number of the phase.
MODEL_MEANS = 0
MODEL_VARIANCES = 1
# Batches of the ensemble in state space.
ENSEMBLE_BATCHES = 3
# Every member's own sample of the data.
ENSEMBLE_SAMPLES = 2**29 + 1
# Policies: initial weights, imagined steps, updates, updates of behaviour cloning, and the noise
# that other agents add in an update.
INIT = 2**28
"""The stream of initial weights."""
IMAGINE = 2**28 + 1
"""The stream of imagined steps."""
LEARN = 2**28 + 2
"""The stream of batches and of noise in updates."""
CLONE = 2**28 + 3
NOISE = 2**28 + 4
# First weights of the ensemble in state space.
ENSEMBLE_WEIGHTS = 2**29
# First weights of the latent model.
MODEL_WEIGHTS = 2**30
# The member of an ensemble of forward networks that imagines a step. It is folded into the key of
# the step.
MEMBER = 2**30 + 1
# Noise of the held-out loss. It is folded into the key of a phase at the position where training
# folds in the step.
HELD_OUT_NOISE = 2**31


def derive_key(key: PRNGKeyArray, stream: int, step: Int[Array, ""] | int = 0) -> PRNGKeyArray:
    """Return the key of one stream at one step. `key` is the key of the seed."""
    return jax.random.fold_in(jax.random.fold_in(key, stream), step)
