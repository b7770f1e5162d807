"""Ensembles of dynamics, fitted by several recipes side by side in one program.

    (s′ − s, r) ~ N(μ(s, a), σ²(s, a))

Inputs are standardised. A fitted ensemble is kept in the units of the data, whatever the units of
its targets were, so that ensembles of all recipes have one form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from gelato.arrays import copy_arrays, take
from gelato.compilation import compile_training, fuse_small_arrays
from gelato.model.networks import MLP
from gelato.model.split import Split
from gelato.runs.records import Record

MEMBERS, ELITES = 7, 5
HIDDEN = (200, 200, 200, 200)
_BATCH = 256
_HELD_OUT_ROWS = 4096


@dataclass(frozen=True)
class Recipe:
    """How an ensemble is fitted. The defaults are ours."""

    rate: float = 1e-3
    cosine: bool = True
    """Whether the learning rate falls to a hundredth along a cosine."""
    decay: tuple[float, ...] = (0.0,) * 5
    """Factor of `½‖W‖²` in the loss, by layer."""
    decoupled_decay: float = 5e-5
    """Weight decay of AdamW, in units of the learning rate."""
    raw_targets: bool = False
    """Whether targets have the data's units; otherwise they are standardised."""
    bounds: tuple[float, float] = (-12.0, 1.0)
    """First bounds on log σ², in the units of the targets."""
    learned_bounds: float = 0.0
    """Factor of `high − low` in the loss; 0 keeps the bounds."""
    bootstrap: bool = False
    """Whether every member has its own sample of the data, drawn with replacement."""
    by_error: bool = False
    """Whether the best weights are those of the smallest error instead of the best likelihood,
    where an improvement of less than 1% does not count."""


_LAYER_DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
RECIPES = {
    "ours": Recipe(),
    "ours-decay": Recipe(decay=_LAYER_DECAY, decoupled_decay=0.0),
    "ours-bounds": Recipe(bounds=(-10.0, 0.5), learned_bounds=0.01),
    "ours-constant": Recipe(cosine=False),
    "kit": Recipe(
        cosine=False,
        decay=_LAYER_DECAY,
        decoupled_decay=0.0,
        raw_targets=True,
        bounds=(-10.0, 0.5),
        learned_bounds=0.01,
        bootstrap=True,
        by_error=True,
    ),
    # As `kit`, but in units that do not depend on the data's.
    "kit-units": Recipe(
        cosine=False,
        decay=_LAYER_DECAY,
        decoupled_decay=0.0,
        bounds=(-10.0, 0.5),
        learned_bounds=0.01,
        bootstrap=True,
        by_error=True,
    ),
}


class Ensemble(eqx.Module):
    """`(s, a) ↦ (μ, log σ²)` of the state change and the reward for every member, best first."""

    networks: MLP
    low: Float[Array, "*batch target"]
    high: Float[Array, "*batch target"]

    def __call__(
        self, pairs: Float[Array, "n pair"]
    ) -> tuple[Float[Array, "members n target"], Float[Array, "members n target"]]:
        return _predict(
            self.networks, self.low, self.high, jnp.broadcast_to(pairs, (MEMBERS, *pairs.shape))
        )


def _predict(
    networks: MLP, low: Array, high: Array, pairs: Float[Array, "members n pair"]
) -> tuple[Array, Array]:
    out = eqx.filter_vmap(lambda network, rows: jax.vmap(network)(rows))(networks, pairs)
    mean, raw = jnp.split(out, 2, axis=-1)
    log_variance = high - jax.nn.softplus(high - raw)
    return mean, low + jax.nn.softplus(log_variance - low)


class _Setting(eqx.Module):
    """A recipe as arrays, so that recipes differ in values and share a program."""

    rate: Array
    cosine: Array
    decay: Array
    decoupled_decay: Array
    learned_bounds: Array
    bootstrap: Array
    by_error: Array
    shift: Array
    scale: Array
    seed: Array


class _Fit(eqx.Module):
    """One ensemble on its way."""

    ensemble: Ensemble
    optimiser: optax.OptState
    step: Int[Array, ""]
    best: Ensemble
    best_scores: Float[Array, " members"]


class Rows(eqx.Module):
    """Standardised pairs `(s, a)` and raw targets `(s′ − s, r)`."""

    pairs: Float[Array, "n pair"]
    targets: Float[Array, "n target"]


class Data(eqx.Module):
    """What all recipes are fitted to. `bootstrap` holds every member's own sample."""

    train: Rows
    held_out: Rows
    bootstrap: Int[Array, "members n"]


def make_rows(split: Split, states: Array, actions: Array, rewards: Array, after: Array) -> Rows:
    """Return network inputs and targets of transitions."""
    pairs = np.concatenate([split.scaling.states(np.asarray(states)), actions], axis=1)
    targets = np.concatenate([after - states, np.asarray(rewards)[:, None]], axis=1)
    return Rows(jnp.asarray(pairs, jnp.float32), jnp.asarray(targets, jnp.float32))


def make_data(split: Split) -> Data:
    """Return the training and held-out rows of a split."""
    parts = []
    for part in split.parts:
        rows = make_rows(split, part.states, part.actions, part.rewards, part.next_states)
        parts.append(rows)
    train, held_out = parts
    chosen = np.random.default_rng(0).permutation(len(held_out.pairs))[:_HELD_OUT_ROWS]
    held_out = jax.tree.map(lambda column: column[chosen], held_out)
    sample = np.random.default_rng(1).integers(len(train.pairs), size=(MEMBERS, len(train.pairs)))
    return Data(train, held_out, jnp.asarray(sample, jnp.int32))


def target_units(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale that standardise the targets as our ensemble does."""
    states, rewards = split.scaling.states, split.scaling.rewards
    shift = np.concatenate([np.zeros_like(states.mean), rewards.mean])
    return shift, np.concatenate([states.scale, rewards.scale])


_OPTIMISER = fuse_small_arrays(optax.scale_by_adam())


def fit(
    split: Split,
    chosen: list[tuple[str, int]],
    updates: int,
    report: Callable[[list[Record]], None],
    block: int = 2_000,
) -> Ensemble:
    """Fit ensembles `(recipe, seed)`; report held-out accuracy in 20 rows on the way.

    Returns the ensembles in the data's units, stacked along the first axis.
    """
    data = make_data(split)
    units = target_units(split)
    settings, fits = [], []
    for name, seed in chosen:
        setting, start = _begin(RECIPES[name], seed, data, units)
        settings.append(setting)
        fits.append(start)
    setting, state = _stack(settings), copy_arrays(_stack(fits))
    constants, step = (data, setting, jnp.array(float(updates))), 0
    every = max(block, updates // 20 // block * block)
    while step < updates:
        count = min(block, updates - step)
        state, loss = _train(constants, state, updates=count)
        step += count
        if step % every == 0 or step >= updates:
            report(_describe(split, data, finish(state.best, setting), chosen, step, loss))
    return finish(state.best, setting, state.best_scores)


def _begin(recipe: Recipe, seed: int, data: Data, units: tuple[np.ndarray, np.ndarray]) -> tuple:
    size = data.train.targets.shape[1]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**29), MEMBERS)
    networks = eqx.filter_vmap(
        lambda key: MLP(data.train.pairs.shape[1], 2 * size, HIDDEN, "silu", key=key)
    )(keys)
    low, high = recipe.bounds
    ensemble = Ensemble(networks, jnp.full(size, low), jnp.full(size, high))
    shift, scale = (np.zeros(size), np.ones(size)) if recipe.raw_targets else units
    values = (
        recipe.rate,
        recipe.cosine,
        recipe.decay,
        recipe.decoupled_decay,
        recipe.learned_bounds,
        recipe.bootstrap,
        recipe.by_error,
        shift,
        scale,
    )
    setting = _Setting(*(jnp.asarray(v, jnp.float32) for v in values), jnp.array(seed))
    optimiser = _OPTIMISER.init(eqx.filter(ensemble, eqx.is_array))
    scores = jnp.full(MEMBERS, jnp.inf, jnp.float32)
    return setting, _Fit(ensemble, optimiser, jnp.zeros((), jnp.int32), ensemble, scores)


def _stack(trees: list) -> eqx.Module:
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees
    )


@compile_training
def _train(
    constants: tuple[Data, _Setting, Array], state: _Fit, *, updates: int
) -> tuple[_Fit, Float[Array, " fits"]]:
    data, settings, total = constants

    def one(setting: _Setting, state: _Fit) -> tuple[_Fit, Float[Array, ""]]:
        key = jax.random.fold_in(jax.random.key(setting.seed), 3)

        def draw(step: Int[Array, ""]) -> Int[Array, "members rows"]:
            shape, count = (MEMBERS, _BATCH), len(data.train.pairs)
            drawn = jax.random.randint(jax.random.fold_in(key, step), shape, 0, count)
            own = jnp.take_along_axis(data.bootstrap, drawn, axis=1)
            return jnp.where(setting.bootstrap > 0, own, drawn)

        def update(state: _Fit, rows: Array) -> tuple[_Fit, Float[Array, ""]]:
            pairs = data.train.pairs[rows]
            targets = (data.train.targets[rows] - setting.shift) / setting.scale
            trainable, static = eqx.partition(state.ensemble, eqx.is_array)

            def loss(trainable: Ensemble) -> tuple[Float[Array, ""], Float[Array, ""]]:
                ensemble = eqx.combine(trainable, static)
                mean, log_variance = _predict(ensemble.networks, ensemble.low, ensemble.high, pairs)
                error = (mean - targets) ** 2 * jnp.exp(-log_variance) + log_variance
                likelihood = jnp.mean(error, axis=(1, 2))
                decay = jnp.zeros(())
                for factor, layer in zip(setting.decay, ensemble.networks.layers, strict=True):
                    decay += factor * 0.5 * jnp.sum(layer.weight**2)
                width = jnp.sum(ensemble.high) - jnp.sum(ensemble.low)
                regular = decay + setting.learned_bounds * width
                return jnp.sum(likelihood) + regular, jnp.mean(likelihood)

            gradient, value = jax.grad(loss, has_aux=True)(trainable)
            change, optimiser = _OPTIMISER.update(gradient, state.optimiser, trainable)
            fall = 0.01 + 0.99 * 0.5 * (1 + jnp.cos(jnp.pi * state.step / total))
            rate = setting.rate * jnp.where(setting.cosine > 0, fall, 1.0)
            shrink = setting.decoupled_decay
            moved = jax.tree.map(lambda p, c: p - rate * (c + shrink * p), trainable, change)
            learned = setting.learned_bounds > 0
            bounds = [
                jnp.where(learned, new, old)
                for new, old in ((moved.low, trainable.low), (moved.high, trainable.high))
            ]
            moved = eqx.tree_at(lambda e: (e.low, e.high), moved, bounds)
            ensemble = eqx.combine(moved, static)
            new = _Fit(ensemble, optimiser, state.step + 1, state.best, state.best_scores)
            return new, value

        draws = jax.vmap(draw)(state.step + jnp.arange(updates))
        state, values = jax.lax.scan(update, state, draws)
        return _keep_best(setting, state, data.held_out), jnp.mean(values)

    return eqx.filter_vmap(one)(settings, state)


def _keep_best(setting: _Setting, state: _Fit, held_out: Rows) -> _Fit:
    """Keep every member's best weights."""
    mean, log_variance = state.ensemble(held_out.pairs)
    squared = (mean - (held_out.targets - setting.shift) / setting.scale) ** 2
    error = jnp.mean(squared, axis=(1, 2))
    likelihood = jnp.mean(squared * jnp.exp(-log_variance) + log_variance, axis=(1, 2))
    before = state.best_scores
    better = jnp.where(
        setting.by_error > 0,
        jnp.where(jnp.isinf(before), True, error < 0.99 * before),
        likelihood < before,
    )
    scores = jnp.where(setting.by_error > 0, error, likelihood)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    networks = jax.tree.map(
        lambda new, old: choose(new, old) if eqx.is_array(new) else new,
        state.ensemble.networks,
        state.best.networks,
    )
    # The bounds are shared by the members and are always the newest.
    best = Ensemble(networks, state.ensemble.low, state.ensemble.high)
    scores = jnp.where(better, scores, before)
    return eqx.tree_at(lambda s: (s.best, s.best_scores), state, (best, scores))


def finish(
    ensembles: Ensemble, setting: _Setting, scores: Float[Array, "fits members"] | None = None
) -> Ensemble:
    """Return the ensembles in the data's units, their best members first if scores are given."""

    def one(ensemble: Ensemble, setting: _Setting, order: Array) -> Ensemble:
        last = ensemble.networks.layers[-1]
        size = len(setting.scale)
        factor = jnp.concatenate([setting.scale, jnp.ones(size)])
        log_scale = 2 * jnp.log(setting.scale)
        offset = jnp.concatenate([setting.shift, log_scale])
        networks = eqx.tree_at(
            lambda n: (n.layers[-1].weight, n.layers[-1].bias),
            ensemble.networks,
            (last.weight * factor[:, None], last.bias * factor + offset),
        )
        networks = jax.tree.map(lambda x: x[order] if eqx.is_array(x) else x, networks)
        return Ensemble(networks, ensemble.low + log_scale, ensemble.high + log_scale)

    if scores is None:
        order = jnp.broadcast_to(jnp.arange(MEMBERS), (len(setting.rate), MEMBERS))
    else:
        order = jnp.argsort(scores, axis=1)
    return eqx.filter_vmap(one)(ensembles, setting, order)


@eqx.filter_jit
def judge(ensemble: Ensemble, rows: Rows, scale: Float[Array, " target"]) -> dict[str, Array]:
    """Return accuracy on rows: R², likelihood, and the penalty's raw σ.

    `scale` standardises the targets; likelihoods are per dimension, in standardised units.
    """
    mean, log_variance = ensemble(rows.pairs)
    error = mean - rows.targets
    density = -0.5 * (error**2 * jnp.exp(-log_variance) + log_variance + jnp.log(2 * jnp.pi))
    nll = -jnp.mean(density[:ELITES], axis=(0, 1)) - jnp.log(scale)
    elite = jnp.mean(mean[:ELITES], axis=0) - rows.targets
    unexplained = jnp.mean(elite**2, axis=0) / jnp.var(rows.targets, axis=0)
    single = jnp.mean(error[:ELITES] ** 2, axis=(0, 1)) / jnp.var(rows.targets, axis=0)
    sigma = jnp.exp(0.5 * log_variance)
    return {
        "nll": jnp.mean(nll),
        "r2": 1 - jnp.mean(unexplained[:-1]),
        "r2_single": 1 - jnp.mean(single[:-1]),
        "r2_smallest": 1 - jnp.max(unexplained[:-1]),
        "r2_reward": 1 - unexplained[-1],
        "reward_bias": jnp.mean(elite[:, -1]),
        "error": jnp.mean((elite / scale)[:, :-1] ** 2),
        "sigma": jnp.mean(jnp.max(jnp.linalg.norm(sigma, axis=2), axis=0)),
        "disagreement": jnp.mean(jnp.std(mean[:ELITES, :, :-1], axis=0) / scale[:-1]),
    }


def _describe(
    split: Split,
    data: Data,
    ensembles: Ensemble,
    chosen: list[tuple[str, int]],
    step: int,
    loss: Array,
) -> list[Record]:
    scale = jnp.asarray(target_units(split)[1], jnp.float32)
    records: list[Record] = []
    for index, (name, seed) in enumerate(chosen):
        found = judge(take(ensembles, index), data.held_out, scale)
        row: Record = {"ensemble": name, "seed": seed, "step": step, "loss": float(loss[index])}
        records.append(row | {key: float(value) for key, value in found.items()})
    return records


def save(path: Path, ensembles: Ensemble) -> None:
    """Write ensembles of one recipe; the seed is their first axis."""
    arrays = {}
    for index, leaf in enumerate(jax.tree.leaves(eqx.filter(ensembles, eqx.is_array))):
        arrays[str(index)] = np.asarray(leaf, np.float32)
    np.savez(path, **arrays)


def load(path: Path, pair_size: int, target_size: int) -> Ensemble:
    """Read what `save` wrote."""
    network = MLP(pair_size, 2 * target_size, HIDDEN, "silu", key=jax.random.key(0))
    like = Ensemble(network, jnp.zeros(target_size), jnp.zeros(target_size))
    arrays, static = eqx.partition(like, eqx.is_array)
    with np.load(path) as file:
        leaves = [jnp.asarray(file[str(index)]) for index in range(len(file.files))]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), static)
