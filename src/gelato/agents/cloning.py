"""Behaviour cloning: the policy closest to the data's actions:

`min Σ ‖a − π(z)‖²` for a box of actions, the likeliest policy under noise of one size; `max Σ log π(a|z)` for discrete.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.agents.networks import Actor, box
from gelato.agents.replay import unpacked
from gelato.data.spaces import ActionSpace, Discrete
from gelato.optimise import in_few_kernels

CLONING_METRICS = ("loss",)


class CloningState(eqx.Module):
    """What cloning carries from update to update."""

    actor: Actor
    optimiser: Any
    step: Int[Array, "*batch"]


def begin_cloning(
    hidden: tuple[int, ...], rate: float, latent_size: int, space: ActionSpace, *, key: PRNGKeyArray
) -> CloningState:
    """An untrained policy."""
    actor = Actor(latent_size, space, hidden, key=key)
    optimiser = in_few_kernels(optax.adam(rate)).init(eqx.filter(actor, eqx.is_array))
    return CloningState(actor, optimiser, jnp.zeros((), jnp.int32))


def clone(
    state: CloningState, real: Float[Array, "n columns"], rows: Int[Array, " size"], rate: float
) -> tuple[CloningState, Float[Array, " metrics"]]:
    """One update on these rows of the data."""
    latent_size = state.actor.network.layers[0].weight.shape[-1]
    batch = unpacked(real[rows], latent_size)
    trainable, static = eqx.partition(state.actor, eqx.is_array)

    def loss(trainable: Actor) -> Float[Array, ""]:
        actor = eqx.combine(trainable, static)
        return jnp.mean(jax.vmap(lambda z, a: _distance(actor, z, a))(batch.latents, batch.actions))

    value, gradient = jax.value_and_grad(loss)(trainable)
    change, optimiser = in_few_kernels(optax.adam(rate)).update(gradient, state.optimiser, trainable)
    actor = eqx.combine(optax.apply_updates(trainable, change), static)
    return CloningState(actor, optimiser, state.step + 1), value[None]


def _distance(actor: Actor, z: Float[Array, " latent"], action: Float[Array, " action"]) -> Float[Array, ""]:
    if isinstance(actor.space, Discrete):
        return -actor.log_probabilities(z) @ action
    return jnp.mean(((action - actor.mode(z)) / box(actor.space)[1]) ** 2)
