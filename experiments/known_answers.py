"""Two systems whose policies have known values: what estimators of returns are tested on.

Both end after every step with the probability 0.2, so values are undiscounted and finite. A log has
a hundred episodes of a known behaviour policy.

`chain`: five states in a row. Action 1 goes right and action 0 left, each with probability 0.9. The
last state pays 1 per step. Episodes start in the middle. Policies go right with fixed chances.

`linear-quadratic`: s′ = A s + B a + noise, reward −sᵀQs − R a². Policies are a = −K s + noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Standardiser
from gelato.dynamics.interface import AbstractDynamics, Imagined
from gelato.model.latent import Scaling
from gelato.selection.estimate import LEVEL, bound_next
from gelato.selection.evidence import choose_actions
from gelato.selection.fqe import value_log
from gelato.selection.importance import (
    ESTIMATORS,
    Weighted,
    summarise_weights,
    weigh_episodes,
    weigh_rows,
)
from gelato.selection.log import Log, normalise_actions
from gelato.selection.policies import AbstractTarget
from gelato.selection.rollouts import Judge, RolloutConfig, begin_rollouts, continue_rollouts
from gelato.selection.temporal import (
    Rows,
    TemporalConfig,
    init_critics,
    make_problem,
    update_critics,
    value_initial,
)
from gelato.uncertainty.penalty import Nothing

END = 0.2
STEPS = 40
STATES = 5
_START = 2
A = jnp.array([[0.9, 0.3], [-0.2, 0.8]])
B = jnp.array([0.2, 0.5])
Q = jnp.diag(jnp.array([0.5, 0.5]))
R = 0.1
_NOISE, _SPREAD, _WIDE = 0.1, 0.4, 0.7
_EXCLUDED = (np.nan, np.nan, np.nan)


class ChainPolicy(AbstractTarget):
    """Goes right with a fixed probability."""

    right: Array

    def choose(self, observation: Array, *, key: PRNGKeyArray) -> Array:
        del observation, key
        return jnp.stack([1 - self.right, self.right])

    def log_density(self, observation: Array, action: Array) -> Array:
        del observation
        return jnp.log(jnp.stack([1 - self.right, self.right])) @ action


class LinearPolicy(AbstractTarget):
    """`a ~ N(−K s, σ²)`."""

    gain: Array
    deviation: Array

    def choose(self, observation: Array, *, key: PRNGKeyArray) -> Array:
        return (-self.gain @ observation + self.deviation * jax.random.normal(key))[None]

    def log_density(self, observation: Array, action: Array) -> Array:
        return jax.scipy.stats.norm.logpdf(action[0], -self.gain @ observation, self.deviation)


class ChainDynamics(AbstractDynamics):
    """Transition probabilities, mean rewards and the probability of an end."""

    moves: Float[Array, "*batch states actions states"]
    rewards: Float[Array, "*batch states actions"]
    end: Float[Array, "*batch"]

    def encode(self, state: Array) -> Array:
        return state

    def embed(self, latent: Array, action: Array) -> Array:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Array, *, key: PRNGKeyArray) -> Imagined:
        state, action = embedding[:STATES], embedding[STATES:]
        move_key, end_key = jax.random.split(key)
        odds = jnp.einsum("s,a,sat->t", state, action, self.moves)
        after = jax.nn.one_hot(jax.random.categorical(move_key, jnp.log(odds)), STATES)
        ended = jax.random.bernoulli(end_key, self.end)
        return Imagined(after, jnp.einsum("s,a,sa->", state, action, self.rewards), ended)


class LinearDynamics(AbstractDynamics):
    """Coefficients of next state and reward, and the probability of an end."""

    states: Float[Array, "*batch pair state"]
    rewards: Float[Array, "*batch features"]
    noise: Float[Array, "*batch state"]
    end: Float[Array, "*batch"]

    def encode(self, state: Array) -> Array:
        return state

    def embed(self, latent: Array, action: Array) -> Array:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Array, *, key: PRNGKeyArray) -> Imagined:
        noise_key, end_key = jax.random.split(key)
        after = embedding @ self.states + self.noise * jax.random.normal(noise_key, (2,))
        reward = list_features(embedding) @ self.rewards
        return Imagined(after, reward, jax.random.bernoulli(end_key, self.end))


def list_features(pair: Array) -> Array:
    """Return 1 and the squares and products of `(s, a)`."""
    products = pair[:, None] * pair
    return jnp.concatenate([jnp.ones(1), products[jnp.triu_indices(len(pair))]])


@dataclass(frozen=True)
class System:
    """A system, its behaviour policy, the policies to evaluate, and their values."""

    name: str
    truth: AbstractDynamics
    space: ActionSpace
    draw_start: Callable[[PRNGKeyArray], Array]
    behaviour: AbstractTarget
    policies: AbstractTarget
    values: Float[np.ndarray, " policies"]
    fit: Callable[[Log, Array], AbstractDynamics]
    critics: TemporalConfig


def make_chain() -> System:
    """Make the chain. Its policies go right with probability 0.2 to 0.8."""
    moves = np.zeros((STATES, 2, STATES))
    for state in range(STATES):
        for action, step in ((0, -1), (1, 1)):
            moves[state, action, min(max(state + step, 0), STATES - 1)] += 0.9
            moves[state, action, state] += 0.1
    rewards = np.zeros((STATES, 2))
    rewards[-1] = 1.0
    chances = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
    values = []
    for chance in chances:
        followed = (1 - chance) * moves[:, 0] + chance * moves[:, 1]
        every = np.linalg.solve(np.eye(STATES) - (1 - END) * followed, rewards[:, 0])
        values.append(every[_START])
    return System(
        "chain",
        ChainDynamics(*map(jnp.asarray, (moves, rewards)), jnp.asarray(END)),
        Discrete(2),
        lambda key: jax.nn.one_hot(_START, STATES),  # noqa: ARG005
        ChainPolicy(jnp.asarray(0.5)),
        ChainPolicy(jnp.asarray(chances)),
        np.array(values),
        fit_chain,
        TemporalConfig((16,), 8, 1_500, 64, 3e-3, 0.05),
    )


def make_linear() -> System:
    """Make the linear-quadratic system. Its policies have gains from −0.2 to 0.6."""
    gains = np.array([-0.2, 0.0, 0.2, 0.4, 0.6])[:, None] * np.array([0.3, 1.0])
    a, b, q = np.asarray(A), np.asarray(B), np.asarray(Q)
    values = []
    for gain in gains:
        closed = a - np.outer(b, gain)
        cost = q + R * np.outer(gain, gain)
        # P = cost + (1 − end) closedᵀ P closed, as a linear system.
        step = (1 - END) * np.kron(closed.T, closed.T)
        P = np.linalg.solve(np.eye(4) - step, cost.ravel()).reshape(2, 2)
        noise = np.trace(P) * _NOISE**2 + (b @ P @ b) * _SPREAD**2
        constant = -(R * _SPREAD**2 + (1 - END) * noise) / END
        values.append(constant - np.trace(P))
    targets = np.concatenate([np.asarray(A).T, np.asarray(B)[None]])
    weights = np.zeros(7)
    weights[[1, 4, 6]] = -0.5, -0.5, -R
    truth = LinearDynamics(
        *map(jnp.asarray, (targets, weights, np.full(2, _NOISE))), jnp.asarray(END)
    )
    return System(
        "linear-quadratic",
        truth,
        Continuous((-6.0,), (6.0,)),
        lambda key: jax.random.rademacher(key, (2,)).astype(jnp.float32),
        LinearPolicy(jnp.asarray(gains[2]), jnp.asarray(_WIDE)),
        LinearPolicy(jnp.asarray(gains), jnp.full(len(gains), _SPREAD)),
        np.array(values),
        fit_linear,
        TemporalConfig((32, 32), 8, 1_500, 64, 3e-3, 0.05),
    )


def record_log(system: System, episodes: int, *, key: PRNGKeyArray) -> Log:
    """Record a log with the behaviour policy; rows of steps come before unused ones."""

    def step(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[Any, Any]:
        state, alive = carry
        act_key, step_key = jax.random.split(key)
        action = system.behaviour.act(state, system.space, key=act_key)
        outcome = system.truth.imagine(system.truth.embed(state, action), key=step_key)
        row = (state, action, outcome.reward, outcome.latent, outcome.terminated, alive)
        return (outcome.latent, alive & ~outcome.terminated), row

    def episode(key: PRNGKeyArray) -> Any:
        start_key, key = jax.random.split(key)
        begin = (system.draw_start(start_key), jnp.asarray(True))
        return jax.lax.scan(step, begin, jax.random.split(key, STEPS))[1]

    rows = jax.vmap(episode)(jax.random.split(key, episodes))
    present = rows[-1]
    flat = [column.reshape(-1, *column.shape[2:]) for column in rows]
    order = jnp.argsort(~flat[-1], stable=True)
    states, actions, rewards, after, terminated, known = (column[order] for column in flat)
    places = jnp.argsort(order).reshape(present.shape)
    numbers = jnp.repeat(jnp.arange(episodes), STEPS)[order]
    scale = Standardiser(jnp.zeros(states.shape[1]), jnp.ones(states.shape[1]))
    densities = jax.vmap(system.behaviour.log_density)(states, actions)
    return Log(
        states,
        actions,
        rewards,
        after,
        terminated,
        numbers,
        jnp.where(present, places, 0),
        present,
        jnp.sum(known).astype(jnp.int32),
        densities,
        scale,
        system.space,
    )


def fit_chain(log: Log, weights: Float[Array, " n"]) -> ChainDynamics:
    """Count transitions, with one count spread over staying; rows have weights."""
    joint = jnp.einsum("n,ns,na,nt->sat", weights, log.states, log.actions, log.next_states)
    joint = joint + 1e-3 * jnp.eye(STATES)[:, None]
    visits = jnp.einsum("n,ns,na->sa", weights, log.states, log.actions)
    rewards = jnp.einsum("n,ns,na,n->sa", weights, log.states, log.actions, log.rewards)
    end = jnp.sum(weights * log.terminated) / jnp.sum(weights)
    moves = joint / jnp.sum(joint, axis=-1, keepdims=True)
    return ChainDynamics(moves, rewards / jnp.maximum(visits, 1e-6), end)


def fit_linear(log: Log, weights: Float[Array, " n"]) -> LinearDynamics:
    """Fit by weighted least squares."""
    pairs = jnp.concatenate([log.states, log.actions], axis=1)
    features = jax.vmap(list_features)(pairs)

    def solve(inputs: Array, targets: Array) -> Array:
        weighted = inputs * weights[:, None]
        ridge = 1e-6 * jnp.eye(inputs.shape[1])
        return jnp.linalg.solve(weighted.T @ inputs + ridge, weighted.T @ targets)

    states = solve(pairs, log.next_states)
    total = jnp.sum(weights)
    errors = (log.next_states - pairs @ states) ** 2
    noise = jnp.sqrt(weights @ errors / total)
    end = jnp.sum(weights * log.terminated) / total
    return LinearDynamics(states, solve(features, log.rewards), noise, end)


@dataclass(frozen=True)
class Answers:
    """Estimates and intervals of every estimator, `[logs, policies]`."""

    estimates: dict[str, Float[np.ndarray, "logs policies"]]
    low: dict[str, Float[np.ndarray, "logs policies"]]
    high: dict[str, Float[np.ndarray, "logs policies"]]


def answer(
    system: System, logs: int, episodes: int, *, seed: int = 0, pairs: int = 5, rollouts: int = 256
) -> Answers:
    """Run all estimators on simulated logs.

    `pairs` is the number of random splits into halves, each of which gives two models.
    """
    keys = jax.random.split(jax.random.key(seed), logs)

    @eqx.filter_jit
    def run(key: PRNGKeyArray) -> tuple[Array, Weighted, Array]:
        log = record_log(system, episodes, key=key)
        return (*evaluate_log(system, log, key=key), judge_log(system, log, pairs, rollouts, key))

    found = [jax.tree.map(np.asarray, run(key)) for key in keys]
    members, weighted, returns = zip(*found, strict=True)
    answers = Answers({}, {}, {})
    _add_draws(answers, "fqe", np.stack(members), np.zeros((logs, len(system.values))))
    every = [summarise_weights(each) for each in weighted]
    for place, name in enumerate(ESTIMATORS):
        rows = [estimates[place] for estimates in every]
        numbers = [
            [(e.estimate, e.low, e.high) if e.usable else _EXCLUDED for e in row] for row in rows
        ]
        table = np.moveaxis(np.array(numbers), -1, 0)
        answers.estimates[name], answers.low[name], answers.high[name] = table
    stacked = np.stack(returns)
    sampling = stacked.var(axis=-1, ddof=1).mean(axis=-1) / stacked[0, 0].size
    _add_draws(answers, "cross-model", stacked.mean(axis=-1), sampling)
    return answers


def _add_draws(answers: Answers, name: str, draws: np.ndarray, sampling: np.ndarray) -> None:
    """Add an estimator that gives several draws per log and policy."""
    center = np.median(draws, axis=-1) if name == "cross-model" else draws.mean(axis=-1)
    bounds = np.array(
        [
            [
                bound_next(draws[i, j], float(center[i, j]), float(sampling[i, j]))
                for j in range(draws.shape[1])
            ]
            for i in range(len(draws))
        ]
    )
    answers.estimates[name] = center
    answers.low[name], answers.high[name] = bounds[..., 0], bounds[..., 1]


def evaluate_log(
    system: System, log: Log, *, key: PRNGKeyArray
) -> tuple[Float[Array, "policies members"], Weighted]:
    """Return the values of FQE's members, and what importance weighting found."""
    config = system.critics
    rows = Rows(
        log.standardise(log.states),
        normalise_actions(log.space, log.actions),
        log.rewards[:, None],
        log.standardise(log.next_states),
        1.0 - log.terminated,
        log.episodes,
        choose_actions(system.policies, log, log.next_states, key=key),
    )
    episodes = len(log.rows)
    problem = make_problem(rows, log.count, episodes, config.members, 1.0, log.space, key=key)
    state = update_critics(problem, init_critics(problem, config), config, config.updates)
    first = log.initial_states
    choices = choose_actions(system.policies, log, first, key=key)
    members = value_initial(problem, state, log.standardise(first), choices, problem.weights)
    now = choose_actions(system.policies, log, log.states, key=key)
    assert log.log_densities is not None
    ratios = weigh_rows(system.policies, log, log.log_densities)
    values = value_log(problem, state, now)
    weighted = weigh_episodes(log, ratios, values, 1.0, key=key)
    return members[..., 0], weighted


def judge_log(
    system: System, log: Log, pairs: int, rollouts: int, key: PRNGKeyArray
) -> Float[Array, "policies models rollouts"]:
    """Return returns of rollouts in models that are fitted to disjoint halves of the episodes."""
    size = log.states.shape[1]
    plain = Scaling(
        Standardiser(jnp.zeros(size), jnp.ones(size)),
        Standardiser(jnp.zeros(1), jnp.ones(1)),
        log.space,
    )
    known = (jnp.arange(len(log.states)) < log.count).astype(jnp.float32)
    count = log.rows.shape[0]
    starts = log.initial_states[jnp.linspace(0, count - 1, rollouts).astype(int)]
    config = RolloutConfig(STEPS, 0.0)

    def of_model(member: Array) -> Array:
        half = jax.random.permutation(jax.random.fold_in(key, member // 2), count) % 2
        chosen = known * (half[log.episodes] == member % 2)
        dynamics = system.fit(log, chosen)
        judge = Judge(dynamics, plain, Nothing(), jnp.zeros(()))
        carry = begin_rollouts(judge, starts, len(system.values))
        step_key = jax.random.fold_in(key, 1_000 + member)
        return continue_rollouts(judge, system.policies, carry, config, STEPS, key=step_key)

    carries = jax.lax.map(lambda member: of_model(member).sums[..., 0], jnp.arange(2 * pairs))
    return jnp.moveaxis(carries, 0, 1)


def score_answers(system: System, answers: Answers) -> list[dict[str, Any]]:
    """Return coverage, error and relative width of every estimator, over its usable estimates."""
    spread = float(np.ptp(system.values))
    found = []
    for name, estimates in answers.estimates.items():
        low, high = answers.low[name], answers.high[name]
        usable = np.isfinite(estimates)
        covered = np.where(usable, (low <= system.values) & (system.values <= high), np.nan)
        enough = usable.mean(axis=0) > 0.5
        by_policy = np.nanmean(covered[:, enough], axis=0) if enough.any() else np.zeros(1)
        found.append(
            {
                "system": system.name,
                "estimator": name,
                "logs": len(estimates),
                "usable": float(usable.mean()),
                "coverage": float(np.nanmean(covered)),
                "least_coverage": float(by_policy.min()),
                "relative_width": float(np.nanmean(high - low) / spread),
                "relative_error": float(
                    np.sqrt(np.nanmean((estimates - system.values) ** 2)) / spread
                ),
                "level": LEVEL,
            }
        )
    return found


def shrink(system: System, updates: int) -> System:
    """Return the system with fewer updates of critics, for tests."""
    return replace(system, critics=replace(system.critics, updates=updates))


SYSTEMS: Sequence[Callable[[], System]] = (make_chain, make_linear)
