"""Many policies in one compiled program: variants (penalty, λ, share of logged steps) × seeds, two nested `vmap`s.

A variant has its own penalty and shares the models; a seed has its own model, data embedding and random numbers. Those
are drawn from `(seed, step)` alone, so a policy is the same whatever is trained beside it, resumed or not.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.agents.cloning import CloningState, begin_cloning, clone
from gelato.agents.networks import Actor
from gelato.agents.replay import packed
from gelato.agents.sac import METRICS, SACConfig, SACState, Terms, all_values, begin, update
from gelato.data.spaces import ActionSpace
from gelato.mdp.dynamics import AbstractDynamics
from gelato.mdp.pessimistic import Experience, branch, penalised
from gelato.uncertainty.penalty import AbstractPenalty

EPOCH_METRICS = (*METRICS, "imagined_reward", "penalty")
_BEGIN, _IMAGINE, _LEARN, _CLONE = range(4)


class World(eqx.Module):
    """What policies learn in. Arrays have the seed as first axis; those of a `Terms` and `weights` the variant.

    `real` holds the data as the dynamics see it, packed; `penalties` has one for each variant. Without dynamics nothing
    is imagined, and policies learn from the data alone.
    """

    dynamics: AbstractDynamics | None
    real: Float[Array, "seeds n columns"]
    starts: Float[Array, "seeds k latent"]
    initial: Float[Array, "seeds e latent"]
    penalties: tuple[AbstractPenalty, ...]
    weights: Float[Array, " variants"]
    terms: Terms
    seeds: Int[Array, " seeds"]
    action_space: ActionSpace = eqx.field(static=True)

    @property
    def latent_size(self) -> int:
        """How many numbers the policy sees."""
        return self.starts.shape[-1]


def stacked(trees: Sequence[Any]) -> Any:
    """Pytrees of one structure as one, with a new first axis on every array."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array_like(leaves[0]) else leaves[0], *trees)


@eqx.filter_jit
def new_policies(world: World, config: SACConfig) -> SACState:
    """Untrained policies `[variants, seeds]`; those of one seed are equal."""

    def one(seed: Int[Array, ""]) -> SACState:
        return begin(config, world.latent_size, world.action_space, key=_key(seed, _BEGIN, 0))

    by_seed = eqx.filter_vmap(one)(world.seeds)
    variants = len(world.weights)
    # Copied, since an epoch takes over the buffers of its state and no two of them may be the same.
    return jax.tree.map(
        lambda x: jnp.array(jnp.broadcast_to(x, (variants, *x.shape))) if eqx.is_array(x) else x, by_seed
    )


@eqx.filter_jit(donate="all-except-first")
def run_epoch(
    world: World, policies: SACState, *, config: SACConfig, updates: int
) -> tuple[SACState, Float[Array, "variants seeds metrics"]]:
    """Imagine, penalise, remember, and update, for every policy."""
    imagined = jnp.zeros((*policies.step.shape, 2))
    if world.dynamics is not None:
        rows, penalties = _imagined_steps(world, policies, config)
        rings = jax.vmap(jax.vmap(lambda ring, rows: ring.write(packed(rows))))(policies.ring, rows)
        policies = eqx.tree_at(lambda p: p.ring, policies, rings)
        imagined = jnp.stack([jnp.mean(rows.rewards, axis=-1), jnp.mean(penalties, axis=-1)], axis=-1)
    policies, metrics = over_policies(_learn)(world, policies, config, updates)
    return policies, jnp.concatenate([metrics, imagined], axis=-1)


def _imagined_steps(world: World, policies: SACState, config: SACConfig) -> tuple[Experience, Array]:
    """Penalised steps of every policy, `[variants, seeds, steps]`, and their `U`."""
    rows, embeddings = over_policies(_imagine)(world, policies, config)
    over_seeds = eqx.filter_vmap(penalised, in_axes=(*[eqx.if_array(0)] * 3, None))
    variants = [
        over_seeds(*_variant((rows, embeddings), index), penalty, world.weights[index])
        for index, penalty in enumerate(world.penalties)
    ]
    return stacked(variants)


def over_policies(function: Any) -> Any:
    """`function(one seed's world, variant's terms, one policy, …)` for all variants and seeds."""

    def run(world: World, policies: Any, *rest: Any) -> Any:
        def one(parts: Any, policy: Any, terms: Terms) -> Any:
            return function(parts, terms, policy, *rest)

        parts = (world.dynamics, world.real, world.starts, world.seeds)
        by_seed = eqx.filter_vmap(one, in_axes=(eqx.if_array(0), eqx.if_array(0), None))
        by_variant = eqx.filter_vmap(by_seed, in_axes=(None, eqx.if_array(0), eqx.if_array(0)))
        return by_variant(parts, policies, world.terms)

    return run


def _imagine(parts: Any, terms: Terms, policy: SACState, config: SACConfig) -> Any:
    del terms
    dynamics, _, starts, seed = parts
    key = _key(seed, _IMAGINE, policy.step)
    act = policy.agent.actor.sample
    return branch(dynamics, starts, act, branches=config.branches, horizon=config.horizon, key=key)


def _learn(parts: Any, terms: Terms, policy: SACState, config: SACConfig, updates: int) -> Any:
    _, real, _, seed = parts

    def one(policy: SACState, _: None) -> tuple[SACState, Array]:
        return update(policy, real, terms, config, key=_key(seed, _LEARN, policy.step))

    policy, metrics = jax.lax.scan(one, policy, length=updates)
    return policy, jnp.mean(metrics, axis=0)


@eqx.filter_jit
def initial_values(world: World, policies: SACState) -> Float[Array, "variants seeds"]:
    """Mean value of the first states of the data's episodes under the pessimistic MDP: a number to choose by."""

    def one(policy: SACState, initial: Float[Array, "e latent"]) -> Float[Array, ""]:
        agent = policy.agent
        return jnp.mean(jax.vmap(lambda z: jnp.min(all_values(agent.critics, z, agent.actor.mode(z))))(initial))

    return eqx.filter_vmap(eqx.filter_vmap(one), in_axes=(eqx.if_array(0), None))(policies, world.initial)


@eqx.filter_jit
def new_clones(world: World, config: SACConfig) -> CloningState:
    """Untrained clones, one for each seed."""

    def one(seed: Int[Array, ""]) -> CloningState:
        key = _key(seed, _BEGIN, 0)
        return begin_cloning(config.hidden, config.critic_rate, world.latent_size, world.action_space, key=key)

    return jax.tree.map(lambda x: jnp.array(x) if eqx.is_array(x) else x, eqx.filter_vmap(one)(world.seeds))


@eqx.filter_jit(donate="all-except-first")
def run_cloning(
    world: World, clones: CloningState, *, config: SACConfig, updates: int
) -> tuple[CloningState, Float[Array, "seeds metrics"]]:
    """A block of cloning for every seed."""

    def one(state: CloningState, real: Float[Array, "n columns"], seed: Int[Array, ""]) -> Any:
        def step(state: CloningState, _: None) -> tuple[CloningState, Array]:
            return clone(state, real, config.critic_rate, config.batch_size, key=_key(seed, _CLONE, state.step))

        state, metrics = jax.lax.scan(step, state, length=updates)
        return state, jnp.mean(metrics, axis=0)

    return eqx.filter_vmap(one)(clones, world.real, world.seeds)


def actors_of(policies: SACState | CloningState) -> Actor:
    """The actors `[variants, seeds]`; clones are one variant."""
    if isinstance(policies, SACState):
        return policies.agent.actor
    return jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, policies.actor)


def _variant(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _key(seed: Int[Array, ""], use: int, step: Int[Array, ""] | int) -> Any:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**28 + use), step)
