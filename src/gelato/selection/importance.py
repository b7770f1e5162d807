"""Importance weighting: logged episodes, reweighted to the policy's own actions.

    ρₜ = Πₖ≤ₜ π(aₖ|sₖ) / b(aₖ|sₖ)

    per-decision      mean over episodes of Σₜ γᵗ ρₜ rₜ
    self-normalised   Σₜ γᵗ Σᵢ ρᵢₜ rᵢₜ / Σᵢ ρᵢₜ
    doubly robust     V(s₀) + Σₜ γᵗ w̄ₜ (rₜ + γ V(sₜ₊₁) − Q(sₜ, aₜ)), with self-normalised w̄ₜ

V and Q are those of FQE.
An episode that ended keeps its last weight. b comes from the log, or is cloned from it. The
effective sample size (Σρ)²/Σρ² says how many episodes an estimate rests on. Intervals are those of
a bootstrap over episodes.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from gelato.data.spaces import Discrete
from gelato.errors import InputError
from gelato.model.networks import MLP
from gelato.progress import note, working
from gelato.selection.estimate import LEVEL, AbstractEstimator, Estimate
from gelato.selection.evidence import Evidence, choose_actions
from gelato.selection.fqe import LoggedValues, fit_critics, value_log
from gelato.selection.log import Log, normalise_actions
from gelato.selection.policies import AbstractTarget
from gelato.selection.temporal import Critics

ESTIMATORS = ("importance", "importance (self-normalised)", "doubly robust")
_RESAMPLES = 200
# With fewer effective episodes than this, an estimate rests on too little.
_FEWEST_EPISODES = 20.0
_CHUNK = 8192
# The cloned behaviour policy.
_HIDDEN, _UPDATES, _BATCH, _RATE = (128, 128), 3_000, 256, 1e-3


class Weighted(eqx.Module):
    """Estimates `[policies, estimators]`, bootstrap deviations and effective episodes."""

    means: Float[Array, "*policies estimators"]
    deviations: Float[Array, "*policies estimators"]
    effective: Float[Array, "*policies"]


@dataclass(frozen=True)
class ImportanceWeighting(AbstractEstimator):
    """One of `ESTIMATORS`. `weighted` holds all of them, if they were computed before."""

    name: str = "doubly robust"
    weighted: Weighted | None = None

    def __post_init__(self) -> None:
        if self.name not in ESTIMATORS:
            raise InputError(f"no estimator {self.name!r}; choose from {', '.join(ESTIMATORS)}")

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        weighted = self.weighted or weigh_log(evidence)
        return summarise_weights(weighted)[ESTIMATORS.index(self.name)]


def weigh_log(evidence: Evidence, critics: Critics | None = None) -> Weighted:
    """Compute all of `ESTIMATORS` for all policies; `critics` are those of FQE, if known."""
    log = evidence.log
    densities = log.log_densities
    if densities is None:
        note(
            "the log has no action probabilities; importance weighting uses a behaviour policy "
            "cloned from it, whose errors its intervals do not include"
        )
        with working("cloning the behaviour policy"):
            densities = clone_densities(log, key=evidence.key)
    with working("importance weighting"):
        ratios = weigh_rows(evidence.policies, log, densities)
        values = None
        # Critics help only where some policy rests on enough episodes.
        if (np.asarray(count_effective(log, ratios)) >= _FEWEST_EPISODES).any():
            choices = choose_actions(evidence.policies, log, log.states, key=evidence.key)
            critics = critics or fit_critics(evidence)
            values = value_log(critics.problem, critics.state, choices)
        return weigh_episodes(log, ratios, values, evidence.settings.discount, key=evidence.key)


@eqx.filter_jit
def weigh_rows(
    policies: AbstractTarget, log: Log, densities: Float[Array, " n"]
) -> Float[Array, "policies n"]:
    """Return `log π(a|s) − log b(a|s)` of every policy at every row."""

    def of_policy(policy: AbstractTarget) -> Float[Array, " n"]:
        def one(row: tuple[Array, Array]) -> Float[Array, ""]:
            return policy.log_density(*row)

        size = min(_CHUNK, len(log.states))
        return jax.lax.map(one, (log.states, log.actions), batch_size=size) - densities

    return eqx.filter_vmap(of_policy)(policies)


@eqx.filter_jit
def count_effective(log: Log, ratios: Float[Array, "policies n"]) -> Float[Array, " policies"]:
    """Return the effective sample size of every policy, in episodes."""

    def of_policy(ratios: Array) -> Float[Array, ""]:
        logs = jnp.sum(jnp.where(log.present, ratios[log.rows], 0), axis=1)
        return _count(jnp.exp(logs - jnp.max(logs)))

    return jax.lax.map(of_policy, ratios)


def _count(weights: Float[Array, " episodes"]) -> Float[Array, ""]:
    known = jnp.where(jnp.isfinite(weights), weights, 0)
    return jnp.sum(known) ** 2 / jnp.maximum(jnp.sum(known**2), 1e-30)


@eqx.filter_jit
def weigh_episodes(
    log: Log,
    ratios: Float[Array, "policies n"],
    values: LoggedValues | None,
    discount: float,
    *,
    key: PRNGKeyArray,
) -> Weighted:
    """Compute all estimates of all policies, and their bootstrap deviations.

    Without values there is no doubly robust estimate.
    """
    episodes, steps = log.rows.shape
    # Poisson counts are the limit of drawing episodes with replacement.
    counts = jax.random.poisson(key, 1.0, (_RESAMPLES, episodes)).astype(jnp.float32)
    draws = jnp.concatenate([jnp.ones((1, episodes)), counts])
    factors = discount ** jnp.arange(steps)
    rewards = jnp.where(log.present, log.rewards[log.rows], 0)
    ahead = jnp.where(log.terminated, 0.0, discount)
    if values is None:
        values = LoggedValues(*[jnp.full(ratios.shape, jnp.nan)] * 3)

    def of_policy(ratios: Array, values: LoggedValues) -> Weighted:
        logs = jnp.cumsum(jnp.where(log.present, ratios[log.rows], 0), axis=1)
        # A common factor of all weights at a step cancels where they are normalised.
        largest = jnp.max(logs, axis=0)
        largest = jnp.where(jnp.isfinite(largest), largest, 0)
        relative = jnp.exp(logs - largest)
        surprise = log.rewards + ahead * values.after - values.taken
        surprise = jnp.where(log.present, surprise[log.rows], 0)
        first = values.before[log.rows[:, 0]]

        def estimate(draw: Float[Array, " episodes"]) -> Float[Array, " estimators"]:
            total = jnp.maximum(jnp.sum(draw), 1)
            plain = jnp.sum(draw[:, None] * relative * rewards, axis=0) * jnp.exp(largest) / total
            normaliser = jnp.maximum(jnp.sum(draw[:, None] * relative, axis=0), 1e-30)
            normal = jnp.sum(draw[:, None] * relative * rewards, axis=0) / normaliser
            robust = jnp.sum(draw[:, None] * relative * surprise, axis=0) / normaliser
            start = jnp.sum(draw * first) / total
            return jnp.stack(
                [
                    jnp.sum(factors * plain),
                    jnp.sum(factors * normal),
                    start + jnp.sum(factors * robust),
                ]
            )

        every = jax.lax.map(estimate, draws, batch_size=8)
        return Weighted(every[0], jnp.std(every[1:], axis=0), _count(relative[:, -1]))

    return jax.lax.map(lambda row: of_policy(*row), (ratios, values))


def summarise_weights(found: Weighted) -> list[list[Estimate]]:
    """Turn numbers into estimates; too few effective episodes make an estimate unusable."""
    means, deviations = np.asarray(found.means), np.asarray(found.deviations)
    by_estimator: list[list[Estimate]] = []
    for column, name in enumerate(ESTIMATORS):
        estimates = []
        for row, effective in enumerate(np.asarray(found.effective, float)):
            # The fewer episodes carry the weight, the less their deviation is known.
            factor = float(stats.t.ppf(0.5 + LEVEL / 2, max(effective - 1, 1)))
            mean, width = float(means[row, column]), factor * float(deviations[row, column])
            problem = None
            if effective < _FEWEST_EPISODES:
                problem = f"rests on {effective:.1f} effective episodes; needs {_FEWEST_EPISODES:g}"
            elif not np.isfinite(mean):
                problem = "weights are not finite"
            estimates.append(
                Estimate(
                    name,
                    mean,
                    mean - width,
                    mean + width,
                    problem,
                    {"effective_episodes": float(effective)},
                )
            )
        by_estimator.append(estimates)
    return by_estimator


class ClonedBehaviour(eqx.Module):
    """The cloned behaviour policy: a Gaussian of scaled actions, or log-probabilities."""

    network: MLP
    discrete: bool = eqx.field(static=True)

    def log_density(self, state: Array, action: Array) -> Float[Array, ""]:
        """Return the log-density of a scaled action in a standardised state."""
        if self.discrete:
            return jax.nn.log_softmax(self.network(state)) @ action
        mean, raw = jnp.split(self.network(state), 2)
        return jnp.sum(jax.scipy.stats.norm.logpdf(action, mean, 1e-2 + jax.nn.softplus(raw)))


@eqx.filter_jit
def clone_densities(log: Log, *, key: PRNGKeyArray) -> Float[Array, " n"]:
    """Clone the behaviour policy by likelihood; return the log-densities of the logged actions.

    The densities are per unit of the data's own actions.
    """
    discrete = isinstance(log.space, Discrete)
    states, actions = log.standardise(log.states), normalise_actions(log.space, log.actions)
    size = log.space.size
    init_key, draw_key = jax.random.split(key)
    outputs = size if discrete else 2 * size
    network = MLP(states.shape[1], outputs, _HIDDEN, "silu", key=init_key)
    arrays, static = eqx.partition(ClonedBehaviour(network, discrete), eqx.is_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(_RATE, _UPDATES, alpha=0.01))

    def update(carry: tuple[Any, Any], step: Array) -> tuple[Any, None]:
        arrays, state = carry
        rows = jax.random.randint(jax.random.fold_in(draw_key, step), (_BATCH,), 0, log.count)

        def loss(arrays: ClonedBehaviour) -> Float[Array, ""]:
            behaviour = eqx.combine(arrays, static)
            return -jnp.mean(jax.vmap(behaviour.log_density)(states[rows], actions[rows]))

        change, state = optimiser.update(jax.grad(loss)(arrays), state, arrays)
        return (optax.apply_updates(arrays, change), state), None

    carry = (arrays, optimiser.init(arrays))
    (arrays, _), _ = jax.lax.scan(update, carry, jnp.arange(_UPDATES))
    behaviour = eqx.combine(arrays, static)
    batch = min(_CHUNK, len(states))
    found = jax.lax.map(
        lambda row: behaviour.log_density(*row), (states, actions), batch_size=batch
    )
    if discrete:
        return found
    unit = jax.grad(lambda a: jnp.sum(normalise_actions(log.space, a)))(log.actions[0])
    return found + jnp.sum(jnp.log(unit))
