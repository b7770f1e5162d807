"""The log as estimators see it: flat rows, and where each episode's rows are."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gelato.agents.networks import box_of
from gelato.data.spaces import ActionSpace, Continuous
from gelato.data.transitions import Standardiser, Transitions
from gelato.errors import InputError

# Windows before and after every row, and both as critics see them, twice: here and on the device.
_COPIES = 6


class Log(eqx.Module):
    """Logged steps in the data's own units, actions as models receive them.

    If the data has a history, `states` and `next_states` are windows: a policy, a critic and a
    behaviour policy then read the history as their state. They need `history` times the memory.

    `rows` holds the row of each step of each episode; `present` says which entries are steps.
    `count` is the number of rows; arrays may be longer. `log_densities` are those of the logged
    actions under the policy that recorded them, or None if the log does not contain them.
    """

    states: Float[Array, "n state"]
    actions: Float[Array, "n action"]
    rewards: Float[Array, " n"]
    next_states: Float[Array, "n state"]
    terminated: Bool[Array, " n"]
    episodes: Int[Array, " n"]
    rows: Int[Array, "episodes steps"]
    present: Bool[Array, "episodes steps"]
    count: Int[Array, ""]
    log_densities: Float[Array, " n"] | None
    scaling: Standardiser
    space: ActionSpace = eqx.field(static=True)

    @property
    def initial_states(self) -> Float[Array, "episodes state"]:
        """The first state of every episode."""
        return self.states[self.rows[:, 0]]

    def standardise(self, states: Float[Array, "*batch state"]) -> Float[Array, "*batch state"]:
        """Return states as critics see them."""
        return jnp.asarray(self.scaling(states))

    def returns(self, discount: float = 1.0) -> Float[Array, " episodes"]:
        """Return the discounted return of every episode."""
        factors = discount ** jnp.arange(self.rows.shape[1])
        rewards = jnp.where(self.present, self.rewards[self.rows], 0)
        return jnp.sum(rewards * factors, axis=1)


def normalise_actions(
    space: ActionSpace, actions: Float[Array, "*batch action"]
) -> Float[Array, "*batch action"]:
    """Scale continuous actions to [−1, 1]; discrete ones stay one-hot."""
    if not isinstance(space, Continuous):
        return actions
    middle, half = box_of(space)
    return (actions - middle) / half


def make_log(transitions: Transitions) -> Log:
    """Make the log of transitions. A last row without a successor is left out unless it ends the
    task: nothing is known about what follows it.
    """
    if transitions.images:
        raise InputError(
            "returns cannot be estimated from images yet; compare policies by episodes in the "
            "environment (`gelato evaluate`)"
        )
    known = np.asarray(transitions.has_successor | transitions.terminated)
    places = np.cumsum(known) - 1
    parts = []
    for part in transitions.episode_slices:
        kept = places[part][known[part]]
        if len(kept):
            parts.append(kept)
    data = transitions[known]
    if data.past is not None:
        data.past.check_memory(data.action_space, _COPIES)
    inputs = data.inputs
    longest = max(len(part) for part in parts)
    episodes = np.zeros(len(data), np.int32)
    rows = np.zeros((len(parts), longest), np.int32)
    present = np.zeros((len(parts), longest), bool)
    for number, part in enumerate(parts):
        episodes[part] = number
        rows[number, : len(part)] = part
        present[number, : len(part)] = True
    densities = None
    if data.action_probabilities is not None:
        densities = jnp.log(jnp.asarray(data.action_probabilities, jnp.float32))
    return Log(
        states=jnp.asarray(inputs, jnp.float32),
        actions=data.action_space.encode(np.asarray(data.actions)).astype(jnp.float32),
        rewards=jnp.asarray(data.rewards, jnp.float32),
        next_states=jnp.asarray(data.next_inputs, jnp.float32),
        terminated=jnp.asarray(data.terminated),
        episodes=jnp.asarray(episodes),
        rows=jnp.asarray(rows),
        present=jnp.asarray(present),
        count=jnp.asarray(len(data), jnp.int32),
        log_densities=densities,
        scaling=Standardiser.fit(inputs),
        space=data.action_space,
    )
