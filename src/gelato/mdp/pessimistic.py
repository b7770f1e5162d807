"""The pessimistic MDP of Algorithm 1, as pure functions: starts from data, steps of a model, reward `r − λU`.

A rule or the model's head *terminates* an episode; the horizon *truncates* it, which ends the rollout and not the task:
the value of the last state still counts.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gelato.mdp.dynamics import AbstractDynamics, Action, Latent
from gelato.uncertainty.penalty import AbstractPenalty

Policy = Callable[..., Action]


class State(eqx.Module):
    """Where an episode is: the latent state and how many steps it took."""

    latent: Float[Array, "*batch latent"]
    elapsed: Int[Array, "*batch"]


class Step(eqx.Module):
    """What a step gives; `penalty` is `U`, and `reward` has `λU` taken off already."""

    state: State
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    penalty: Float[Array, "*batch"]


class Experience(eqx.Module):
    """Transitions as an agent learns from them; every array has the row as its first axis."""

    latents: Float[Array, "*n latent"]
    actions: Float[Array, "*n action"]
    rewards: Float[Array, "*n"]
    next_latents: Float[Array, "*n latent"]
    terminated: Float[Array, "*n"]


class PessimisticMDP(eqx.Module):
    """`reset` and `step` over learned dynamics; `penalty_weight` is λ, in units of reward for a `U` of 1."""

    dynamics: AbstractDynamics
    penalty: AbstractPenalty
    penalty_weight: Float[Array, ""]
    starts: Float[Array, "n latent"]
    horizon: int = eqx.field(static=True)

    def reset(self, *, key: PRNGKeyArray) -> State:
        """A latent state of the data."""
        return State(draw(self.starts, key=key), jnp.zeros((), jnp.int32))

    def step(self, state: State, action: Action, *, key: PRNGKeyArray) -> Step:
        """One step; `action` is as the model sees it (`action_space.encode`)."""
        e = self.dynamics.embed(state.latent, action)
        outcome = self.dynamics.imagine(e, key=key)
        penalty = self.penalty(e)
        elapsed = state.elapsed + 1
        return Step(
            State(outcome.latent, elapsed),
            outcome.reward - self.penalty_weight * penalty,
            outcome.terminated,
            (elapsed >= self.horizon) & ~outcome.terminated,
            penalty,
        )


def draw(starts: Float[Array, "n latent"], *, key: PRNGKeyArray) -> Latent:
    """One of the starts, uniformly."""
    return starts[jax.random.randint(key, (), 0, len(starts))]


def branch(
    dynamics: AbstractDynamics,
    starts: Float[Array, "n latent"],
    policy: Policy,
    *,
    branches: int,
    horizon: int,
    key: PRNGKeyArray,
) -> tuple[Experience, Float[Array, "steps embedding"]]:
    """`branches` episodes side by side for `horizon` steps, and the embedding of every step, to penalise it.

    An episode that terminates starts anew from the data, so that every row is a step.
    """

    def step(latent: Latent, key: PRNGKeyArray) -> tuple[Latent, tuple[Experience, Array]]:
        act_key, step_key, start_key = jax.random.split(key, 3)
        action = policy(latent, key=act_key)
        e = dynamics.embed(latent, action)
        outcome = dynamics.imagine(e, key=step_key)
        row = Experience(latent, action, outcome.reward, outcome.latent, outcome.terminated.astype(jnp.float32))
        return jnp.where(outcome.terminated, draw(starts, key=start_key), outcome.latent), (row, e)

    start_key, key = jax.random.split(key)
    first = jax.vmap(lambda key: draw(starts, key=key))(jax.random.split(start_key, branches))
    keys = jax.random.split(key, (horizon, branches))
    _, taken = jax.lax.scan(lambda z, keys: jax.vmap(step)(z, keys), first, keys)
    rows, embeddings = jax.tree.map(lambda x: x.reshape(horizon * branches, *x.shape[2:]), taken)
    return rows, embeddings
