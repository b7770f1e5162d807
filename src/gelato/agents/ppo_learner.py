"""Proximal policy optimisation for all policies of a world: iterations of imagining, penalising and improving."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.agents.ppo import PPO_METRICS, PPOConfig, PPOState, Rollout, begin_ppo, collect, improve
from gelato.agents.sac import Terms
from gelato.agents.world import BEGIN, IMAGINE, LEARN, World, for_every_variant, key_for, over_policies, penalised
from gelato.optimise import training_program

ITERATION_METRICS = (*PPO_METRICS, "imagined_reward", "penalty")


@eqx.filter_jit
def new_ppo_policies(world: World, config: PPOConfig) -> PPOState:
    """Untrained policies `[variants, seeds]`; those of one seed are equal."""

    def one(starts: Float[Array, "k latent"], seed: Int[Array, ""]) -> PPOState:
        return begin_ppo(config, starts, world.action_space, key=key_for(seed, BEGIN, 0))

    return for_every_variant(world, eqx.filter_vmap(one)(world.starts, world.seeds))


@training_program
def run_iterations(
    world: World, policies: PPOState, *, config: PPOConfig, iterations: int
) -> tuple[PPOState, Float[Array, "variants seeds metrics"]]:
    """So many iterations for every policy, and the means of what was measured."""
    arrays, static = eqx.partition(policies, eqx.is_array)

    def step(arrays: Any, _: None) -> tuple[Any, Array]:
        after, metrics = _iteration(world, eqx.combine(arrays, static), config)
        return eqx.filter(after, eqx.is_array), metrics

    arrays, metrics = jax.lax.scan(step, arrays, length=iterations)
    return eqx.combine(arrays, static), jnp.mean(metrics, axis=0)


def _iteration(world: World, policies: PPOState, config: PPOConfig) -> tuple[PPOState, Array]:
    rollouts, embeddings, episodes = over_policies(_collect)(world, policies, config)
    shape = rollouts.rewards.shape
    flat = embeddings.reshape(*shape[:2], -1, embeddings.shape[-1])
    rewards, U = penalised(world, rollouts.rewards.reshape(*shape[:2], -1), flat)
    rollouts = eqx.tree_at(lambda r: r.rewards, rollouts, rewards.reshape(shape))
    learners, optimisers, metrics = over_policies(_improve)(world, (policies, rollouts), config)
    imagined = jnp.stack([jnp.mean(rewards, axis=-1), jnp.mean(U, axis=-1)], axis=-1)
    after = PPOState(learners, optimisers, episodes, policies.step + config.steps_taken)
    return after, jnp.concatenate([metrics, imagined], axis=-1)


def _collect(parts: Any, terms: Terms, policy: PPOState, config: PPOConfig) -> Any:
    del terms
    dynamics, _, starts, seed = parts
    return collect(policy, dynamics, starts, config, key=key_for(seed, IMAGINE, policy.step))


def _improve(parts: Any, terms: Terms, given: tuple[PPOState, Rollout], config: PPOConfig) -> Any:
    del terms
    policy, rollout = given
    return improve(policy.learner, policy.optimiser, rollout, config, key=key_for(parts[-1], LEARN, policy.step))
