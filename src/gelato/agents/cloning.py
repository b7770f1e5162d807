"""Behaviour cloning: the policy closest to the data's actions.

Continuous actions: `min Σ ‖a − π(z)‖²`. Discrete actions: `max Σ log π(a|z)`.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.networks import Actor, box_of
from gelato.agents.replay import unpack
from gelato.compilation import TRAINED_PASSES, Work, count_products, fuse_small_arrays
from gelato.data.spaces import Discrete
from gelato.errors import require_positive
from gelato.mdp.pessimistic import Step
from gelato.random_streams import CLONE, INIT, derive_key


class CloningState(eqx.Module):
    """State of the training between updates."""

    actor: Actor
    optimiser: optax.OptState
    step: Int[Array, "*batch"]


@dataclass(frozen=True)
class Cloning(AbstractAgent):
    """Behaviour cloning from logged data only."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    rate: float = 3e-4
    """Learning rate."""
    batch_size: int = 256
    """Transitions per update."""
    updates: int = 300_000
    """Total number of updates."""
    epoch: int = 1_000
    """Updates between two rows of metrics."""

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "rate", "batch_size", "updates", "epoch")

    @property
    def updates_per_rollout(self) -> int:
        return self.epoch

    def init(self, view: View, *, key: PRNGKeyArray) -> CloningState:
        actor = Actor(view.latent_size, view.action_space, self.hidden, key=derive_key(key, INIT))
        optimiser = self._optimiser().init(eqx.filter(actor, eqx.is_array))
        return CloningState(actor, optimiser, jnp.zeros((), jnp.int32))

    def learn(
        self,
        view: View,
        state: CloningState,
        steps: Step | None,
        updates: int,
        *,
        key: PRNGKeyArray,
    ) -> tuple[CloningState, Metrics]:
        del steps

        def draw_rows(step: Int[Array, ""]) -> Int[Array, " size"]:
            key_now = derive_key(key, CLONE, step)
            return jax.random.randint(key_now, (self.batch_size,), 0, len(view.logged))

        def update(state: CloningState, rows: Int[Array, " size"]) -> tuple[CloningState, Array]:
            return self._update(state, view.logged[rows])

        rows = jax.vmap(draw_rows)(state.step + jnp.arange(updates))
        state, losses = jax.lax.scan(update, state, rows)
        return state, {"loss": jnp.mean(losses)}

    def actor(self, state: CloningState) -> Actor:
        return state.actor

    def estimate_work(self, latent_size: int, action_size: int, step_products: float) -> Work:
        del step_products
        products = count_products((latent_size, *self.hidden, 2 * action_size))
        return Work(
            self.updates * self.batch_size * TRAINED_PASSES * products, self.updates, programs=1
        )

    def _update(
        self, state: CloningState, rows: Float[Array, "size columns"]
    ) -> tuple[CloningState, Float[Array, ""]]:
        latent_size = state.actor.network.layers[0].weight.shape[-1]
        batch = unpack(rows, latent_size)
        trainable, static = eqx.partition(state.actor, eqx.is_array)

        def loss(trainable: Actor) -> Float[Array, ""]:
            actor = eqx.combine(trainable, static)
            distances = jax.vmap(lambda z, a: _distance(actor, z, a))
            return jnp.mean(distances(batch.latents, batch.actions))

        value, gradient = jax.value_and_grad(loss)(trainable)
        change, optimiser = self._optimiser().update(gradient, state.optimiser, trainable)
        actor = eqx.combine(optax.apply_updates(trainable, change), static)
        return CloningState(actor, optimiser, state.step + 1), value

    def _optimiser(self) -> optax.GradientTransformation:
        return fuse_small_arrays(optax.adam(self.rate))


def _distance(
    actor: Actor, z: Float[Array, " latent"], action: Float[Array, " action"]
) -> Float[Array, ""]:
    if isinstance(actor.space, Discrete):
        return -actor.log_probabilities(z) @ action
    return jnp.mean(((action - actor.mode(z)) / box_of(actor.space)[1]) ** 2)
