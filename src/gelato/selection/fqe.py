"""Fitted Q evaluation: the value of a policy from logged steps alone.

    Q(s, a) = r + γ (1 − end) E_{a′~π} Q(s′, a′)  on logged (s, a, r, s′)

An ensemble of critics with normalised layers, each on its own bootstrap of the episodes, gives an
interval. The estimate is the discounted value of the first states of the episodes. Policies whose
critics diverge are reported and excluded.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.selection.estimate import AbstractEstimator, Estimate, bound_next
from gelato.selection.evidence import Evidence, choose_actions
from gelato.selection.log import normalise_actions
from gelato.selection.temporal import (
    Critics,
    CriticState,
    HeadedCritic,
    Problem,
    Rows,
    Units,
    find_problem,
    make_problem,
    train_critics,
    value_choices,
)

_CHUNK = 4096


@dataclass(frozen=True)
class FittedQ(AbstractEstimator):
    """FQE with an ensemble of bootstrapped critics, or with critics that were fitted before."""

    critics: Critics | None = None
    name = "fqe"

    def estimate(self, evidence: Evidence) -> list[Estimate]:
        return summarise_critics(evidence, self.critics or fit_critics(evidence))


def fit_critics(evidence: Evidence) -> Critics:
    """Fit the critics of all policies."""
    problem = make_logged_problem(evidence)
    initial = make_initial(evidence, problem)
    return train_critics(problem, evidence.settings.critics, "fitted Q evaluation", initial)


def make_logged_problem(evidence: Evidence) -> Problem:
    """Return the logged steps with the policies' choices after them."""
    log, settings = evidence.log, evidence.settings
    rows = Rows(
        states=log.standardise(log.states),
        actions=normalise_actions(log.space, log.actions),
        rewards=log.rewards[:, None],
        next_states=log.standardise(log.next_states),
        continues=1.0 - log.terminated,
        episodes=log.episodes,
        next_choices=choose_actions(evidence.policies, log, log.next_states, key=evidence.key),
    )
    return make_problem(
        rows,
        log.count,
        len(log.rows),
        settings.critics.members,
        settings.discount,
        log.space,
        key=evidence.key,
    )


def make_initial(evidence: Evidence, problem: Problem) -> tuple[Array, Array, Array]:
    """Return first states, the policies' choices there, and the members' weights of episodes."""
    first = evidence.log.initial_states
    choices = choose_actions(evidence.policies, evidence.log, first, key=evidence.key)
    return evidence.log.standardise(first), choices, problem.weights


def summarise_critics(evidence: Evidence, critics: Critics) -> list[Estimate]:
    """Turn the values of all members into estimates with intervals."""
    low, high = evidence.bound_values(np.asarray(evidence.log.rewards)[:, None])
    problems = find_problem(critics.history, low, high)
    found = []
    for values, problem in zip(critics.history[-1][..., 0], problems, strict=True):
        mean = float(values.mean())
        # A member is a bootstrap: its distance from the mean is that of the mean from the truth.
        bounds = bound_next(values, mean)
        found.append(Estimate("fqe", mean, *bounds, problem=problem))
    return found


class LoggedValues(eqx.Module):
    """Values of every policy at the rows of the log, means over members."""

    taken: Float[Array, "*rows"]
    before: Float[Array, "*rows"]
    after: Float[Array, "*rows"]


@eqx.filter_jit
def value_log(
    problem: Problem, state: CriticState, choices: Float[Array, "policies n action"]
) -> LoggedValues:
    """Return `Q(s, a)`, `V(s)` and `V(s′)` at all rows; `choices` are those in `s`."""
    rows = problem.rows

    def of_policy(units: Units, critics: HeadedCritic, now: Array, then: Array) -> LoggedValues:
        def average(value: Callable[[HeadedCritic], Array]) -> Float[Array, ""]:
            return jnp.mean(units(eqx.filter_vmap(value)(critics)), axis=0)[0]

        def one(row: tuple[Array, ...]) -> LoggedValues:
            s, a, s_after, choice, choice_after = row
            return LoggedValues(
                average(lambda critic: critic(s, a)),
                average(lambda critic: _value(critic, problem, s, choice)),
                average(lambda critic: _value(critic, problem, s_after, choice_after)),
            )

        columns = (rows.states, rows.actions, rows.next_states, now, then)
        return jax.lax.map(one, columns, batch_size=min(_CHUNK, len(rows.states)))

    return eqx.filter_vmap(of_policy)(problem.units, state.critics, choices, rows.next_choices)


def _value(
    critic: HeadedCritic, problem: Problem, state: Array, choice: Array
) -> Float[Array, " heads"]:
    return value_choices(critic, problem.space, state[None], choice[None])[0]
