"""Implicit Q-learning (Kostrikov et al., ICLR 2022): values of logged actions only.

    L_V = E |τ − 1(u < 0)| u²,   u = minᵢ Qᵢ(z, a) − V(z)      (expectile regression)
    L_Q = E (r + γ (1 − end) V(z′) − Qᵢ(z, a))²
    L_π = E min(exp(βu), 100) · imitation(z, a)                (advantage-weighted regression)

`imitation` is the loss of behaviour cloning, so that the policy is the deterministic one.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.agents.agent import Metrics, View
from gelato.agents.cloning import measure_imitation
from gelato.agents.logged import (
    AbstractLoggedAgent,
    check_discount,
    cosine_decay,
    make_critics,
    slow_actor,
)
from gelato.agents.networks import Actor, Critic
from gelato.agents.replay import Experience, unpack
from gelato.dynamics.interface import Latent
from gelato.errors import InputError, require_positive
from gelato.model.networks import MLP, apply_members, descend
from gelato.random_streams import INIT, derive_key

_LARGEST_WEIGHT = 100.0


class IQLNetworks(eqx.Module):
    """The trained networks."""

    actor: Actor
    critics: Critic
    value: MLP


class IQLState(eqx.Module):
    """State of the training between updates."""

    networks: IQLNetworks
    target_critics: Critic
    optimiser: optax.OptState
    step: Int[Array, "*batch"]


@dataclass(frozen=True)
class IQL(AbstractLoggedAgent):
    """Implicit Q-learning."""

    trained_networks = 4

    discount: float = 0.99
    """Discount factor γ."""
    expectile: float = 0.7
    """Expectile τ of the value: 0.5 is the mean over logged actions, 1 the best of them."""
    advantage_weight: float = 3.0
    """Inverse temperature β of the weights of logged actions."""
    target_rate: float = 0.005
    """Weight of the critics in each update of the target critics (Polyak averaging)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "target_rate")
        check_discount(self.discount)
        if not 0 < self.expectile < 1 or self.advantage_weight < 0:
            raise InputError(
                f"expectile={self.expectile}, advantage_weight={self.advantage_weight}: the "
                "expectile must lie strictly between 0 and 1, and advantage_weight must not be "
                "negative"
            )

    def init(self, view: View, *, key: PRNGKeyArray) -> IQLState:
        actor_key, critic_key, value_key = jax.random.split(derive_key(key, INIT), 3)
        critics = make_critics(view, self.hidden, key=critic_key)
        actor = Actor(view.latent_size, view.action_space, self.hidden, key=actor_key)
        value = MLP(view.latent_size, 1, self.hidden, "relu", key=value_key)
        networks = IQLNetworks(actor, critics, value)
        optimiser = self.optimiser.init(eqx.filter(networks, eqx.is_array))
        return IQLState(networks, critics, optimiser, jnp.zeros((), jnp.int32))

    def update(
        self, view: View, state: IQLState, rows: Int[Array, " size"], *, key: PRNGKeyArray
    ) -> tuple[IQLState, Metrics]:
        del key
        batch = unpack(view.logged[rows], view.latent_size)
        networks, optimiser, metrics = descend(
            self.optimiser,
            state.optimiser,
            state.networks,
            lambda networks: self._loss(networks, state.target_critics, batch),
            slow_actor(cosine_decay(state.step, self.updates)),
        )
        targets = optax.incremental_update(networks.critics, state.target_critics, self.target_rate)
        return IQLState(networks, targets, optimiser, state.step + 1), metrics

    def actor(self, state: IQLState) -> Actor:
        return state.networks.actor

    def value(self, state: IQLState, z: Latent) -> Float[Array, ""]:
        return state.networks.value(z)[0]

    def _loss(
        self, networks: IQLNetworks, targets: Critic, batch: Experience
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the sum of three losses. Each loss has gradients only for its own network."""
        fixed = jax.lax.stop_gradient
        values = jax.vmap(networks.value)(batch.latents)[:, 0]
        after = fixed(jax.vmap(networks.value)(batch.next_latents)[:, 0])
        lowest = jnp.min(apply_members(targets, batch.latents, batch.actions), axis=0)
        advantage = fixed(lowest) - values
        weight = jnp.where(advantage > 0, self.expectile, 1 - self.expectile)
        value_loss = jnp.mean(weight * advantage**2)
        target = batch.rewards + self.discount * (1 - batch.terminated) * after
        Q = apply_members(networks.critics, batch.latents, batch.actions)
        critic_loss = jnp.mean((Q - target) ** 2)
        preference = jnp.exp(self.advantage_weight * fixed(advantage))
        preference = jnp.minimum(preference, _LARGEST_WEIGHT)
        imitation = measure_imitation(networks.actor, batch.latents, batch.actions)
        actor_loss = jnp.mean(preference * imitation)
        metrics = {
            "critic_loss": critic_loss,
            "value_loss": value_loss,
            "actor_loss": actor_loss,
            "value": jnp.mean(values),
        }
        total = len(Q) * critic_loss + value_loss + actor_loss
        return total, jax.tree.map(fixed, metrics)
