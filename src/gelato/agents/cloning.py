"""Behaviour cloning: the policy closest to the data's actions.

Continuous actions: `min Σ ‖a − π(z)‖²`. Discrete actions: `max Σ log π(a|z)`.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.agents.agent import Metrics, View
from gelato.agents.logged import AbstractLoggedAgent
from gelato.agents.networks import Actor, box_of
from gelato.agents.replay import unpack
from gelato.data.spaces import Discrete
from gelato.model.networks import descend
from gelato.random_streams import CLONE, INIT, derive_key


class CloningState(eqx.Module):
    """State of the training between updates."""

    actor: Actor
    optimiser: optax.OptState
    step: Int[Array, "*batch"]


@dataclass(frozen=True)
class Cloning(AbstractLoggedAgent):
    """Behaviour cloning from logged data only."""

    stream = CLONE

    def init(self, view: View, *, key: PRNGKeyArray) -> CloningState:
        actor = Actor(view.latent_size, view.action_space, self.hidden, key=derive_key(key, INIT))
        optimiser = self.optimiser.init(eqx.filter(actor, eqx.is_array))
        return CloningState(actor, optimiser, jnp.zeros((), jnp.int32))

    def update(
        self, view: View, state: CloningState, rows: Int[Array, " size"], *, key: PRNGKeyArray
    ) -> tuple[CloningState, Metrics]:
        del key
        batch = unpack(view.logged[rows], view.latent_size)

        def loss(actor: Actor) -> tuple[Float[Array, ""], Metrics]:
            value = jnp.mean(measure_imitation(actor, batch.latents, batch.actions))
            return value, {"loss": value}

        actor, optimiser, metrics = descend(self.optimiser, state.optimiser, state.actor, loss)
        return CloningState(actor, optimiser, state.step + 1), metrics

    def actor(self, state: CloningState) -> Actor:
        return state.actor


def measure_imitation(
    actor: Actor, latents: Float[Array, "n latent"], actions: Float[Array, "n action"]
) -> Float[Array, " n"]:
    """Return how much the policy's action differs from the logged one, for each row.

    Continuous actions: the mean square, in halves of the action range. Discrete actions: `−log π`.
    """

    def one(z: Float[Array, " latent"], action: Float[Array, " action"]) -> Float[Array, ""]:
        if isinstance(actor.space, Discrete):
            return -actor.log_probabilities(z) @ action
        return jnp.mean(((action - actor.mode(z)) / box_of(actor.space)[1]) ** 2)

    return jax.vmap(one)(latents, actions)
