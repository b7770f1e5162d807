"""How far a trained policy leaves the data: its actions at logged states, and imagined rollouts.

The policy is judged as it will be deployed. It sees states in the data's units; in a rollout these
are the decoded states of the latent model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, Transitions, choose_evenly
from gelato.dynamics.latent import LatentDynamics, make_latent_dynamics
from gelato.errors import InputError
from gelato.model.training import FittedModel, load_model
from gelato.policy.policy import DeployedPolicy
from gelato.progress import progress
from gelato.runs.records import Record
from gelato.training.policies import TrainedPolicy, Which, find_training, trained_policies
from gelato.uncertainty.embedded import sample_actions
from gelato.uncertainty.scores import auroc
from gelato.uncertainty.trust import Trust, check_spaces

ROLLOUTS, HORIZON = 200, 100


@dataclass(frozen=True)
class JudgedRollouts:
    """Penalties of imagined steps, and which steps happened before the episode ended."""

    penalty: Float[np.ndarray, "steps n"]
    happened: Bool[np.ndarray, "steps n"]

    def measure_trusted_share(self, limit: float, first: int, last: int) -> float | None:
        """Return the share of steps `first` to `last`, counted from 1, within the limit."""
        steps = slice(first - 1, last)
        happened = self.happened[steps]
        if not happened.any():
            return None
        return float((self.penalty[steps] <= limit)[happened].mean())

    def count_steps_inside(self, limit: float) -> Float[np.ndarray, " n"]:
        """Return how many steps each rollout takes before its first step outside of the data."""
        inside = np.cumprod((self.penalty <= limit) & self.happened, axis=0)
        return inside.sum(axis=0).astype(float)


def _make_trust(fitted: FittedModel, seed: int) -> Trust:
    return Trust(fitted, seed=seed)


def judge_policies(
    run: Path | str,
    make_trust: Callable[[FittedModel, int], Trust] = _make_trust,
    *,
    method: str | None = None,
    seed: int | None = None,
    which: Which = "last",
    fitted: FittedModel | None = None,
    data: Dataset | None = None,
    rows: int = 2_000,
    rollouts: int = ROLLOUTS,
    horizon: int = HORIZON,
) -> list[Record]:
    """Judge policies of a training run; one record for each.

    `make_trust` makes the judge for the model of one seed.
    The states are those of `data`, or of the held-out episodes of the model. Rollouts begin at the
    first states of episodes. Shares of trusted steps are given for the logged actions, the policy's
    actions and uniformly random actions at the same states, and for the policy's imagined steps.
    """
    policies = trained_policies(find_training(run), which, method, seed)
    fitted = fitted or load_model(run)
    if data is not None:
        check_spaces(fitted, data)
    logged = fitted.parts[1] if data is None else data.transitions
    records = []
    trust: Trust | None = None
    with progress("judging policies", len(policies)) as advance:
        for trained in sorted(policies, key=lambda trained: trained.seed):
            if trust is None or trust.seed != trained.seed:
                trust = make_trust(fitted, trained.seed)
            records.append(judge_policy(trained, trust, logged, rows, rollouts, horizon))
            advance(1)
    return records


def judge_policy(
    trained: TrainedPolicy,
    trust: Trust,
    logged: Transitions,
    rows: int = 2_000,
    rollouts: int = ROLLOUTS,
    horizon: int = HORIZON,
) -> Record:
    """Judge one policy at logged states and along imagined rollouts."""
    policy, limit = trained.policy, trust.limit
    if min(rows, rollouts, horizon) < 1:
        raise InputError("rows, rollouts and horizon must be at least 1")
    chosen = choose_evenly(logged, rows)
    states = logged[chosen].inputs
    at_data = trust(states, np.asarray(logged.actions)[chosen])
    at_policy = trust(states, ask_policy(policy, states))
    at_random = trust(states, _sample(trust, len(states)))
    starts = np.array([episode.start for episode in logged.episode_slices])
    starts = starts[choose_evenly(starts, rollouts)]
    found = imagine(trust, policy, logged[starts].inputs, horizon)
    label = np.repeat([False, True], len(states))
    penalties = np.concatenate([at_data.penalty, at_random.penalty])
    return {
        "method": trained.method,
        "seed": trained.seed,
        "rows": len(states),
        "logged_trusted": float(at_data.trusted.mean()),
        "policy_trusted": float(at_policy.trusted.mean()),
        "uniform_trusted": float(at_random.trusted.mean()),
        "auroc_uniform": auroc(penalties, label),
        "rollouts": len(starts),
        "horizon": horizon,
        "imagined_trusted_first_10": found.measure_trusted_share(limit, 1, min(10, horizon)),
        "imagined_trusted": found.measure_trusted_share(limit, 1, horizon),
        "steps_inside": float(np.median(found.count_steps_inside(limit))),
        "error_bound": float(np.median(at_policy.error_bound)),
        "coverage": trust.bounds.coverage,
        "false_alarm_rate": trust.false_alarm_rate,
    }


def imagine(
    trust: Trust, policy: DeployedPolicy, starts: Float[np.ndarray, "n input"], horizon: int
) -> JudgedRollouts:
    """Roll a policy out in the model and penalise every step.

    A policy with a history reads windows of decoded observations, after those of the start.
    """
    fitted, seed = trust.fitted, trust.seed
    dynamics = make_latent_dynamics(fitted, fitted.seeds.index(seed), state_noise=0.0)
    space, layout = fitted.scaling.action_space, fitted.scaling.layout
    z = jax.vmap(dynamics.encode)(jnp.asarray(fitted.scaling.inputs(starts)))
    memory = starts[:, layout.size - layout.memory_size :]
    alive = np.ones(len(starts), bool)
    penalties, happened = [], []
    for key in jax.random.split(jax.random.key(0), horizon):
        states = np.asarray(fitted.scaling.states.inverse(np.asarray(_decode(dynamics, z))))
        windows = np.asarray(layout.open(states, memory))
        actions = space.encode(ask_policy(policy, windows))
        memory = np.asarray(layout.remember(windows, np.asarray(actions)))
        e, z, ended = _step(dynamics, z, actions, key)
        penalties.append(np.asarray(trust.penalise(e)))
        happened.append(alive)
        alive = alive & ~np.asarray(ended)
    return JudgedRollouts(np.array(penalties), np.array(happened))


def ask_policy(policy: DeployedPolicy, states: Float[np.ndarray, "n input"]) -> np.ndarray:
    """Return the policy's actions at states or windows; rounding leaves them in their box."""
    actions = np.atleast_1d(policy(states))
    if isinstance(policy.space, Discrete):
        return actions.reshape(len(states))
    actions = actions.reshape(len(states), -1)
    return np.clip(actions, policy.space.low, policy.space.high).astype(np.float32)


def _sample(trust: Trust, count: int) -> np.ndarray:
    """Sample uniform actions in the data's form."""
    scaling = trust.fitted.scaling
    actions = np.asarray(sample_actions(scaling, count, jax.random.key(2)))
    return actions.argmax(axis=1) if isinstance(scaling.action_space, Discrete) else actions


@eqx.filter_jit
def _decode(dynamics: LatentDynamics, z: Float[Array, "n latent"]) -> Float[Array, "n state"]:
    return jax.vmap(lambda z: jnp.mean(dynamics.model.decode_means(z), axis=0))(z)


@eqx.filter_jit
def _step(
    dynamics: LatentDynamics,
    z: Float[Array, "n latent"],
    actions: Float[Array, "n action"],
    key: PRNGKeyArray,
) -> tuple[Array, Array, Array]:
    e = jax.vmap(dynamics.embed)(z, actions)

    def step(e: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        imagined = dynamics.imagine(e, key=key)
        return imagined.latent, imagined.terminated

    following, ended = jax.vmap(step)(e, jax.random.split(key, len(z)))
    return e, following, ended
