"""ReBRAC (Tarasov et al., 2023): TD3 that stays near logged actions, also in the targets.

    y   = r + γ (1 − end) [ minᵢ Qᵢ(z′, ã′) − β₂ ‖ã′ − a′‖² ],   ã′ = clip(π(z′) + noise)
    L_π = E β₁ ‖π(z) − a‖² − minᵢ Qᵢ(z, π(z)) / mean|Q|

`a′` is the action that was logged after `a`. It is unknown in the last row of an episode; there the
term is left out. Distances are in halves of the action range. The actor and all targets move in
every second update.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from gelato.agents.agent import Metrics, View
from gelato.agents.logged import AbstractLoggedAgent, check_discount, make_critics, slow_actor
from gelato.agents.networks import Actor, Critic, box_of
from gelato.agents.replay import Experience, unpack
from gelato.data.spaces import ActionSpace, Continuous
from gelato.dynamics.interface import Latent
from gelato.errors import InputError, require_positive
from gelato.model.networks import apply_members, descend, hold_constant
from gelato.random_streams import INIT, derive_key


class ReBRACNetworks(eqx.Module):
    """The trained networks, and their slow copies."""

    actor: Actor
    critics: Critic


class ReBRACState(eqx.Module):
    """State of the training between updates."""

    networks: ReBRACNetworks
    targets: ReBRACNetworks
    optimiser: optax.OptState
    step: Int[Array, "*batch"]


class LoggedBatch(eqx.Module):
    """Logged rows with the next logged action, as far as it is known."""

    rows: Experience
    next_actions: Float[Array, "size action"]
    next_known: Bool[Array, " size"]


@dataclass(frozen=True)
class ReBRAC(AbstractLoggedAgent):
    """TD3 with distances to logged actions in the actor and in the targets."""

    trained_networks = 3

    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    rate: float = 1e-3
    """Learning rate."""
    batch_size: int = 1024
    """Transitions per update."""
    discount: float = 0.99
    """Discount factor γ."""
    actor_weight: float = 0.01
    """Weight β₁ of the distance to logged actions in the actor's loss."""
    critic_weight: float = 0.01
    """Weight β₂ of the distance to logged actions in the targets of the critics."""
    target_rate: float = 0.005
    """Weight of the networks in each update of their slow copies (Polyak averaging)."""
    noise: float = 0.2
    """Standard deviation of the noise on the actions in targets."""
    largest_noise: float = 0.5
    """Largest noise on an action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "target_rate")
        check_discount(self.discount)
        if min(self.actor_weight, self.critic_weight, self.noise, self.largest_noise) < 0:
            raise InputError(
                "actor_weight, critic_weight, noise and largest_noise must not be negative"
            )

    def check(self, space: ActionSpace) -> None:
        if not isinstance(space, Continuous):
            raise InputError(
                "rebrac needs continuous actions, and these are discrete. Use `iql` or `bc`"
            )

    def init(self, view: View, *, key: PRNGKeyArray) -> ReBRACState:
        actor_key, critic_key = jax.random.split(derive_key(key, INIT))
        networks = ReBRACNetworks(
            Actor(view.latent_size, view.action_space, self.hidden, key=actor_key),
            make_critics(view, self.hidden, normalised=True, key=critic_key),
        )
        optimiser = self.optimiser.init(eqx.filter(networks, eqx.is_array))
        return ReBRACState(networks, networks, optimiser, jnp.zeros((), jnp.int32))

    def update(
        self, view: View, state: ReBRACState, rows: Int[Array, " size"], *, key: PRNGKeyArray
    ) -> tuple[ReBRACState, Metrics]:
        batch = _gather(view, rows)
        target = self._compute_targets(state.targets, batch, key=key)
        moves = state.step % 2 == 0
        networks, optimiser, metrics = descend(
            self.optimiser,
            state.optimiser,
            state.networks,
            lambda networks: self._loss(networks, batch.rows, target),
            slow_actor(moves.astype(jnp.float32)),
        )
        slow = optax.incremental_update(networks, state.targets, self.target_rate)
        targets = _choose(moves, slow, state.targets)
        return ReBRACState(networks, targets, optimiser, state.step + 1), metrics

    def actor(self, state: ReBRACState) -> Actor:
        return state.networks.actor

    def value(self, state: ReBRACState, z: Latent) -> Float[Array, ""]:
        networks = state.networks
        action = networks.actor.mode(z)
        return jnp.min(apply_members(networks.critics, z[None], action[None]))

    def _compute_targets(
        self, targets: ReBRACNetworks, batch: LoggedBatch, *, key: PRNGKeyArray
    ) -> Float[Array, " size"]:
        rows = batch.rows
        space = targets.actor.space
        assert isinstance(space, Continuous)
        _, half = box_of(space)
        noise = self.noise * jax.random.normal(key, batch.next_actions.shape)
        noise = jnp.clip(noise, -self.largest_noise, self.largest_noise)
        actions = jax.vmap(targets.actor.mode)(rows.next_latents) + half * noise
        actions = jnp.clip(actions, jnp.array(space.low), jnp.array(space.high))
        distance = jnp.sum(((actions - batch.next_actions) / half) ** 2, axis=1)
        values = jnp.min(apply_members(targets.critics, rows.next_latents, actions), axis=0)
        values = values - self.critic_weight * jnp.where(batch.next_known, distance, 0.0)
        return rows.rewards + self.discount * (1 - rows.terminated) * values

    def _loss(
        self, networks: ReBRACNetworks, rows: Experience, target: Float[Array, " size"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the sum of both losses. Each loss has gradients only for its own networks."""
        fixed = jax.lax.stop_gradient
        space = networks.actor.space
        assert isinstance(space, Continuous)
        Q = apply_members(networks.critics, rows.latents, rows.actions)
        critic_loss = jnp.mean((Q - target) ** 2)
        actions = jax.vmap(networks.actor.mode)(rows.latents)
        values = jnp.min(
            apply_members(hold_constant(networks.critics), rows.latents, actions), axis=0
        )
        distance = jnp.sum(((actions - rows.actions) / box_of(space)[1]) ** 2, axis=1)
        scale = fixed(jnp.mean(jnp.abs(values)))
        actor_loss = jnp.mean(self.actor_weight * distance - values / jnp.maximum(scale, 1e-6))
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "value": jnp.mean(Q),
            "distance": jnp.mean(distance),
        }
        return len(Q) * critic_loss + actor_loss, jax.tree.map(fixed, metrics)


def _gather(view: View, chosen: Int[Array, " size"]) -> LoggedBatch:
    """Take rows of the log with the action of the next row, if that row continues the episode."""
    rows = unpack(view.logged[chosen], view.latent_size)
    following = jnp.minimum(chosen + 1, len(view.logged) - 1)
    after = unpack(view.logged[following], view.latent_size)
    continues = jnp.all(rows.next_latents == after.latents, axis=1) & (following > chosen)
    return LoggedBatch(rows, after.actions, continues & (rows.terminated == 0))


def _choose(condition: Bool[Array, ""], one: PyTree, other: PyTree) -> PyTree:
    """Return one of two pytrees of the same structure."""

    def choose(first: PyTree, second: PyTree) -> PyTree:
        return jnp.where(condition, first, second) if eqx.is_array(first) else first

    return jax.tree.map(choose, one, other)
