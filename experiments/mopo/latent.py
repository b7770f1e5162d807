"""Variants of `gelato`'s agent, trained side by side in one program.

A variant differs from the others in numbers only. They are stored with the critics, and the agent
is `gelato.agents.sac` otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.agents.agent import Metrics, View
from gelato.agents.networks import Critic
from gelato.agents.replay import Experience
from gelato.agents.sac import SAC, SACNetworks, SACState
from gelato.arrays import take
from gelato.compilation import compile_training
from gelato.mdp.pessimistic import Step, subtract_penalty
from gelato.model.networks import Linear, normalise
from gelato.training.program import Population, init_policies
from gelato.uncertainty.penalty import penalise

_CRITICS = 2


@dataclass(frozen=True)
class Variant:
    """What the policies of a variant are trained with."""

    normalised: float = 1.0
    """Whether the hidden layers of the critics are normalised."""
    weight: float = 10.0
    """Penalty weight λ."""
    real_fraction: float = 0.5
    """Share of logged transitions in a batch."""
    reward_scale: float = 1.0
    """Factor on rewards and penalties."""


VARIANTS = {
    "normalised": Variant(),
    "normalised-weak": Variant(weight=1.0),
    "normalised-weak-imagined": Variant(weight=1.0, real_fraction=0.05),
    "plain": Variant(0.0),
    "plain-weak": Variant(0.0, weight=1.0),
    "plain-imagined": Variant(0.0, real_fraction=0.05),
    "plain-weak-imagined": Variant(0.0, weight=1.0, real_fraction=0.05),
    "plain-weak-imagined-small": Variant(0.0, 1.0, 0.05, reward_scale=0.1),
}


class Switches(eqx.Module):
    """The numbers of a variant as arrays. `total` is the length of the cosine in updates."""

    normalised: Float[Array, "*batch"]
    weight: Float[Array, "*batch"]
    real_fraction: Float[Array, "*batch"]
    reward_scale: Float[Array, "*batch"]
    total: Float[Array, "*batch"]


class SwitchedCritic(eqx.Module):
    """`Q(z, a)`, whose hidden layers are normalised if its switch says so."""

    layers: tuple[Linear, ...]
    switches: Switches

    def __call__(
        self, z: Float[Array, " latent"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        hidden = jnp.concatenate([z, action])
        for layer in self.layers[:-1]:
            plain = layer(hidden)
            chosen = jnp.where(self.switches.normalised > 0.5, normalise(plain), plain)
            hidden = jax.nn.relu(chosen)
        return self.layers[-1](hidden)[0]


class SwitchedSAC(SAC):
    """SAC whose critics hold the switches. No loss depends on them, so they stay as they are."""

    def init(self, view: View, *, key: PRNGKeyArray) -> SACState:
        state = super().init(view, key=key)
        switches = Switches(*(jnp.ones(_CRITICS, jnp.float32) for _ in range(5)))
        critics = SwitchedCritic(state.target_critics.layers, switches)
        networks = SACNetworks(state.networks.actor, critics, state.networks.log_temperature)
        optimiser = self._optimiser().init(eqx.filter(networks, eqx.is_array))
        return SACState(networks, critics, optimiser, state.replay, state.step)

    def compute_actor_decay(self, state: SACState) -> Float[Array, ""]:
        share = jnp.minimum(state.step / read_switches(state).total, 1)
        return 0.5 * (1 + jnp.cos(jnp.pi * share))

    def learn(
        self, view: View, state: SACState, steps: Step | None, updates: int, *, key: PRNGKeyArray
    ) -> tuple[SACState, Metrics]:
        switches = read_switches(state)
        view = eqx.tree_at(
            lambda v: (v.penalty_weight, v.real_fraction, v.reward_range),
            view,
            (
                switches.reward_scale * switches.weight,
                switches.real_fraction,
                switches.reward_scale * view.reward_range,
            ),
        )
        return super().learn(view, state, steps, updates, key=key)

    def _loss(
        self,
        view: View,
        networks: SACNetworks,
        target_critics: Critic,
        batch: Experience,
        noise: Float[Array, "2 size action"],
    ) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
        scale = jax.lax.stop_gradient(networks.critics.switches.reward_scale[0])
        batch = eqx.tree_at(lambda b: b.rewards, batch, scale * batch.rewards)
        return super()._loss(view, networks, target_critics, batch, noise)


def read_switches(state: SACState) -> Switches:
    """Return the switches of one policy."""
    return jax.tree.map(lambda x: x[0], state.networks.critics.switches)


def set_total(state: SACState, total: int) -> SACState:
    """Change the length of the cosine."""
    return eqx.tree_at(
        lambda s: s.networks.critics.switches.total,
        state,
        jnp.full_like(state.networks.critics.switches.total, total),
    )


def repeat(population: Population, variants: int) -> Population:
    """Give every variant its own seeds: one program variant with `variants × seeds` policies."""
    order = np.tile(np.arange(len(population.seeds)), variants)
    fields = ("dynamics", "logged", "starts", "initial", "penalties", "seeds")
    before = [getattr(population, name) for name in fields]
    after = [take(tree, order) for tree in before]
    return eqx.tree_at(lambda p: [getattr(p, name) for name in fields], population, after)


def begin(
    population: Population, agent: SwitchedSAC, variants: Sequence[Variant], total: int
) -> SACState:
    """Return untrained policies `[1, variants × seeds]` of a repeated population."""
    state = init_policies(population, agent)
    seeds = len(population.seeds) // len(variants)
    columns = []
    for name in ("normalised", "weight", "real_fraction", "reward_scale"):
        values = np.repeat([getattr(variant, name) for variant in variants], seeds)
        columns.append(jnp.asarray(np.repeat(values[None, :, None], _CRITICS, 2), jnp.float32))
    switches = Switches(*columns, jnp.full_like(columns[0], total))
    targets = jax.tree.map(jnp.copy, switches)
    return eqx.tree_at(
        lambda s: (s.networks.critics.switches, s.target_critics.switches),
        state,
        (switches, targets),
    )


@compile_training
def train(
    constants: tuple[Population, Float[Array, " policies"]],
    state: SACState,
    *,
    agent: SwitchedSAC,
    updates: int,
) -> tuple[SACState, dict[str, Float[Array, " policies"]]]:
    """Imagine once, then update every policy. The constants hold every policy's λ."""
    population, weights = constants
    state, steps = population.map(
        lambda view, key, state: agent.imagine(view, state, key=key), state
    )
    shape = steps.reward.shape
    embeddings = steps.embedding.reshape(shape[1], -1, steps.embedding.shape[-1])
    U = eqx.filter_vmap(penalise)(population.penalties[0], embeddings)
    rewards = subtract_penalty(steps.reward.reshape(U.shape), U, weights[:, None])
    steps = eqx.tree_at(lambda s: s.reward, steps, rewards.reshape(shape))
    state, metrics = population.map(
        lambda view, key, state, steps: agent.learn(view, state, steps, updates, key=key),
        state,
        steps,
    )
    flat = {name: values[0] for name, values in metrics.items()}
    return state, flat | {"penalty": jnp.mean(U, axis=1)}
