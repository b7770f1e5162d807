"""Critics of given policies by temporal differences: what FQE and the value estimator share.

    Q(s, a) ← r + γ (1 − end) Q̄(s′, π(s′))

A critic has one head per reward (`V_r` and `V_U`, for example). Policies and members of an ensemble
are axes of one program. Every member weighs episodes by Poisson(1) counts, the limit of a
bootstrap, so the spread of the members measures how much the estimate depends on the episodes.
Hidden layers are normalised and values are learned in units of their own size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.arrays import copy_arrays
from gelato.compilation import compile_training
from gelato.data.spaces import ActionSpace, Discrete
from gelato.errors import require_positive
from gelato.model.networks import Linear, linear_layers
from gelato.progress import progress

_BLOCKS = 10
# A value this far outside of what rewards allow, as a share of their range, has diverged.
_MARGIN = 0.1
_CHUNK = 8192


@dataclass(frozen=True)
class TemporalConfig:
    """Settings of the critics."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    members: int = 5
    """Critics per policy, each with its own bootstrap of the episodes."""
    updates: int = 10_000
    """Updates in all."""
    batch_size: int = 256
    """Rows per update."""
    learning_rate: float = 1e-3
    """First learning rate. It falls to a hundredth along a cosine."""
    target_rate: float = 0.05
    """Share of the new critics in the target critics after each update."""

    def __post_init__(self) -> None:
        require_positive(self, "members", "updates", "batch_size")


class Rows(eqx.Module):
    """Steps to learn from; all policies share them, or the first axis is the policy.

    `states` and `next_states` are what critics see. Actions are scaled. `next_choices` are actions
    in the next states, or probabilities of all discrete actions; policies do not share them, so
    their first axes differ from those of the other fields.
    """

    states: Float[Array, "*owners n state"]
    actions: Float[Array, "*owners n action"]
    rewards: Float[Array, "*owners n heads"]
    next_states: Float[Array, "*owners n state"]
    continues: Float[Array, "*owners n"]
    episodes: Int[Array, "*owners n"]
    next_choices: Float[Array, "*policies n action"]

    def take(self, chosen: Int[Array, " size"]) -> "Rows":
        """Return the chosen rows, with every policy's own copy."""
        policies, shared = self.next_choices.shape[0], self.rewards.ndim == 2

        def gather(column: Array) -> Array:
            if not shared:
                return column[:, chosen]
            found = column[chosen]
            return jnp.broadcast_to(found, (policies, *found.shape))

        return Rows(
            gather(self.states),
            gather(self.actions),
            gather(self.rewards),
            gather(self.next_states),
            gather(self.continues),
            gather(self.episodes),
            self.next_choices[:, chosen],
        )


class HeadedCritic(eqx.Module):
    """`(s, a) ↦ Q(s, a)`, one value per head, with normalised hidden layers."""

    layers: tuple[Linear, ...]
    gains: tuple[Float[Array, " hidden"], ...]
    shifts: tuple[Float[Array, " hidden"], ...]

    def __init__(
        self, in_size: int, heads: int, hidden: Sequence[int], *, key: PRNGKeyArray
    ) -> None:
        self.layers = linear_layers([in_size, *hidden, heads], key=key)
        self.gains = tuple(jnp.ones(width) for width in hidden)
        self.shifts = tuple(jnp.zeros(width) for width in hidden)

    def __call__(self, state: Array, action: Array) -> Float[Array, " heads"]:
        hidden = jnp.concatenate([state, action])
        for layer, gain, shift in zip(self.layers[:-1], self.gains, self.shifts, strict=True):
            out = layer(hidden)
            centred = out - jnp.mean(out)
            scaled = centred * jax.lax.rsqrt(jnp.mean(centred**2) + 1e-5)
            hidden = jax.nn.relu(gain * scaled + shift)
        return self.layers[-1](hidden)


class Units(eqx.Module):
    """`Q = offset + unit · network`, so that networks learn numbers of order 1."""

    offset: Float[Array, "*policies heads"]
    unit: Float[Array, "*policies heads"]

    def __call__(self, values: Float[Array, "*batch heads"]) -> Float[Array, "*batch heads"]:
        return self.offset + self.unit * values


class CriticState(eqx.Module):
    """What training carries along; arrays have the axes `[policies, members]`."""

    critics: HeadedCritic
    targets: HeadedCritic
    optimiser: Any
    step: Int[Array, ""]


class Problem(eqx.Module):
    """Everything that critics are trained with; only the first `count` rows are steps."""

    rows: Rows
    count: Int[Array, ""]
    units: Units
    weights: Float[Array, "members episodes"]
    discount: Float[Array, ""]
    key: PRNGKeyArray
    space: ActionSpace = eqx.field(static=True)


@dataclass(frozen=True)
class Critics:
    """Trained critics of all policies, and the values on the way at which they were measured."""

    state: CriticState
    problem: Problem
    history: list[Float[np.ndarray, "policies members heads"]]


def make_problem(
    rows: Rows,
    count: Int[Array, ""],
    episodes: int,
    members: int,
    discount: float,
    space: ActionSpace,
    *,
    key: PRNGKeyArray,
) -> Problem:
    """Choose the units of values and draw how often each member sees each episode."""
    weight_key, draw_key = jax.random.split(key)
    counts = jax.random.poisson(weight_key, 1.0, (members, episodes)).astype(jnp.float32)
    weights = counts / jnp.maximum(jnp.mean(counts, axis=1, keepdims=True), 1e-6)
    valid = (jnp.arange(rows.rewards.shape[-2]) < count).astype(jnp.float32)
    share = valid / jnp.sum(valid)
    mean = jnp.sum(rows.rewards * share[:, None], axis=-2)
    deviation = jnp.sqrt(
        jnp.sum((rows.rewards - mean[..., None, :]) ** 2 * share[:, None], axis=-2)
    )
    ahead = 1 - discount * jnp.sum(rows.continues * share, axis=-1)
    ahead = jnp.maximum(ahead, 1e-3)[..., None]
    offset = mean / ahead
    unit = jnp.maximum(deviation / ahead, 1e-2 * jnp.abs(offset)) + 1e-6
    policies = rows.next_choices.shape[0]
    heads = rows.rewards.shape[-1]
    units = Units(
        jnp.broadcast_to(offset, (policies, heads)), jnp.broadcast_to(unit, (policies, heads))
    )
    return Problem(rows, count, units, weights, jnp.asarray(discount, jnp.float32), draw_key, space)


@eqx.filter_jit
def init_critics(problem: Problem, config: TemporalConfig) -> CriticState:
    """Return untrained critics; those of equal members are equal for all policies."""
    rows = problem.rows
    size = rows.states.shape[-1] + rows.actions.shape[-1]
    heads = rows.rewards.shape[-1]

    def one(key: PRNGKeyArray) -> tuple[HeadedCritic, Any]:
        critic = HeadedCritic(size, heads, config.hidden, key=key)
        return critic, _optimiser(config).init(eqx.filter(critic, eqx.is_array))

    keys = jax.random.split(jax.random.fold_in(problem.key, 1), config.members)
    critics, optimiser = eqx.filter_vmap(one)(keys)
    policies = rows.next_choices.shape[0]

    def spread(leaf: Any) -> Any:
        return jnp.broadcast_to(leaf, (policies, *leaf.shape)) if eqx.is_array(leaf) else leaf

    critics, optimiser = jax.tree.map(spread, (critics, optimiser))
    return copy_arrays(CriticState(critics, critics, optimiser, jnp.zeros((), jnp.int32)))


def update_critics(
    problem: Problem, state: CriticState, config: TemporalConfig, updates: int
) -> CriticState:
    """Update all critics; every update uses the same rows for all of them."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def update(arrays: Any, _: None) -> tuple[Any, None]:
        state: CriticState = eqx.combine(arrays, static)
        key = jax.random.fold_in(jax.random.fold_in(problem.key, 2), state.step)
        chosen = jax.random.randint(key, (config.batch_size,), 0, problem.count)

        def of_policy(units: Units, batch: Rows, *of_members: Any) -> Any:
            def of_member(weights: Array, *member: Any) -> Any:
                return _update_one(problem, config, units, batch, weights, *member)

            return eqx.filter_vmap(of_member)(problem.weights, *of_members)

        critics, targets, optimiser = eqx.filter_vmap(of_policy)(
            problem.units,
            problem.rows.take(chosen),
            state.critics,
            state.targets,
            state.optimiser,
        )
        after = CriticState(critics, targets, optimiser, state.step + 1)
        return eqx.filter(after, eqx.is_array), None

    arrays, _ = jax.lax.scan(update, arrays, length=updates)
    return eqx.combine(arrays, static)


def _update_one(
    problem: Problem,
    config: TemporalConfig,
    units: Units,
    batch: Rows,
    weights: Float[Array, " episodes"],
    critic: HeadedCritic,
    target: HeadedCritic,
    optimiser: Any,
) -> tuple[HeadedCritic, HeadedCritic, Any]:
    """Update one critic of one policy."""
    after = units(value_choices(target, problem.space, batch.next_states, batch.next_choices))
    ahead = problem.discount * batch.continues[:, None] * after
    wanted = (batch.rewards + ahead - units.offset) / units.unit
    weight = weights[batch.episodes][:, None]
    trainable, static = eqx.partition(critic, eqx.is_array)

    def loss(trainable: HeadedCritic) -> Float[Array, ""]:
        found = jax.vmap(eqx.combine(trainable, static))(batch.states, batch.actions)
        return jnp.mean(weight * (found - jax.lax.stop_gradient(wanted)) ** 2)

    gradient = jax.grad(loss)(trainable)
    change, optimiser = _optimiser(config).update(gradient, optimiser, trainable)
    critic = eqx.combine(optax.apply_updates(trainable, change), static)
    target = optax.incremental_update(critic, target, config.target_rate)
    return critic, target, optimiser


def value_choices(
    critic: HeadedCritic,
    space: ActionSpace,
    states: Float[Array, "n state"],
    choices: Float[Array, "n action"],
) -> Float[Array, "n heads"]:
    """Return the network's value of what a policy chooses: an action, or probabilities of all."""
    if not isinstance(space, Discrete):
        return jax.vmap(critic)(states, choices)

    def one(state: Array, probabilities: Array) -> Float[Array, " heads"]:
        every = jax.vmap(lambda action: critic(state, action))(jnp.eye(space.n))
        return probabilities @ every

    return jax.vmap(one)(states, choices)


@eqx.filter_jit
def value_initial(
    problem: Problem,
    state: CriticState,
    states: Float[Array, "*policies e state"],
    choices: Float[Array, "policies e action"],
    weights: Float[Array, "members e"],
) -> Float[Array, "policies members heads"]:
    """Return every critic's mean value of initial states, with the member's weights of episodes."""
    policies = choices.shape[0]
    if states.ndim == 2:
        states = jnp.broadcast_to(states, (policies, *states.shape))

    def of_policy(units: Units, states: Array, choices: Array, critics: HeadedCritic) -> Array:
        def of_member(critic: HeadedCritic, weights: Array) -> Float[Array, " heads"]:
            values = units(value_choices(critic, problem.space, states, choices))
            return weights @ values / jnp.maximum(jnp.sum(weights), 1e-6)

        return eqx.filter_vmap(of_member)(critics, weights)

    return eqx.filter_vmap(of_policy)(problem.units, states, choices, state.critics)


@compile_training
def _train_block(
    problem: Problem, state: CriticState, *, config: TemporalConfig, updates: int
) -> CriticState:
    return update_critics(problem, state, config, updates)


def train_critics(
    problem: Problem,
    config: TemporalConfig,
    title: str,
    initial: tuple[Array, Array, Array],
) -> Critics:
    """Train all critics with a progress bar, and measure initial values on the way."""
    state, history, done = init_critics(problem, config), [], 0
    length = max(1, config.updates // _BLOCKS)
    with progress(title, config.updates) as advance:
        while done < config.updates:
            updates = min(length, config.updates - done)
            state = _train_block(problem, state, config=config, updates=updates)
            history.append(np.asarray(value_initial(problem, state, *initial)))
            done += updates
            advance(updates)
    return Critics(state, problem, history)


def find_problem(
    history: Sequence[Float[np.ndarray, "policies members heads"]],
    low: Float[np.ndarray, " heads"],
    high: Float[np.ndarray, " heads"],
) -> list[str | None]:
    """Say for each policy whether its critics diverged or still move; None if they settled.

    Values must lie in what rewards allow, and their mean may move by at most a tenth of that range
    in the last fifth of the training.
    """
    last = history[-1]
    before = history[max(0, len(history) - 1 - max(1, len(history) // 5))]
    room = high - low
    problems: list[str | None] = []
    for place in range(len(last)):
        values = last[place]
        outside = (values < low - _MARGIN * room) | (values > high + _MARGIN * room)
        moved = np.abs(values.mean(axis=0) - before[place].mean(axis=0))
        if not np.isfinite(values).all():
            problems.append("diverged: values are not finite")
        elif outside.any():
            worst = float(values[outside][0])
            problems.append(f"diverged: a value of {worst:.4g} is outside of what rewards allow")
        elif (moved > _MARGIN * room).any():
            problems.append("did not settle: values still move at the end of the training")
        else:
            problems.append(None)
    return problems


def _optimiser(config: TemporalConfig) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.updates, alpha=0.01)
    return optax.adam(rate)
