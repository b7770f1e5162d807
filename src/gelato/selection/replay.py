"""How wrong models are where the truth is known: logged actions, replayed in the models.

Models that share an error agree with each other, so their disagreement does not show it. Segments
of logged episodes do: a model starts in the segment's first state, takes the logged actions, and
its sum of rewards is compared with the logged one. The mean difference per step is the model's
bias. The part of it that chance does not explain widens the interval of a return. Errors about when
an episode ends are not measured.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gelato.data.transitions import choose_evenly
from gelato.selection.log import Log
from gelato.selection.rollouts import Judge

SEGMENTS, LENGTH = 256, 20
# Differences up to so many standard errors may be chance.
_ERRORS = 1.96


class Bias(eqx.Module):
    """Mean error of the reward per step of each model, and its standard error over segments."""

    means: Float[np.ndarray, " models"]
    errors: Float[np.ndarray, " models"]

    def find_unexplained(self, models: Bool[np.ndarray, " models"]) -> float:
        """Return the size of the common bias of these models that chance does not explain."""
        # All models replay the same segments, so averaging them does not reduce the error.
        error = _ERRORS * float(np.sqrt(np.mean(self.errors[models] ** 2)))
        return max(0.0, abs(float(self.means[models].mean())) - error)


def measure_bias(judges: Sequence[Judge], log: Log, *, key: PRNGKeyArray) -> Bias:
    """Replay segments of the log in every model."""
    rows, present = choose_windows(log)
    states, actions = log.states[rows[:, 0]], log.actions[rows]
    logged = np.asarray(jnp.sum(jnp.where(present, log.rewards[rows], 0), axis=1))
    steps = np.asarray(present).sum(axis=1)
    means, errors = [], []
    for judge in judges:
        found = np.asarray(replay(judge, states, actions, present, key=key))
        difference = (found - logged) / steps
        means.append(difference.mean())
        errors.append(difference.std(ddof=1) / np.sqrt(len(difference)))
    return Bias(np.array(means), np.array(errors))


def choose_windows(log: Log) -> tuple[Array, Array]:
    """Return the rows of segments `[segments, steps]`, and which of them are in the episode."""
    present = np.asarray(log.present)
    episodes, first = np.nonzero(present)
    chosen = choose_evenly(first, SEGMENTS)
    steps = first[chosen, None] + np.arange(LENGTH)
    last = present.shape[1] - 1
    inside = (steps <= last) & present[episodes[chosen, None], np.minimum(steps, last)]
    rows = np.asarray(log.rows)[episodes[chosen, None], np.minimum(steps, last)]
    return jnp.asarray(rows), jnp.asarray(inside)


@eqx.filter_jit
def replay(
    judge: Judge,
    states: Float[Array, "n state"],
    actions: Float[Array, "n steps action"],
    present: Bool[Array, "n steps"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, " n"]:
    """Return the model's sum of rewards for logged actions from logged states.

    A segment is as long as in the log, wherever the model would end the episode. Ends are random in
    some tasks, and a model without errors would then be called wrong.
    """

    def one(state: Array, actions: Array, present: Array, key: PRNGKeyArray) -> Float[Array, ""]:
        def step(z: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
            action, known, step_key = row
            outcome = judge.dynamics.imagine(judge.dynamics.embed(z, action), key=step_key)
            return outcome.latent, jnp.where(known, outcome.reward, 0)

        z = judge.dynamics.encode(jnp.asarray(judge.scaling.inputs(state)))
        keys = jax.random.split(key, len(actions))
        return jnp.sum(jax.lax.scan(step, z, (actions, present, keys))[1])

    return jax.vmap(one)(states, actions, present, jax.random.split(key, len(states)))
