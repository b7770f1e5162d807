"""From a dataset to what policies learn in: models fitted or read, data embedded, penalties built and calibrated."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.agents.replay import packed
from gelato.agents.sac import SACConfig, Terms
from gelato.agents.world import World
from gelato.baselines.ensemble import LargestDeviation, StateDynamics, fit_ensemble
from gelato.data.transitions import Dataset, Transitions, evenly
from gelato.envs.termination import termination_rule
from gelato.mdp.dynamics import AbstractDynamics, Blur, LatentDynamics
from gelato.mdp.pessimistic import Experience
from gelato.methods import BLUR_BOUND, Method, TrainConfig
from gelato.model.fit import normalised_batch
from gelato.model.latent import LatentModel, Scaling
from gelato.model.training import FittedModel, split_for
from gelato.progress import working
from gelato.trees import stacked, taken
from gelato.uncertainty.build import build_penalty, segments_for
from gelato.uncertainty.calibration import SAMPLE, calibrate, calibrate_on
from gelato.uncertainty.embedded import embed, uniform_actions
from gelato.uncertainty.penalty import AbstractPenalty, Nothing

_STARTS = 100_000
_INITIAL = 1_000
_CHUNK = 8192
# How much larger than that of foreign pairs a penalty is taken to be at most, for the bound on values.
_LARGEST_PENALTY = 3.0


def latent_world(fitted: FittedModel, methods: Sequence[Method], config: TrainConfig) -> World:
    """The world of methods that learn in the latent model's."""
    every = range(len(fitted.seeds))
    dynamics = [latent_dynamics(fitted, index, config.doubt, config.blur_bound) for index in every]
    names = dict.fromkeys(method.penalty for method in methods)
    with working("embedding the data and calibrating penalties"):
        ready = [latent_penalties(fitted, index, names, config.neighbours, config.points) for index in every]
        penalties = [[of_seed[method.penalty] for method in methods] for of_seed in ready]
        return _world(fitted.dataset, fitted.scaling, dynamics, penalties, methods, fitted.seeds, config.sac)


def latent_dynamics(fitted: FittedModel, index: int, doubt: float, blur_bound: float = BLUR_BOUND) -> LatentDynamics:
    """The latent dynamics of one seed, with imagined states blurred by `doubt` more on average over the data.

    The unit is the spread of the data's states. How the blur is shared out among them is up to the decoders' σ, up to
    `blur_bound` times the mean.
    """
    model, blur = fitted.seed(index), None
    if doubt:
        train, _ = fitted.parts
        rows = evenly(train, SAMPLE)
        typical = _typical_deviation(model, jnp.asarray(fitted.scaling.states(np.asarray(train.states[rows]))))
        blur = Blur(doubt / typical, jnp.asarray(blur_bound * doubt))
    rule = termination_rule(fitted.dataset.environment, fitted.dataset.transitions.states.shape[1])
    return LatentDynamics(model, fitted.scaling, rule, blur)


@eqx.filter_jit
def _typical_deviation(model: LatentModel, states: Float[Array, "n state"]) -> Float[Array, ""]:
    return jnp.mean(jax.vmap(lambda s: jnp.sqrt(model.decoded_variances(model.encode(s).mean)))(states))


def state_world(
    dataset: Dataset, run: Path, methods: Sequence[Method], seeds: tuple[int, ...], config: TrainConfig
) -> tuple[World, Scaling]:
    """The world of methods that see the normalised state; an ensemble is fitted only if a method imagines."""
    parts = split_for(dataset, config.model)
    scaling = Scaling.fit(parts[0], rewards_to_unit_range=False)
    if all(method.real_share == 1 for method in methods):
        nothing: list[AbstractPenalty] = [Nothing()] * len(methods)
        alone = [None] * len(seeds)
        return _world(dataset, scaling, alone, [nothing] * len(seeds), methods, seeds, config.sac), scaling
    every = fit_ensemble(dataset, parts, scaling, run / "ensemble", seeds=seeds, config=config.ensemble)
    dynamics = [taken(every, index) for index in range(len(seeds))]
    penalties = [[_state_penalty(one, method, parts[0]) for method in methods] for one in dynamics]
    return _world(dataset, scaling, dynamics, penalties, methods, seeds, config.sac), scaling


def latent_penalties(
    fitted: FittedModel, index: int, names: Iterable[str], neighbours: int, points: int
) -> dict[str, AbstractPenalty]:
    """Calibrated penalties of one seed by name, with neighbours among at most `points` transitions."""
    model, (train, held_out) = fitted.seed(index), fitted.parts
    data, known = (embed(model, fitted.scaling, part, points) for part in (train, held_out))
    segments = segments_for(model, train)
    raw = {
        name: build_penalty(name, model, data, known, k=min(neighbours, len(data) - 1), segments=segments)
        for name in names
    }
    return {name: calibrate(penalty, model, fitted.scaling, data) for name, penalty in raw.items()}


def _state_penalty(dynamics: StateDynamics, method: Method, train: Transitions) -> AbstractPenalty:
    if method.penalty == "none":
        return Nothing()
    rows = np.random.default_rng(0).permutation(len(train))[: 2 * SAMPLE]
    batch = normalised_batch(train[rows], dynamics.scaling, jnp.zeros((len(rows), 0)))
    half = len(rows) // 2
    away = batch.states[half:] + (batch.states[half:] - batch.states[: len(rows) - half]) / 2
    actions = uniform_actions(dynamics.scaling, len(away), jax.random.key(0))
    inside, outside = jax.vmap(dynamics.embed)(batch.states, batch.actions), jax.vmap(dynamics.embed)(away, actions)
    return calibrate_on(LargestDeviation(dynamics), inside, jnp.full(len(inside), -1), outside)


def _world(
    dataset: Dataset,
    scaling: Scaling,
    dynamics: Sequence[AbstractDynamics | None],
    penalties: Sequence[Sequence[AbstractPenalty]],
    methods: Sequence[Method],
    seeds: tuple[int, ...],
    config: SACConfig,
) -> World:
    # A row that ends the task needs no successor: nothing follows that could count.
    every = dataset.transitions
    transitions = every[np.asarray(every.has_successor | every.terminated)]
    batch = normalised_batch(transitions, scaling, jnp.zeros((len(transitions), 0)))
    rewards = jnp.asarray(transitions.rewards, jnp.float32)
    firsts = np.array([rows.start for rows in every.episode_slices])[:_INITIAL]
    first_states = jnp.asarray(scaling.states(np.asarray(every.states[firsts])))
    chosen = np.random.default_rng(0).permutation(len(transitions))[:_STARTS]
    real, starts, initial = [], [], []
    for one in dynamics:
        z, after = seen(one, batch.states), seen(one, batch.next_states)
        real.append(packed(Experience(z, batch.actions, rewards, after, batch.terminated)))
        starts.append(z[chosen])
        initial.append(seen(one, first_states))
    weights = np.array([method.penalty_weight for method in methods], np.float32)
    return World(
        dynamics=None if dynamics[0] is None else stacked(dynamics),
        real=jnp.stack(real),
        starts=jnp.stack(starts),
        initial=jnp.stack(initial),
        penalties=tuple(stacked([of_seed[index] for of_seed in penalties]) for index in range(len(methods))),
        weights=jnp.asarray(weights),
        terms=_terms(methods, float(rewards.min()), float(rewards.max()), config.discount),
        seeds=jnp.array(seeds),
        action_space=transitions.action_space,
    )


def _terms(methods: Sequence[Method], low: float, high: float, discount: float) -> Terms:
    """Shares of logged steps, and what values can be: at best the largest reward for ever, or once if that is less."""
    lowest = np.array([low - _LARGEST_PENALTY * method.penalty_weight for method in methods], np.float32)
    return Terms(
        jnp.array([method.real_share for method in methods]),
        jnp.asarray(np.minimum(lowest, lowest / (1 - discount))),
        jnp.full(len(methods), max(high, high / (1 - discount))),
    )


def seen(dynamics: AbstractDynamics | None, states: Float[Array, "n state"]) -> Float[Array, "n latent"]:
    """What a policy sees of normalised states."""
    return states if dynamics is None else _start(dynamics, states)


@eqx.filter_jit
def _start(dynamics: AbstractDynamics, states: Float[Array, "n state"]) -> Float[Array, "n latent"]:
    return jax.lax.map(dynamics.start, states, batch_size=min(_CHUNK, len(states)))
