"""The pessimistic MDP of Algorithm 1 as pure functions: steps of a model, rewards `r − λU`.

Episodes start from the data. A rule or the model's termination head *terminates* an episode. The
horizon *truncates* it: the rollout ends but the task continues, so the value of the last state is
used for bootstrapping.

**Where the model knows nothing.** Optionally an episode also ends at a step whose `U` is above a
limit, for example above its maximum over the data. Neither the reward nor the next state of such a
step is known. A value of that next state would rest on no data, and a policy would find the states
where it is too large; so nothing is bootstrapped. Instead the step leads to an absorbing state (as
in MOReL) where every step gives the worst reward of the known region, `w = r_min − λ·limit`, for
the smallest logged reward `r_min`. The step terminates the episode with the reward

    min(w, w / (1 − γ)).

A policy that stays in the known region, with rewards as in the log, gets at least `w` in every
step, and its episode may end after any step. So its value is not below this number, and leaving is
never better than staying. Other choices do not have this property: with 0 or with the step's own
reward, leaving is best where rewards are negative.
"""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from gelato.dynamics.interface import AbstractDynamics, Action, Latent
from gelato.uncertainty.penalty import AbstractPenalty


class State(eqx.Module):
    """The current point of an episode: its latent state and the number of steps so far."""

    latent: Float[Array, "*batch latent"]
    elapsed: Int[Array, "*batch"]


class Step(eqx.Module):
    """One imagined step before it is penalised. `embedding` is the input of the penalty.

    `extra` is what the policy returned with the action, such as a log-density. `valid` is False for
    steps after one beyond the limit; None means that all steps are valid.
    """

    latent: Float[Array, "*batch latent"]
    action: Float[Array, "*batch action"]
    reward: Float[Array, "*batch"]
    next_latent: Float[Array, "*batch latent"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    embedding: Float[Array, "*batch embedding"]
    extra: PyTree
    valid: Bool[Array, "*batch"] | None = None

    @property
    def ended(self) -> Bool[Array, "*batch"]:
        """Whether the episode ends here, for either reason."""
        return self.terminated | self.truncated


Act = Callable[..., tuple[Action, PyTree]]


class ImaginedMDP(eqx.Module):
    """Episodes of learned dynamics that start from data and last at most `horizon` steps."""

    dynamics: AbstractDynamics
    starts: Float[Array, "n latent"]
    horizon: int = eqx.field(static=True)

    def reset(self, *, key: PRNGKeyArray) -> State:
        """Start from a random state of the data."""
        return State(draw_start(self.starts, key=key), jnp.zeros((), jnp.int32))

    def step(self, state: State, action: Action, extra: PyTree, *, key: PRNGKeyArray) -> Step:
        """Take one step. `action` is encoded as the model expects (`action_space.encode`)."""
        embedding = self.dynamics.embed(state.latent, action)
        outcome = self.dynamics.imagine(embedding, key=key)
        truncated = (state.elapsed + 1 >= self.horizon) & ~outcome.terminated
        return Step(
            state.latent,
            action,
            outcome.reward,
            outcome.latent,
            outcome.terminated,
            truncated,
            embedding,
            extra,
        )

    def advance(self, state: State, step: Step, *, key: PRNGKeyArray) -> State:
        """Return the state after a step: the next one, or a new start if the episode ended."""
        latent: Latent = jnp.where(step.ended, draw_start(self.starts, key=key), step.next_latent)
        return State(latent, jnp.where(step.ended, 0, state.elapsed + 1))


class Limit(eqx.Module):
    """The largest penalty of the known region, and the value of a step beyond it."""

    penalty: Float[Array, "*batch"]
    value: Float[Array, "*batch"]


def make_limit(
    penalty: Float[Array, "*batch"],
    lowest_reward: Float[Array, ""],
    penalty_weight: Float[Array, "*#batch"],
    discount: float,
) -> Limit:
    """Return the limit with the value `min(w, w / (1 − γ))` of a step beyond it."""
    worst = lowest_reward - penalty_weight * penalty
    return Limit(penalty, jnp.minimum(worst, worst / (1 - discount)))


class PessimisticMDP(eqx.Module):
    """The imagined MDP with reward `r − λU`. `penalty_weight` is λ, in units of reward.

    With `limit`, an episode ends where `U` exceeds it.
    """

    imagined: ImaginedMDP
    penalty: AbstractPenalty
    penalty_weight: Float[Array, ""]
    limit: Limit | None = None

    def reset(self, *, key: PRNGKeyArray) -> State:
        """Start from a random state of the data."""
        return self.imagined.reset(key=key)

    def step(self, state: State, action: Action, *, key: PRNGKeyArray) -> Step:
        """Take one step. Its reward is penalised, and `extra` is the penalty `U`."""
        step = self.imagined.step(state, action, jnp.zeros(()), key=key)
        penalty = self.penalty(step.embedding)
        reward = subtract_penalty(step.reward, penalty, self.penalty_weight)
        step = eqx.tree_at(lambda s: (s.reward, s.extra), step, (reward, penalty))
        return step if self.limit is None else end_unknown(step, penalty, self.limit)


def subtract_penalty(
    reward: Float[Array, "*batch"], penalty: Float[Array, "*batch"], weight: Float[Array, "..."]
) -> Float[Array, "*batch"]:
    """Return `r − λU`."""
    return reward - weight * penalty


def end_unknown(step: Step, penalty: Float[Array, "*batch"], limit: Limit) -> Step:
    """Terminate the episode at a step beyond the limit, with the value of such a step."""
    unknown = penalty > limit.penalty
    return eqx.tree_at(
        lambda s: (s.reward, s.terminated, s.truncated),
        step,
        (
            jnp.where(unknown, limit.value, step.reward),
            step.terminated | unknown,
            step.truncated & ~unknown,
        ),
    )


def end_unknown_rollouts(
    steps: Step, penalty: Float[Array, "steps episodes"], limit: Limit
) -> Step:
    """Do the same for rollouts `[steps, episodes]` that went on regardless.

    The steps between one beyond the limit and the next start of an episode are not valid.
    """

    def advance(
        lost: Bool[Array, " episodes"], given: tuple[Bool[Array, " episodes"], ...]
    ) -> tuple[Bool[Array, " episodes"], Bool[Array, " episodes"]]:
        unknown, ended = given
        return (lost | unknown) & ~ended, ~lost

    unknown = penalty > limit.penalty
    _, valid = jax.lax.scan(advance, jnp.zeros_like(unknown[0]), (unknown, steps.ended))
    return replace(end_unknown(steps, penalty, limit), valid=valid)


def draw_start(starts: Float[Array, "n latent"], *, key: PRNGKeyArray) -> Latent:
    """Draw one of the starts uniformly."""
    return starts[jax.random.randint(key, (), 0, len(starts))]


def start_episodes(mdp: ImaginedMDP, episodes: int, *, key: PRNGKeyArray) -> State:
    """Start several episodes."""
    return jax.vmap(lambda key: mdp.reset(key=key))(jax.random.split(key, episodes))


def rollout(
    mdp: ImaginedMDP, states: State, act: Act, steps: int, *, key: PRNGKeyArray
) -> tuple[Step, State]:
    """Run parallel episodes. Return steps `[steps, episodes]` and the final states.

    `act(z, key=key)` returns an action and anything to keep with it. When an episode ends, a new
    one starts from the data, so every row is a valid step.
    """

    def advance(state: State, key: PRNGKeyArray) -> tuple[State, Step]:
        act_key, step_key, start_key = jax.random.split(key, 3)
        action, extra = act(state.latent, key=act_key)
        step = mdp.step(state, action, extra, key=step_key)
        return mdp.advance(state, step, key=start_key), step

    keys = jax.random.split(key, (steps, len(states.elapsed)))
    states, taken = jax.lax.scan(lambda s, k: jax.vmap(advance)(s, k), states, keys)
    return taken, states
