"""Soft actor–critic and cloning for all policies of a world, each block one compiled program."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.agents.cloning import CloningState, begin_cloning, clone
from gelato.agents.networks import Actor
from gelato.agents.ppo import PPOState
from gelato.agents.replay import packed
from gelato.agents.sac import METRICS, Draws, SACConfig, SACState, Terms, begin, draws_for, update
from gelato.agents.world import (
    BEGIN,
    CLONE,
    IMAGINE,
    LEARN,
    World,
    for_every_variant,
    key_for,
    over_policies,
    penalised,
)
from gelato.mdp.pessimistic import branch
from gelato.optimise import training_program
from gelato.trees import copied

EPOCH_METRICS = (*METRICS, "imagined_reward", "penalty")


@eqx.filter_jit
def new_policies(world: World, config: SACConfig) -> SACState:
    """Untrained policies `[variants, seeds]`; those of one seed are equal."""

    def one(seed: Int[Array, ""]) -> SACState:
        return begin(config, world.latent_size, world.action_space, key=key_for(seed, BEGIN, 0))

    by_seed = eqx.filter_vmap(one)(world.seeds)
    return for_every_variant(world, by_seed)


@training_program
def run_epoch(
    world: World, policies: SACState, *, config: SACConfig, updates: int
) -> tuple[SACState, Float[Array, "variants seeds metrics"]]:
    """Imagine, penalise, remember, and update, for every policy."""
    imagined = jnp.zeros((*policies.step.shape, 2))
    if world.dynamics is not None:
        rows, embeddings = over_policies(_imagine)(world, policies, config)
        rewards, penalties = penalised(world, rows.rewards, embeddings)
        rows = eqx.tree_at(lambda rows: rows.rewards, rows, rewards)
        rings = jax.vmap(jax.vmap(lambda ring, rows: ring.write(packed(rows))))(policies.ring, rows)
        policies = eqx.tree_at(lambda p: p.ring, policies, rings)
        imagined = jnp.stack([jnp.mean(rows.rewards, axis=-1), jnp.mean(penalties, axis=-1)], axis=-1)
    policies, metrics = over_policies(_learn)(world, policies, config, updates)
    return policies, jnp.concatenate([metrics, imagined], axis=-1)


def _imagine(parts: Any, terms: Terms, policy: SACState, config: SACConfig) -> Any:
    del terms
    dynamics, _, starts, seed = parts
    key = key_for(seed, IMAGINE, policy.step)
    act = policy.agent.actor.sample
    return branch(dynamics, starts, act, branches=config.branches, horizon=config.horizon, key=key)


def _learn(parts: Any, terms: Terms, policy: SACState, config: SACConfig, updates: int) -> Any:
    _, real, _, seed = parts

    def draws_at(step: Int[Array, ""]) -> Draws:
        space = policy.agent.actor.space
        return draws_for(policy.ring, real, space, config.batch_size, key=key_for(seed, LEARN, step))

    def one(policy: SACState, draws: Draws) -> tuple[SACState, Array]:
        return update(policy, real, terms, config, draws)

    policy, metrics = jax.lax.scan(one, policy, jax.vmap(draws_at)(policy.step + jnp.arange(updates)))
    return policy, jnp.mean(metrics, axis=0)


@eqx.filter_jit
def new_clones(world: World, config: SACConfig) -> CloningState:
    """Untrained clones, one for each seed."""

    def one(seed: Int[Array, ""]) -> CloningState:
        key = key_for(seed, BEGIN, 0)
        return begin_cloning(config.hidden, config.critic_rate, world.latent_size, world.action_space, key=key)

    return copied(eqx.filter_vmap(one)(world.seeds))


@training_program
def run_cloning(
    world: World, clones: CloningState, *, config: SACConfig, updates: int
) -> tuple[CloningState, Float[Array, "seeds metrics"]]:
    """A block of cloning for every seed."""

    def one(state: CloningState, real: Float[Array, "n columns"], seed: Int[Array, ""]) -> Any:
        def rows_at(number: Int[Array, ""]) -> Int[Array, " size"]:
            return jax.random.randint(key_for(seed, CLONE, number), (config.batch_size,), 0, len(real))

        def step(state: CloningState, rows: Int[Array, " size"]) -> tuple[CloningState, Array]:
            return clone(state, real, rows, config.critic_rate)

        state, metrics = jax.lax.scan(step, state, jax.vmap(rows_at)(state.step + jnp.arange(updates)))
        return state, jnp.mean(metrics, axis=0)

    return eqx.filter_vmap(one)(clones, world.real, world.seeds)


def actors_of(policies: SACState | PPOState | CloningState) -> Actor:
    """The actors `[variants, seeds]`; clones are one variant."""
    if isinstance(policies, SACState):
        return policies.agent.actor
    if isinstance(policies, PPOState):
        return policies.learner.actor
    return jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, policies.actor)
