"""Full-length rollouts of policies in models, in particular in models they were not trained in.

Every model imagines in its own latent space; policies see states in the data's own units. A policy
with a history sees windows of decoded observations (`dynamics/windowed.py`). A return
ends pessimistically where the penalty U exceeds its maximum over the data: from there on the model
knows nothing, so each remaining step earns the worst that is plausible. That is nothing, or the
mean reward of the worst logged episode if that is negative. The rollout itself goes on, to count
the steps outside of the data and what the model believes (`believed`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from gelato.arrays import stack
from gelato.dynamics.interface import AbstractDynamics
from gelato.dynamics.windowed import WindowedDynamics
from gelato.model.latent import Scaling
from gelato.progress import Advance, progress
from gelato.selection.log import Log
from gelato.selection.policies import AbstractTarget
from gelato.uncertainty.penalty import AbstractPenalty, penalise

_BLOCKS = 10
# Sums over a rollout: the fields of `Rollouts`.
_SUMS = 5


class Judge(eqx.Module):
    """A model to roll policies out in, with its penalty and the largest penalty on its data.

    If policies read a history, the dynamics carry it.
    """

    dynamics: AbstractDynamics
    scaling: Scaling
    penalty: AbstractPenalty
    largest: Float[Array, ""]

    def penalise(self, embeddings: Float[Array, "n embedding"]) -> Float[Array, " n"]:
        """Return U of each embedding."""
        if isinstance(self.dynamics, WindowedDynamics):
            embeddings, _ = self.dynamics.split(embeddings)
        return penalise(self.penalty, embeddings)


class Rollouts(eqx.Module):
    """Sums over rollouts, `[models, policies, episodes]`.

    `returns` end pessimistically, `believed` are those of the model. `penalties` sum U, at most its
    maximum over the data at each step. `steps` counts imagined steps, `outside` those with a larger
    U. `own` says which model a policy was trained in.
    """

    returns: Float[np.ndarray, "models policies episodes"]
    believed: Float[np.ndarray, "models policies episodes"]
    penalties: Float[np.ndarray, "models policies episodes"]
    steps: Float[np.ndarray, "models policies episodes"]
    outside: Float[np.ndarray, "models policies episodes"]
    own: Bool[np.ndarray, "models policies"]

    @property
    def outside_shares(self) -> Float[np.ndarray, " policies"]:
        """The share of each policy's steps that lie outside of the data, in other models."""
        weights = ~self.own[:, :, None]
        steps = np.sum(self.steps * weights, axis=(0, 2))
        return np.sum(self.outside * weights, axis=(0, 2)) / np.maximum(steps, 1)


class _Carry(eqx.Module):
    """Where rollouts are `[policies, episodes]`, and their sums so far."""

    latent: Float[Array, "policies episodes latent"]
    known: Bool[Array, "policies episodes"]
    alive: Bool[Array, "policies episodes"]
    sums: Float[Array, "policies episodes sums"]
    step: Int[Array, ""]


@dataclass(frozen=True)
class RolloutConfig:
    """Length of a rollout, and the reward of a step outside of the data."""

    steps: int
    worst: float


def find_worst_reward(log: Log) -> float:
    """Return the reward of a step outside of the data."""
    lengths = np.asarray(log.present).sum(axis=1)
    return min(0.0, float(np.min(np.asarray(log.returns()) / lengths)))


def roll_out(
    judges: Sequence[Judge],
    policies: AbstractTarget,
    starts: Float[Array, "episodes state"],
    own: Bool[np.ndarray, "models policies"],
    config: RolloutConfig,
    *,
    key: PRNGKeyArray,
) -> Rollouts:
    """Roll every policy out in every model, from the same first states of the data.

    Models of equal shapes share a program.
    """
    groups = _group_by_shape(judges)
    sums = np.zeros((*own.shape, len(starts), _SUMS))
    with progress("rollouts in other models", len(groups) * config.steps) as advance:
        for group in groups:
            chosen = stack([judges[place] for place in group])
            sums[group] = _roll_out_in(chosen, policies, starts, config, advance, key=key)
    returns, believed, penalties, steps, outside = np.moveaxis(sums, -1, 0)
    return Rollouts(returns, believed, penalties, steps, outside, own)


def _group_by_shape(judges: Sequence[Judge]) -> list[list[int]]:
    """Group the places of models that can be stacked."""
    groups: dict[object, list[int]] = {}
    for place, judge in enumerate(judges):
        arrays, static = eqx.partition(judge, eqx.is_array)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arrays))
        groups.setdefault((shapes, jax.tree.structure(static)), []).append(place)
    return list(groups.values())


def _roll_out_in(
    judges: Judge,
    policies: AbstractTarget,
    starts: Float[Array, "episodes state"],
    config: RolloutConfig,
    advance: Advance,
    *,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "models policies episodes sums"]:
    """Roll out in stacked models, in blocks that move a progress bar."""
    count = jax.tree.leaves(policies)[0].shape[0]
    carry, done = _begin_in_all(judges, starts, count), 0
    length = max(1, config.steps // _BLOCKS)
    while done < config.steps:
        steps = min(length, config.steps - done)
        carry = _continue_in_all(judges, policies, carry, config, steps, key=key)
        done += steps
        advance(steps)
    return np.asarray(carry.sums)


@eqx.filter_jit
def _begin_in_all(judges: Judge, starts: Float[Array, "episodes state"], policies: int) -> _Carry:
    return eqx.filter_vmap(lambda judge: begin_rollouts(judge, starts, policies))(judges)


@eqx.filter_jit
def _continue_in_all(
    judges: Judge,
    policies: AbstractTarget,
    carry: _Carry,
    config: RolloutConfig,
    steps: int,
    *,
    key: PRNGKeyArray,
) -> _Carry:
    def in_model(judge: Judge, carry: _Carry) -> _Carry:
        return continue_rollouts(judge, policies, carry, config, steps, key=key)

    return eqx.filter_vmap(in_model)(judges, carry)


@eqx.filter_jit
def begin_rollouts(judge: Judge, starts: Float[Array, "episodes state"], policies: int) -> _Carry:
    """Start rollouts of all policies in the same states."""
    states = jnp.asarray(judge.scaling.inputs(starts))
    latents = jax.vmap(judge.dynamics.encode)(states)
    shape = policies, len(starts)
    return _Carry(
        jnp.broadcast_to(latents, (policies, *latents.shape)),
        jnp.ones(shape, bool),
        jnp.ones(shape, bool),
        jnp.zeros((*shape, _SUMS)),
        jnp.zeros((), jnp.int32),
    )


@eqx.filter_jit
def continue_rollouts(
    judge: Judge,
    policies: AbstractTarget,
    carry: _Carry,
    config: RolloutConfig,
    steps: int,
    *,
    key: PRNGKeyArray,
) -> _Carry:
    """Take some more steps of all rollouts."""
    space = judge.scaling.action_space
    shape = carry.alive.shape

    def step(carry: _Carry, _: None) -> tuple[_Carry, None]:
        keys = jax.random.split(jax.random.fold_in(key, carry.step), (shape[1], 3))

        def embed(policy: AbstractTarget, z: Array, keys: Key[Array, " uses"]) -> Array:
            normalised = judge.dynamics.decode(z, key=keys[0])
            state = jnp.asarray(judge.scaling.restore(normalised))
            return judge.dynamics.embed(z, policy.act(state, space, key=keys[1]))

        over_episodes = eqx.filter_vmap(embed, in_axes=(None, 0, 0))
        embeddings = eqx.filter_vmap(over_episodes, in_axes=(eqx.if_array(0), 0, None))(
            policies, carry.latent, keys
        )
        U = judge.penalise(embeddings.reshape(-1, embeddings.shape[-1])).reshape(shape)
        imagine = jax.vmap(lambda e, keys: judge.dynamics.imagine(e, key=keys[2]))
        outcome = jax.vmap(imagine, in_axes=(0, None))(embeddings, keys)
        trusted = judge.largest >= U
        known = carry.known & trusted
        # What all remaining steps earn in a return that leaves the data here.
        left = jnp.asarray(config.steps - carry.step, jnp.float32)
        leaves = carry.alive & carry.known & ~trusted
        reward = jnp.where(carry.alive, outcome.reward, 0)
        added = jnp.stack(
            [
                jnp.where(known, reward, 0) + jnp.where(leaves, left * config.worst, 0),
                reward,
                jnp.where(carry.alive, jnp.minimum(U, judge.largest), 0),
                carry.alive.astype(jnp.float32),
                (carry.alive & ~trusted).astype(jnp.float32),
            ],
            axis=-1,
        )
        alive = carry.alive & ~outcome.terminated
        latent = jnp.where(alive[..., None], outcome.latent, carry.latent)
        return _Carry(latent, known, alive, carry.sums + added, carry.step + 1), None

    return jax.lax.scan(step, carry, length=steps)[0]
