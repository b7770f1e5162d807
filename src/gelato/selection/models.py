"""The models that judge policies: those of the run, and fits to disjoint halves of the episodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.arrays import take
from gelato.data.transitions import Dataset, Transitions, choose_evenly
from gelato.dynamics.ensemble import EnsembleFit
from gelato.dynamics.fit import AbstractFit, AbstractFitted, PenaltySettings
from gelato.dynamics.interface import AbstractDynamics
from gelato.dynamics.latent import FittedLatent, LatentFit
from gelato.dynamics.state import EnsembleConfig
from gelato.dynamics.windowed import WindowedDynamics
from gelato.errors import InputError
from gelato.mdp.pessimistic import ImaginedMDP, rollout, start_episodes
from gelato.model.latent import Scaling
from gelato.model.split import Split, split_dataset
from gelato.model.training import find_model, load_model
from gelato.runs.files import restore_tuples
from gelato.runs.folder import Run
from gelato.selection.evidence import ImaginedSteps, SelectSettings
from gelato.selection.log import Log, normalise_actions
from gelato.selection.policies import AbstractTarget
from gelato.selection.rollouts import Judge
from gelato.selection.stopwatch import Stopwatch
from gelato.selection.temporal import Rows
from gelato.training.population import encode_rows
from gelato.training.presets import choose_parts
from gelato.uncertainty.build import Penalty
from gelato.uncertainty.penalty import penalise
from gelato.uncertainty.registry import find_penalty

HALVES = ("half-1", "half-2")
# The share of rows of a half that may be dropped.
_TRIMMED = 0.01
_NEIGHBOURS = 20
_HORIZON = 10
_DEFAULT_PENALTIES = {"latent": "geodesic", "state": "largest-deviation"}


@dataclass(frozen=True)
class Models:
    """Models of one kind: of every seed of the run, then of both halves.

    `seeds` are those of the first models; the halves have none. `kind` is the name of the fit.
    """

    judges: tuple[Judge, ...]
    seeds: tuple[int, ...]
    kind: str


def split_in_halves(split: Split, seed: int = 0) -> tuple[Split, Split]:
    """Return two disjoint halves of the training episodes, each as a split of its own.

    With a single training episode, one half is the held-out part. Both halves keep the held-out
    episodes to choose their best weights. If one half has slightly more rows, its last ones are
    dropped.
    """
    train = split.train
    slices = train.episode_slices
    if len(slices) < 2:
        parts = [train, split.held_out]
    else:
        order = np.random.default_rng(seed).permutation(len(slices))
        halves_rows = []
        for chosen in (order[::2], order[1::2]):
            rows = [np.arange(*slices[i].indices(len(train))) for i in sorted(chosen)]
            halves_rows.append(np.concatenate(rows))
        shorter, longer = sorted(map(len, halves_rows))
        # Halves with equally many rows share a compiled program.
        kept = shorter if longer - shorter <= _TRIMMED * longer else longer
        parts = [train[rows[:kept]] for rows in halves_rows]
    halves = []
    for number, part in enumerate(parts, start=1):
        reference = f"{split.dataset.reference} (half {number})"
        dataset = Dataset(reference, split.dataset.environment, part)
        scaling = Scaling.fit(part, rewards_to_unit_range=False)
        halves.append(Split(dataset, part, split.held_out, scaling, part.fingerprint()))
    return halves[0], halves[1]


def read_models(
    run: Path,
    folder: Path,
    dataset: Dataset,
    penalty: str | None,
    settings: SelectSettings,
    watch: Stopwatch,
) -> Models:
    """Read the run's models, and fit those of both halves in `folder` or read them there."""
    with watch.measure("models of the run"):
        fit, fitted, split = _read_fit(run, dataset)
    judges, seeds = [], ()
    chosen = _choose_penalty(penalty, fit)
    if fitted is not None:
        described = Run(run).description
        seeds = tuple(described["seeds"])
        with watch.measure("penalties of the models"):
            for index in range(len(seeds)):
                judges.append(make_judge(fitted, index, split.train, chosen, settings.points))
    for name, half in zip(HALVES, split_in_halves(split), strict=True):
        short = _shorten_fit(fit, settings.model_updates, len(half.train))
        numbers = tuple(range(settings.half_seeds))
        place = folder / f"{name}-{settings.model_updates}-{settings.half_seeds}"
        with watch.measure("models of both halves"):
            fitted_half = short.fit(half, place, numbers)
        with watch.measure("penalties of the models"):
            for index in numbers:
                judges.append(make_judge(fitted_half, index, half.train, chosen, settings.points))
    return Models(tuple(judges), seeds, type(fit).__name__)


def make_judge(
    fitted: AbstractFitted, index: int, train: Transitions, penalty: Penalty, points: int
) -> Judge:
    """Make the model of one seed a judge: build its penalty and measure its largest on the data."""
    (built,) = fitted.build_penalties(index, [penalty], PenaltySettings(_NEIGHBOURS, points))
    dynamics, scaling = fitted.dynamics[index], fitted.scaling
    # The penalty searches neighbours in these rows; none of them is its own neighbour.
    rows = choose_evenly(train, points)
    known = train[rows]
    states = encode_rows(dynamics, known, scaling)
    actions = scaling.action_space.encode(np.asarray(known.actions))
    embeddings = _embed(dynamics, states, actions)
    penalties = penalise(built, embeddings, jnp.arange(len(rows), dtype=jnp.int32))
    scaling = jax.tree.map(jnp.asarray, scaling)
    if scaling.history > 1:
        dynamics = WindowedDynamics(dynamics, scaling.layout)
    return Judge(dynamics, scaling, built, jnp.max(penalties))


@eqx.filter_jit
def _embed(dynamics: AbstractDynamics, states: Array, actions: Array) -> Array:
    return jax.vmap(dynamics.embed)(states, actions)


def imagine_steps(
    judges: Sequence[Judge],
    policies: AbstractTarget,
    models: Sequence[int],
    log: Log,
    count: int,
    *,
    key: PRNGKeyArray,
) -> ImaginedSteps:
    """Let every policy imagine steps in its own model; `models` says which one that is.

    Branches start at logged states and first states of episodes.
    """
    episodes = max(1, count // _HORIZON)
    rows = jax.random.randint(key, (episodes,), 0, log.count)
    starts = jnp.concatenate([log.states[rows], log.initial_states[:episodes]])
    found = []
    for model in sorted(set(models)):
        places = np.flatnonzero(np.array(models) == model)
        own = take(policies, places)
        found.append(_imagine_in(judges[model], own, starts, log, episodes, key))
    order = np.argsort(np.argsort(models, kind="stable"), kind="stable")
    return jax.tree.map(lambda *columns: jnp.concatenate(columns)[order], *found)


@eqx.filter_jit
def _imagine_in(
    judge: Judge,
    policies: AbstractTarget,
    starts: Float[Array, "k state"],
    log: Log,
    episodes: int,
    key: PRNGKeyArray,
) -> ImaginedSteps:
    dynamics, space = judge.dynamics, log.space
    latents = jax.vmap(lambda state: dynamics.encode(jnp.asarray(judge.scaling.inputs(state))))(
        starts
    )
    mdp = ImaginedMDP(dynamics, latents, _HORIZON)
    first = log.initial_states

    def decode(z: Array) -> Array:
        return jnp.asarray(judge.scaling.restore(dynamics.decode(z, key=key)))

    def choose(policy: AbstractTarget, observation: Array) -> Array:
        return normalise_actions(space, policy.choose(observation, key=key))

    def of_policy(policy: AbstractTarget) -> tuple[ImaginedSteps, Array]:
        def act(z: Array, *, key: PRNGKeyArray) -> tuple[Array, Array]:
            return policy.act(decode(z), space, key=key), jnp.zeros(())

        start_key, step_key = jax.random.split(key)
        states = start_episodes(mdp, episodes, key=start_key)
        steps, _ = rollout(mdp, states, act, _HORIZON, key=step_key)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), steps)
        before, after = jax.vmap(decode)(flat.latent), jax.vmap(decode)(flat.next_latent)
        branches = jnp.tile(jnp.arange(episodes), _HORIZON)
        choose_in = jax.vmap(lambda observation: choose(policy, observation))
        rows = Rows(
            states=log.standardise(before),
            actions=normalise_actions(space, flat.action),
            rewards=flat.reward[:, None],
            next_states=log.standardise(after),
            continues=1.0 - flat.terminated,
            episodes=branches % len(first),
            next_choices=choose_in(after),
        )
        return ImaginedSteps(rows, log.standardise(first), choose_in(first)), flat.embedding

    found, embeddings = eqx.filter_vmap(of_policy)(policies)
    shape = embeddings.shape[:2]
    U = judge.penalise(embeddings.reshape(-1, embeddings.shape[-1])).reshape(*shape, 1)
    rewards = jnp.concatenate([found.rows.rewards, U], axis=-1)
    return eqx.tree_at(lambda steps: steps.rows.rewards, found, rewards)


def _read_fit(run: Path, dataset: Dataset) -> tuple[AbstractFit, AbstractFitted | None, Split]:
    """Return the fit of a run's models, what was fitted, and the split of the data.

    A run without models is judged by the latent model of the data's preset.
    """
    described = Run(run).description
    try:
        model = find_model(run)
    except InputError:
        model = None
    if model is not None:
        fitted = load_model(model.folder, dataset).of_seeds(tuple(described["seeds"]))
        return LatentFit(fitted.config), FittedLatent(fitted), fitted.split
    ensemble = Run(run / "ensemble")
    if (ensemble.folder / "run.json").exists():
        config = EnsembleConfig(**restore_tuples(ensemble.description["config"]))
        split = split_dataset(dataset)
        seeds = tuple(described["seeds"])
        return EnsembleFit(config), EnsembleFit(config).fit(split, ensemble.folder, seeds), split
    preset = LatentFit(choose_parts(dataset).latent.model)
    return preset, None, split_dataset(dataset, preset.held_out_fraction)


def _shorten_fit(fit: AbstractFit, updates: int, rows: int) -> AbstractFit:
    """Return the fit with fewer updates, and batches that half of the data can fill."""
    if isinstance(fit, LatentFit):
        model = fit.model
        shorter = replace(
            model,
            updates=min(updates, model.updates),
            variance_updates=min(max(1, updates // 5), model.variance_updates),
            batch_size=min(model.batch_size, rows),
        )
        return replace(fit, model=shorter)
    if isinstance(fit, EnsembleFit):
        ensemble = replace(fit.ensemble, updates=min(updates, fit.ensemble.updates))
        return replace(fit, ensemble=ensemble)
    return fit


def _choose_penalty(name: str | None, fit: AbstractFit) -> str:
    """Return the penalty of the run's methods if it is registered, else the usual one."""
    if name is not None:
        try:
            find_penalty(name, fit.space)
        except InputError:
            return _DEFAULT_PENALTIES[fit.space]
        return name
    return _DEFAULT_PENALTIES[fit.space]


def own_model_of(models: Models, kind: str | None, seed: int) -> int | None:
    """Return the place of the model that a policy was trained in, or None."""
    if kind != models.kind or seed not in models.seeds:
        return None
    return models.seeds.index(seed)
