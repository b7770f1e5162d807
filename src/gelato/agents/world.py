"""What policies learn in, many at once: variants (penalty, λ, share of logged steps) × seeds, two nested `vmap`s.

A variant has its own penalty and shares the models; a seed has its own model, data embedding and random numbers. Those
are drawn from `(seed, step)` alone, so a policy is the same whatever is trained beside it, resumed or not.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.agents.sac import Terms
from gelato.data.spaces import ActionSpace
from gelato.mdp.dynamics import AbstractDynamics
from gelato.trees import copied
from gelato.uncertainty.penalty import AbstractPenalty, penalise

BEGIN, IMAGINE, LEARN, CLONE = range(4)


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


def for_every_variant(world: World, by_seed: Any) -> Any:
    """`[seeds, …]` as `[variants, seeds, …]`: untrained policies, which are equal for one seed."""
    variants = len(world.weights)
    return copied(jax.tree.map(lambda x: jnp.broadcast_to(x, (variants, *x.shape)) if eqx.is_array(x) else x, by_seed))


def penalised(
    world: World,
    rewards: Float[Array, "variants seeds n"],
    embeddings: Float[Array, "variants seeds n embedding"],
) -> tuple[Float[Array, "variants seeds n"], Float[Array, "variants seeds n"]]:
    """Rewards `r − λU` of every policy's imagined steps, and `U`.

    All steps at once: neighbours of ten thousand points are cheaper together, and their memory can be bounded.
    """
    over_seeds = eqx.filter_vmap(penalise)
    U = jnp.stack([over_seeds(penalty, embeddings[index]) for index, penalty in enumerate(world.penalties)])
    return rewards - world.weights[:, None, None] * U, U


@eqx.filter_jit
def initial_values(world: World, policies: Any) -> Float[Array, "variants seeds"]:
    """Mean value of the first states of the data's episodes under the pessimistic MDP: a number to choose by."""

    def one(policy: Any, initial: Float[Array, "e latent"]) -> Float[Array, ""]:
        return jnp.mean(policy.values(initial))

    return eqx.filter_vmap(eqx.filter_vmap(one), in_axes=(eqx.if_array(0), None))(policies, world.initial)


def key_for(seed: Int[Array, ""], use: int, step: Int[Array, ""] | int) -> Any:
    """The random key of one use at one step of one seed."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**28 + use), step)
