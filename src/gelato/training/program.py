"""The one compiled program that trains every agent: variants × seeds of policies in parallel.

A variant has its own penalty, λ and fraction of real data; variants share the models. A seed has
its own model, embedded data and random numbers. Random numbers come from `(seed, stream, step)`, so
a policy does not depend on the other policies in the program, or on interruptions.
"""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from gelato.agents.agent import AbstractAgent, View
from gelato.arrays import copy_arrays
from gelato.compilation import compile_training
from gelato.data.spaces import ActionSpace
from gelato.dynamics.interface import AbstractDynamics, Latent
from gelato.mdp.pessimistic import Limit, Step, end_unknown_rollouts, subtract_penalty
from gelato.uncertainty.penalty import AbstractPenalty, penalise

Result = TypeVar("Result")
Measured = dict[str, Float[Array, "variants seeds"]]


class Population(eqx.Module):
    """The data of all `View`s, with shared arrays stored only once.

    Arrays have the seed as first axis; `weights` and `real_fractions` have the variant.
    `penalties` has every distinct penalty once, and `penalty_of` the place of each variant's
    penalty there (default: one per variant). `initial` holds first states of the data's episodes.
    `limit` ends imagined episodes; its arrays have the axes `[variants, seeds]`.
    """

    dynamics: AbstractDynamics | None
    logged: Float[Array, "seeds n columns"]
    starts: Float[Array, "seeds k latent"]
    initial: Float[Array, "seeds e latent"]
    penalties: tuple[AbstractPenalty, ...]
    weights: Float[Array, " variants"]
    real_fractions: Float[Array, " variants"]
    reward_range: Float[Array, "2"]
    seeds: Int[Array, " seeds"]
    action_space: ActionSpace = eqx.field(static=True)
    penalty_of: tuple[int, ...] | None = eqx.field(static=True, default=None)
    limit: Limit | None = None

    def map(self, function: Callable[..., Result], *arguments: PyTree) -> Result:
        """Call `function(view, key, *arguments)` for every policy.

        Arrays of the arguments have the axes `[variants, seeds]`. `key` is the seed's own key.
        """

        def call(
            of_seed: PyTree, seed: Int[Array, ""], of_variant: PyTree, of_policy: PyTree
        ) -> Result:
            dynamics, logged, starts = of_seed
            weight, fraction = of_variant
            limit, arguments = of_policy
            view = View(
                dynamics,
                logged,
                starts,
                weight,
                fraction,
                self.reward_range,
                self.action_space,
                limit,
            )
            return function(view, jax.random.key(seed), *arguments)

        first = eqx.if_array(0)
        over_seeds = eqx.filter_vmap(call, in_axes=(first, first, None, first))
        over_variants = eqx.filter_vmap(over_seeds, in_axes=(None, None, first, first))
        return over_variants(
            (self.dynamics, self.logged, self.starts),
            self.seeds,
            (self.weights, self.real_fractions),
            (self.limit, arguments),
        )


@eqx.filter_jit
def init_policies(population: Population, agent: AbstractAgent) -> PyTree:
    """Return untrained policies `[variants, seeds]`; policies of one seed are equal."""
    states = population.map(lambda view, key: agent.init(view, key=key))
    return copy_arrays(states)


@compile_training
def train_block(
    population: Population, states: PyTree, *, agent: AbstractAgent, updates: int
) -> tuple[PyTree, Measured]:
    """Train every policy for a block of updates; return the means of what was measured."""
    return update_policies(population, states, agent, updates)


def update_policies(
    population: Population, states: PyTree, agent: AbstractAgent, updates: int
) -> tuple[PyTree, Measured]:
    """Do what `train_block` does, inside a compiled function."""
    per_rollout = min(updates, agent.updates_per_rollout)
    iterations = updates // per_rollout
    if iterations == 1:
        return _iterate(population, states, agent, per_rollout)
    arrays, static = eqx.partition(states, eqx.is_array)

    def step(arrays: PyTree, _: None) -> tuple[PyTree, Measured]:
        after, measured = _iterate(population, eqx.combine(arrays, static), agent, per_rollout)
        return eqx.filter(after, eqx.is_array), measured

    arrays, measured = jax.lax.scan(step, arrays, length=iterations)
    means = jax.tree.map(lambda values: jnp.mean(values, axis=0), measured)
    return eqx.combine(arrays, static), means


def _iterate(
    population: Population, states: PyTree, agent: AbstractAgent, updates: int
) -> tuple[PyTree, Measured]:
    """Imagine, penalise and learn once."""
    imagined = population.map(lambda view, key, state: agent.imagine(view, state, key=key), states)
    steps: Step | None = None
    extra: Measured = {}
    if imagined is not None:
        states, steps = imagined
        steps, extra = penalise_steps(population, steps)
    states, metrics = population.map(
        lambda view, key, state, steps: agent.learn(view, state, steps, updates, key=key),
        states,
        steps,
    )
    return states, {**metrics, **extra}


def penalise_steps(population: Population, steps: Step) -> tuple[Step, Measured]:
    """Subtract `λU` from the rewards of all imagined steps `[variants, seeds, steps, episodes]`,
    and end episodes at the limit, if there is one.

    All steps that share a penalty are penalised together: one neighbour search for ten thousand
    points is cheaper than many small ones. Chunks bound the memory.
    """
    shape = steps.reward.shape
    embeddings = steps.embedding.reshape(*shape[:2], -1, steps.embedding.shape[-1])
    places = population.penalty_of or tuple(range(shape[0]))
    over_seeds = eqx.filter_vmap(penalise)
    U = jnp.zeros(embeddings.shape[:-1])
    for place, penalty in enumerate(population.penalties):
        variants = np.flatnonzero(np.array(places) == place)
        joined = jnp.concatenate(list(embeddings[variants]), axis=1)
        found = over_seeds(penalty, joined).reshape(shape[1], len(variants), -1)
        U = U.at[variants].set(jnp.swapaxes(found, 0, 1))
    weights = population.weights[:, None, None]
    rewards = subtract_penalty(steps.reward.reshape(U.shape), U, weights)
    measured = {
        "imagined_reward": jnp.mean(rewards, axis=-1),
        "penalty": jnp.mean(U, axis=-1),
    }
    steps = eqx.tree_at(lambda s: s.reward, steps, rewards.reshape(shape))
    if population.limit is None:
        return steps, measured
    end = jax.vmap(jax.vmap(end_unknown_rollouts))
    steps = end(steps, U.reshape(shape), population.limit)
    largest = population.limit.penalty[..., None]
    return steps, {**measured, "unknown": jnp.mean(largest < U, axis=-1)}


@eqx.filter_jit
def value_initial_states(
    population: Population, states: PyTree, agent: AbstractAgent
) -> Float[Array, "variants seeds"] | None:
    """Return the mean value of the first states of the data's episodes, or None without a critic.

    It is the value in the pessimistic MDP. You can use it to select policies without a simulator.
    """
    return value_policies(population, states, agent)


def value_policies(
    population: Population, states: PyTree, agent: AbstractAgent
) -> Float[Array, "variants seeds"] | None:
    """Do what `value_initial_states` does, inside a compiled function."""

    def value(state: PyTree, initial: Float[Array, "e latent"]) -> Float[Array, ""] | None:
        def one(z: Latent) -> Float[Array, ""] | None:
            return agent.value(state, z)

        values = jax.vmap(one)(initial)
        return None if values is None else jnp.mean(values)

    first = eqx.if_array(0)
    over_variants = eqx.filter_vmap(eqx.filter_vmap(value), in_axes=(first, None))
    return over_variants(states, population.initial)
