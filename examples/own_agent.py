"""Example of an agent: implicit Q-learning (IQL), which learns from logged data only.

    L_V = E |τ − 1(u < 0)| u²,  u = min Q(z, a) − V(z)        (expectile regression)
    L_Q = E (r + γ (1 − end) V(z′) − Q(z, a))²
    L_π = −E exp(β (min Q − V)) log π(a|z)                    (advantage-weighted regression)

The training program adds seeds, checkpoints, resume, evaluation and the results table.
"""

import tempfile
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

import gelato
from gelato import agents
from gelato.agents import AbstractAgent, Actor, Critic, Experience, Metrics, View
from gelato.data import Discrete
from gelato.mdp import Step


class Networks(eqx.Module):
    """The networks that training updates."""

    actor: Actor
    critics: Critic
    value: agents.MLP


class IQLState(eqx.Module):
    """The training state of one policy."""

    networks: Networks
    target_critics: Critic
    optimiser: optax.OptState
    step: Int[Array, "*batch"]


@dataclass(frozen=True)
class IQL(AbstractAgent):
    """Implicit Q-learning (Kostrikov et al., 2021)."""

    hidden: tuple[int, ...] = (256, 256)
    rate: float = 3e-4
    discount: float = 0.99
    expectile: float = 0.7
    beta: float = 3.0
    target_rate: float = 0.005
    batch_size: int = 256
    updates: int = 100_000
    epoch: int = 1_000

    @property
    def updates_per_rollout(self) -> int:
        return self.epoch

    def init(self, view: View, *, key: PRNGKeyArray) -> IQLState:
        actor_key, critic_key, value_key = jax.random.split(agents.derive_key(key, agents.INIT), 3)
        size, space = view.latent_size, view.action_space
        make_critic = eqx.filter_vmap(lambda key: Critic(size, space.size, self.hidden, key=key))
        critics = make_critic(jax.random.split(critic_key, 2))
        actor = Actor(size, space, self.hidden, key=actor_key)
        networks = Networks(actor, critics, agents.MLP(size, 1, self.hidden, "relu", key=value_key))
        optimiser = optax.adam(self.rate).init(eqx.filter(networks, eqx.is_array))
        return IQLState(networks, critics, optimiser, jnp.zeros((), jnp.int32))

    def learn(
        self, view: View, state: IQLState, steps: Step | None, updates: int, *, key: PRNGKeyArray
    ) -> tuple[IQLState, Metrics]:
        def update(state: IQLState, step: Int[Array, ""]) -> tuple[IQLState, Array]:
            row_key = agents.derive_key(key, agents.LEARN, step)
            rows = jax.random.randint(row_key, (self.batch_size,), 0, len(view.logged))
            return self._update(state, agents.unpack(view.logged[rows], view.latent_size))

        state, metrics = jax.lax.scan(update, state, state.step + jnp.arange(updates))
        names = ("critic_loss", "value_loss", "actor_loss", "value")
        return state, dict(zip(names, jnp.mean(metrics, axis=0), strict=True))

    def actor(self, state: IQLState) -> Actor:
        return state.networks.actor

    def value(self, state: IQLState, z: Float[Array, " latent"]) -> Float[Array, ""]:
        return state.networks.value(z)[0]

    def _update(self, state: IQLState, batch: Experience) -> tuple[IQLState, Array]:
        networks, optimiser, metrics = agents.descend(
            optax.adam(self.rate),
            state.optimiser,
            state.networks,
            lambda networks: self._loss(networks, state.target_critics, batch),
        )
        targets = optax.incremental_update(networks.critics, state.target_critics, self.target_rate)
        return IQLState(networks, targets, optimiser, state.step + 1), metrics

    def _loss(self, networks: Networks, targets: Critic, batch: Experience) -> tuple[Array, Array]:
        fixed = jax.lax.stop_gradient
        values = jax.vmap(networks.value)(batch.latents)[:, 0]
        after = fixed(jax.vmap(networks.value)(batch.next_latents)[:, 0])
        lowest = fixed(jnp.min(agents.apply_members(targets, batch.latents, batch.actions), axis=0))
        error = lowest - values
        weight = jnp.where(error > 0, self.expectile, 1 - self.expectile)
        value_loss = jnp.mean(weight * error**2)
        target = batch.rewards + self.discount * (1 - batch.terminated) * after
        found = agents.apply_members(networks.critics, batch.latents, batch.actions)
        critic_loss = jnp.mean((found - target) ** 2)
        advantage = jnp.minimum(jnp.exp(self.beta * fixed(error)), 100.0)
        densities = jax.vmap(lambda z, a: log_density(networks.actor, z, a))
        actor_loss = -jnp.mean(advantage * densities(batch.latents, batch.actions))
        metrics = jnp.stack([critic_loss, value_loss, actor_loss, jnp.mean(values)])
        return critic_loss + value_loss + actor_loss, metrics


def log_density(actor: Actor, z: Array, action: Array) -> Float[Array, ""]:
    """Return `log π(a|z)` of a logged action."""
    if isinstance(actor.space, Discrete):
        return actor.log_probabilities(z) @ action
    low, high = jnp.array(actor.space.low), jnp.array(actor.space.high)
    unit = (2 * action - low - high) / (high - low)
    # `arctanh` is infinite at the edge of the box, so such actions are moved inside a little.
    choice = jnp.arctanh(jnp.clip(unit, -0.999, 0.999))
    return actor.compute_density_and_entropy(z, choice)[0]


def main() -> None:
    """Train IQL on a small dataset with two seeds."""
    agent = IQL(hidden=(64, 64), rate=1e-3, discount=0.95, updates=3_000, epoch=500)
    settings = gelato.TrainSettings(evaluations=2, episodes=5)
    with tempfile.TemporaryDirectory() as run:
        records = gelato.train(
            "four-rooms-hole,transitions=5000",
            run,
            gelato.Method("iql", agent),
            seeds=2,
            settings=settings,
        )
    for record in records:
        print(record["method"], record["seed"], record["return"], record["initial_value"])


if __name__ == "__main__":
    main()
