"""Soft actor–critic on logged and imagined steps (Algorithm "GELATO with Soft Learning").

An epoch imagines steps from the data with the current policy, penalises them, writes them into the ring and then
updates on batches of both. Everything here is for one policy; `learner.py` runs many at once.

    target = clip(r + γ (1 − end) V(z′)),      V(z) = E_{a~π} [minᵢ Qᵢ(z, a) − α log π(a|z)]

The clip is to what the reward range allows: an overestimated value cannot feed on itself.
"""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.agents.networks import Actor, Critic
from gelato.agents.replay import Ring, unpacked
from gelato.data.spaces import ActionSpace, Discrete
from gelato.errors import InputError
from gelato.mdp.pessimistic import Experience
from gelato.model.networks import every_member
from gelato.optimise import in_few_kernels

METRICS = ("critic_loss", "value", "entropy", "temperature")
_CRITICS = 2
# Of the largest entropy a choice among discrete actions can have.
_DISCRETE_ENTROPY = 0.1


@dataclass(frozen=True)
class SACConfig:
    """Settings every policy of one program shares; the paper's are `replay` 50,000 and `horizon` 5."""

    hidden: tuple[int, ...] = (256, 256)
    actor_rate: float = 1e-4
    critic_rate: float = 3e-4
    discount: float = 0.99
    target_rate: float = 0.005
    initial_temperature: float = 1.0
    batch_size: int = 256
    updates: int = 300_000
    epoch: int = 1_000
    branches: int = 2_000
    horizon: int = 5
    replay: int = 50_000

    def __post_init__(self) -> None:
        for name in ("batch_size", "updates", "epoch", "branches", "horizon", "replay"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.discount < 1:
            raise InputError(f"discount is {self.discount}; it must lie strictly between 0 and 1")


class Agent(eqx.Module):
    """What is trained."""

    actor: Actor
    critics: Critic
    log_temperature: Float[Array, "*batch"]


class SACState(eqx.Module):
    """What a policy's training carries from update to update; everything a checkpoint needs."""

    agent: Agent
    target_critics: Critic
    optimiser: Any
    ring: Ring
    step: Int[Array, "*batch"]

    def values(self, latents: Float[Array, "n latent"]) -> Float[Array, " n"]:
        """`V(z)` of one policy's mode."""
        return least_of_critics(self.agent.critics, latents, jax.vmap(self.agent.actor.mode)(latents))


class Terms(eqx.Module):
    """What sets one policy of a program apart from the others: where its batches come from and what values can be."""

    real_share: Float[Array, "*batch"]
    lowest_value: Float[Array, "*batch"]
    highest_value: Float[Array, "*batch"]


class Draws(eqx.Module):
    """The random numbers of an update: rows of the data and of the ring, noise for actions after and now."""

    logged: Int[Array, "*updates size"]
    imagined: Int[Array, "*updates size"]
    noise: Float[Array, "*updates 2 size action"]


def draws_for(
    ring: Ring, real: Float[Array, "n columns"], space: ActionSpace, size: int, *, key: PRNGKeyArray
) -> Draws:
    """What one update needs; those of an epoch are drawn at once, since on an accelerator every draw is a kernel."""
    real_key, ring_key, noise_key = jax.random.split(key, 3)
    return Draws(
        jax.random.randint(real_key, (size,), 0, len(real)),
        jax.random.randint(ring_key, (size,), 0, jnp.maximum(ring.filled, 1)),
        jax.random.normal(noise_key, (2, size, space.size)),
    )


def begin(config: SACConfig, latent_size: int, space: ActionSpace, *, key: PRNGKeyArray) -> SACState:
    """An untrained policy."""
    actor_key, critic_key = jax.random.split(key)
    critics = eqx.filter_vmap(lambda key: Critic(latent_size, space.size, config.hidden, key=key))(
        jax.random.split(critic_key, _CRITICS)
    )
    agent = Agent(
        Actor(latent_size, space, config.hidden, key=actor_key),
        critics,
        jnp.full((), math.log(config.initial_temperature), jnp.float32),
    )
    columns = 2 * latent_size + space.size + 2
    optimiser = _optimiser(config).init(eqx.filter(agent, eqx.is_array))
    return SACState(agent, critics, optimiser, Ring.empty(config.replay, columns), jnp.zeros((), jnp.int32))


def update(
    state: SACState, real: Float[Array, "n columns"], terms: Terms, config: SACConfig, draws: Draws
) -> tuple[SACState, Float[Array, " metrics"]]:
    """One update of critics, actor and temperature on a batch of logged and imagined steps."""
    latent_size = state.agent.actor.network.layers[0].weight.shape[-1]
    batch = unpacked(_batch(state.ring, real, terms.real_share, draws), latent_size)
    trainable, static = eqx.partition(state.agent, eqx.is_array)

    def loss(trainable: Agent) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
        return _loss(eqx.combine(trainable, static), state.target_critics, batch, terms, config, draws.noise)

    gradient, metrics = jax.grad(loss, has_aux=True)(trainable)
    change, optimiser = _optimiser(config).update(gradient, state.optimiser, trainable)
    # The actor's rate falls to nothing, so that the last policy is no accident of the last updates.
    slower = config.actor_rate / config.critic_rate * 0.5 * (1 + jnp.cos(jnp.pi * state.step / config.updates))
    change = eqx.tree_at(lambda a: a.actor, change, jax.tree.map(lambda x: slower * x, change.actor))
    agent = eqx.combine(optax.apply_updates(trainable, change), static)
    targets = optax.incremental_update(agent.critics, state.target_critics, config.target_rate)
    return SACState(agent, targets, optimiser, state.ring, state.step + 1), metrics


def _batch(
    ring: Ring, real: Float[Array, "n columns"], real_share: Float[Array, ""], draws: Draws
) -> Float[Array, "size columns"]:
    """The first rows from the data, the rest imagined; both are gathered, since the share may differ by policy."""
    size = len(draws.logged)
    from_data = jnp.arange(size) < jnp.round(real_share * size)
    return jnp.where(from_data[:, None], real[draws.logged], ring.rows[draws.imagined])


def _loss(
    agent: Agent,
    target_critics: Critic,
    batch: Experience,
    terms: Terms,
    config: SACConfig,
    noise: Float[Array, "2 size action"],
) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
    """The sum of three losses, each with a gradient to its own part alone."""
    temperature = jax.lax.stop_gradient(jnp.exp(agent.log_temperature))
    after, _ = soft_values(agent.actor, target_critics, batch.next_latents, temperature, noise[0])
    target = batch.rewards + config.discount * (1 - batch.terminated) * after
    target = jax.lax.stop_gradient(jnp.clip(target, terms.lowest_value, terms.highest_value))
    # Else XLA computes all of it inside the reduction of a metric: of five policies in 37 µs of an update's 240 (H200).
    target = jax.lax.optimization_barrier(target)
    Q = every_member(agent.critics, batch.latents, batch.actions)
    critic_loss = jnp.mean((Q - target) ** 2)
    frozen = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, agent.critics)
    now, entropies = soft_values(agent.actor, frozen, batch.latents, temperature, noise[1])
    entropy = jnp.mean(entropies)
    surplus = jax.lax.stop_gradient(entropy) - target_entropy(agent.actor.space)
    total = _CRITICS * critic_loss - jnp.mean(now) + agent.log_temperature * surplus
    return total, jax.lax.stop_gradient(jnp.stack([critic_loss, jnp.mean(Q), entropy, temperature]))


def soft_values(
    actor: Actor,
    critics: Critic,
    latents: Float[Array, "n latent"],
    temperature: Float[Array, ""],
    noise: Float[Array, "n action"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """`V(z)` and the policy's entropy at every `z`: from one sample, or exactly where actions are discrete."""
    if isinstance(actor.space, Discrete):
        log_pi = jax.vmap(actor.log_probabilities)(latents)
        Q = jax.vmap(lambda a: least_of_critics(critics, latents, jnp.broadcast_to(a, log_pi.shape)), out_axes=1)(
            jnp.eye(actor.space.n)
        )
        entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=1)
        return jnp.sum(jnp.exp(log_pi) * Q, axis=1) + temperature * entropy, entropy
    actions, log_density = jax.vmap(actor.action_and_density)(latents, noise)
    return least_of_critics(critics, latents, actions) - temperature * log_density, -log_density


def least_of_critics(
    critics: Critic, latents: Float[Array, "n latent"], actions: Float[Array, "n action"]
) -> Float[Array, " n"]:
    """`minᵢ Qᵢ(z, a)`."""
    return jnp.min(every_member(critics, latents, actions), axis=0)


def target_entropy(space: ActionSpace) -> float:
    """What the temperature is tuned for: `−d_A` for a box, a tenth of the largest there is for discrete actions."""
    if isinstance(space, Discrete):
        return _DISCRETE_ENTROPY * math.log(space.n)
    return -float(space.size)


def _optimiser(config: SACConfig) -> optax.GradientTransformation:
    return in_few_kernels(optax.adam(config.critic_rate))
