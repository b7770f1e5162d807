"""Train the ensemble of state-space dynamics in a run folder, for several seeds at once."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.arrays import copy_arrays
from gelato.compilation import compile_training, fuse_small_arrays
from gelato.data.spaces import ActionSpace
from gelato.data.transitions import Transitions, choose_evenly
from gelato.devices import BY_SEED, EVERYWHERE, join_devices, make_mesh, place, run_in_parts
from gelato.dynamics.state import EnsembleConfig, Member, StateDynamics
from gelato.model.fit import normalise_batch
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.model.split import Split
from gelato.random_streams import ENSEMBLE_BATCHES, ENSEMBLE_SAMPLES, ENSEMBLE_WEIGHTS
from gelato.runs.folder import Run, open_run
from gelato.runs.loop import Metrics, finish, run_blocks
from gelato.tasks.task import find_termination_rule

_HELD_OUT_ROWS = 4096
# A smaller improvement of the held-out error does not count.
_IMPROVEMENT = 0.01


class EnsembleState(eqx.Module):
    """State of the fit between updates."""

    members: Member
    optimiser: optax.OptState
    step: Int[Array, "*seeds"]
    best: Member
    best_losses: Float[Array, "*seeds members"]
    stale: Int[Array, "*seeds"]


class EnsembleData(eqx.Module):
    """Rows `(s, a)` and `(s′ − s, r, end)` of training and held-out transitions."""

    inputs: Float[Array, "n pair"]
    targets: Float[Array, "n target"]
    held_out: tuple[Float[Array, "m pair"], Float[Array, "m target"]]


def fit_ensemble(
    split: Split, run: Path, *, seeds: tuple[int, ...], config: EnsembleConfig
) -> StateDynamics:
    """Fit ensembles of several seeds in a run folder, or read them; the seed is the first axis."""
    dataset, train, held_out, scaling = split.dataset, split.train, split.held_out, split.scaling
    new = (config, train.states.shape[1], train.action_space, jnp.array(seeds))
    settings = {
        "data": {"reference": dataset.reference, "environment": dataset.environment},
        "fingerprint": split.fingerprint,
        "config": asdict(config),
        "seeds": list(seeds),
        "held_out": len(held_out),
    }
    with open_run(run, "ensemble", **settings) as folder:
        if folder.has("members"):
            folder.remove_checkpoints()
            shapes = eqx.filter_eval_shape(_init, *new)
            arrays, static = eqx.partition(shapes.members, lambda leaf: hasattr(leaf, "shape"))
            loaded = jax.tree.map(jnp.asarray, folder.load("members", arrays))
            members = eqx.combine(loaded, static)
        else:
            rows = held_out[choose_evenly(held_out, _HELD_OUT_ROWS)]
            data = EnsembleData(*_make_pairs(train, scaling), _make_pairs(rows, scaling))
            state = _fit(folder, data, _init(*new), seeds, config)
            members = _take_members(state.best, jnp.argsort(state.best_losses, axis=1))
            finish(folder, lambda: folder.save("members", eqx.filter(members, eqx.is_array)))
    states = scaling.states(np.concatenate([train.states, train.next_states]))
    scaling, low, high = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)),
        (scaling, states.min(axis=0), states.max(axis=0)),
    )
    rule = find_termination_rule(dataset.environment, states.shape[1])
    return StateDynamics(members, scaling, low, high, config.elites, rule)


def _make_pairs(
    transitions: Transitions, scaling: Scaling
) -> tuple[Float[Array, "n pair"], Float[Array, "n target"]]:
    batch = normalise_batch(transitions, scaling)
    targets = (batch.next_states - batch.states, batch.rewards, batch.terminated[:, None])
    return jnp.concatenate([batch.states, batch.actions], axis=1), jnp.concatenate(targets, axis=1)


@eqx.filter_jit
def _init(
    config: EnsembleConfig, state_size: int, space: ActionSpace, seeds: Int[Array, " seeds"]
) -> EnsembleState:
    targets = state_size + 1
    sizes = (state_size + space.size, 2 * targets + 1)

    def one(seed: Int[Array, ""]) -> EnsembleState:
        key = jax.random.fold_in(jax.random.key(seed), ENSEMBLE_WEIGHTS)
        keys = jax.random.split(key, config.members)

        def make(key: PRNGKeyArray) -> Member:
            low, high = (jnp.full(targets, bound) for bound in config.log_variance)
            return Member(MLP(*sizes, config.hidden, "silu", key=key), low, high)

        members = eqx.filter_vmap(make)(keys)
        optimiser = _optimiser(config).init(eqx.filter(members, eqx.is_array))
        return EnsembleState(
            members,
            optimiser,
            jnp.zeros((), jnp.int32),
            members,
            jnp.full(config.members, jnp.inf, jnp.float32),
            jnp.zeros((), jnp.int32),
        )

    return copy_arrays(eqx.filter_vmap(one)(seeds))


def _fit(
    folder: Run,
    data: EnsembleData,
    state: EnsembleState,
    seeds: tuple[int, ...],
    config: EnsembleConfig,
) -> EnsembleState:
    mesh = make_mesh(len(seeds))
    constants = (place(data, mesh, EVERYWHERE), jnp.array(seeds))

    def block(state: EnsembleState, updates: int) -> tuple[EnsembleState, dict[str, np.ndarray]]:
        run = _block if mesh is None else partial(_run_parts, mesh=mesh)
        state, *measured = run(
            constants, place(state, mesh, BY_SEED), config=config, updates=updates
        )
        names = ("loss", "held_out", "stale")
        return state, {
            name: np.asarray(x) for name, x in zip(names, (*measured, state.stale), strict=True)
        }

    def is_done(metrics: Metrics) -> bool:
        return bool(config.patience) and bool((metrics["stale"] >= config.patience).all())

    fitted = run_blocks(
        folder,
        state,
        block,
        labels=[{"seed": seed} for seed in seeds],
        total=config.updates,
        length=min(1_000, max(100, config.updates // 40)),
        title="fitting the ensemble",
        shown=["held_out"],
        is_done=is_done,
    )
    return join_devices(fitted, mesh)


@compile_training
def _block(
    constants: tuple[EnsembleData, Int[Array, " seeds"]],
    state: EnsembleState,
    *,
    config: EnsembleConfig,
    updates: int,
) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
    """A block of updates for every seed; every member draws separate batches."""
    return _update_ensembles(constants, state, config, updates)


@compile_training
def _run_parts(
    constants: tuple[EnsembleData, Int[Array, " seeds"]],
    state: EnsembleState,
    *,
    config: EnsembleConfig,
    updates: int,
    mesh: Mesh,
) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
    """Do what `_block` does, on several devices; each has some of the seeds and all rows."""

    def call(
        data: EnsembleData, seeds: Int[Array, " seeds"], state: EnsembleState
    ) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
        return _update_ensembles((data, seeds), state, config, updates)

    return run_in_parts(call, mesh, (*constants, state), (EVERYWHERE, BY_SEED, BY_SEED), BY_SEED)


def _update_ensembles(
    constants: tuple[EnsembleData, Int[Array, " seeds"]],
    state: EnsembleState,
    config: EnsembleConfig,
    updates: int,
) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
    data, seeds = constants

    def one(state: EnsembleState, seed: Int[Array, ""]) -> tuple[EnsembleState, Array, Array]:
        key = jax.random.fold_in(jax.random.key(seed), ENSEMBLE_BATCHES)
        sample_key = jax.random.fold_in(jax.random.key(seed), ENSEMBLE_SAMPLES)
        count = len(data.inputs)

        def draw(step: Int[Array, ""]) -> Int[Array, "members rows"]:
            shape = (config.members, config.batch_size)
            return jax.random.randint(jax.random.fold_in(key, step), shape, 0, count)

        def update(state: EnsembleState, rows: Array) -> tuple[EnsembleState, Float[Array, ""]]:
            trainable, static = eqx.partition(state.members, eqx.is_array)

            def loss(trainable: Member) -> Float[Array, ""]:
                members = eqx.combine(trainable, static)
                if not config.bound_weight:
                    bounds = jax.lax.stop_gradient((members.low, members.high))
                    members = eqx.tree_at(lambda m: (m.low, m.high), members, bounds)
                batch = data.inputs[rows], data.targets[rows]
                fit = jnp.sum(_measure_members(members, *batch, _compute_loss))
                return fit + _regularise(members, config)

            value, gradient = jax.value_and_grad(loss)(trainable)
            change, optimiser = _optimiser(config).update(gradient, state.optimiser, trainable)
            members = eqx.combine(optax.apply_updates(trainable, change), static)
            new = eqx.tree_at(
                lambda s: (s.members, s.optimiser, s.step),
                state,
                (members, optimiser, state.step + 1),
            )
            return new, value / config.members

        draws = jax.vmap(draw)(state.step + jnp.arange(updates))
        if config.bootstrap:
            draws = _resample(draws, count, key=sample_key)
        state, losses = jax.lax.scan(update, state, draws)
        state, held_out = _keep_best(state, data, config, updates)
        return state, jnp.mean(losses), jnp.mean(held_out)

    return eqx.filter_vmap(one)(state, seeds)


def _resample(
    drawn: Int[Array, "updates members rows"], count: int, *, key: PRNGKeyArray
) -> Int[Array, "updates members rows"]:
    """Replace every row by that of its member's own sample, which has as many rows as the data."""

    def one(member: Int[Array, ""], row: Int[Array, ""]) -> Int[Array, ""]:
        own = jax.random.fold_in(jax.random.fold_in(key, member), row)
        return jax.random.randint(own, (), 0, count)

    members = jnp.broadcast_to(jnp.arange(drawn.shape[1])[:, None], drawn.shape)
    flat = jax.vmap(one)(members.ravel(), drawn.ravel())
    return flat.reshape(drawn.shape)


def _regularise(members: Member, config: EnsembleConfig) -> Float[Array, ""]:
    """Return the weight decay of all members and the cost of their bounds."""
    total = config.bound_weight * jnp.sum(members.high - members.low) / config.members
    layers = members.network.layers
    first, last = config.weight_decay
    for layer, factor in zip(layers, np.linspace(first, last, len(layers)), strict=True):
        total += 0.5 * float(factor) * jnp.sum(layer.weight**2)
    return total


def _keep_best(
    state: EnsembleState, data: EnsembleData, config: EnsembleConfig, updates: int
) -> tuple[EnsembleState, Float[Array, " members"]]:
    """Keep every member's best weights so far; return its held-out loss or error."""
    pairs, targets = (jnp.broadcast_to(x, (config.members, *x.shape)) for x in data.held_out)
    if config.by_error:
        held_out = _measure_members(state.members, pairs, targets, _square_error)
        better = held_out < (1 - _IMPROVEMENT) * state.best_losses
    else:
        held_out = _measure_members(state.members, pairs, targets, _compute_loss)
        better = held_out < state.best_losses
    if config.patience:
        # A seed that is done does not depend on how long the others take.
        better &= state.stale < config.patience
    best = jax.tree.map(
        lambda new, old: jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old),
        state.members,
        state.best,
    )
    losses = jnp.where(better, held_out, state.best_losses)
    stale = jnp.where(jnp.any(better), 0, state.stale + updates)
    state = eqx.tree_at(lambda s: (s.best, s.best_losses, s.stale), state, (best, losses, stale))
    return state, held_out


def _measure_members(
    members: Member,
    pairs: Float[Array, "members n pair"],
    targets: Float[Array, "members n target"],
    measure: Callable[[Member, Array, Array], Float[Array, ""]],
) -> Float[Array, " members"]:
    """Measure every member on its own rows and average over them."""
    over_rows = eqx.filter_vmap(jax.vmap(measure, in_axes=(None, 0, 0)))
    return jnp.mean(over_rows(members, pairs, targets), axis=1)


def _square_error(member: Member, pair: Array, target: Array) -> Float[Array, ""]:
    """Return the mean squared error of state change and reward."""
    return jnp.mean((member(pair)[0].mean - target[:-1]) ** 2)


def _compute_loss(member: Member, pair: Array, target: Array) -> Float[Array, ""]:
    """Return the negative log-likelihood: per dimension, plus that of the end."""
    outcome, end = member(pair)
    *_, ended = target
    density = outcome.log_density(target[:-1]) / (len(target) - 1)
    return optax.sigmoid_binary_cross_entropy(end, ended) - density


def _optimiser(config: EnsembleConfig) -> optax.GradientTransformation:
    rate: float | optax.Schedule = config.learning_rate
    if config.learning_rate_decay:
        rate = optax.cosine_decay_schedule(config.learning_rate, config.updates, alpha=0.01)
    return fuse_small_arrays(optax.adam(rate))


def _take_members(members: Member, chosen: Int[Array, "seeds members"]) -> Member:
    """Take the chosen members of every seed."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda x, rows: x[rows])(leaf, chosen), members)
