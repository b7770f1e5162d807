"""The two-phase fit: means with a calibrated decoder variance, then only the variance networks.

A block of updates is one compiled program over data that stays on the device, with the seed as an
axis. Every random number is drawn from `(seed, phase, step)`, so a resumed fit gives the same
weights bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt8

from gelato.arrays import copy_arrays
from gelato.compilation import compile_training, fuse_small_arrays
from gelato.data.history import WindowLayout
from gelato.data.observations import ImageShape, split_parts
from gelato.data.spaces import ActionSpace
from gelato.data.transitions import Standardiser, Transitions, choose_evenly
from gelato.devices import BY_SEED, EVERYWHERE, place, run_in_parts
from gelato.model.config import ModelConfig
from gelato.model.latent import LatentModel, Scaling
from gelato.model.networks import GaussianMLP
from gelato.model.objective import (
    Batch,
    compute_objective_terms,
    compute_variance_loss,
    compute_weighted_sum,
)
from gelato.random_streams import HELD_OUT_NOISE, MODEL_MEANS, MODEL_VARIANCES, MODEL_WEIGHTS

MEANS, VARIANCES = MODEL_MEANS, MODEL_VARIANCES
PHASES = ("means", "variances")
_HELD_OUT_ROWS, _HELD_OUT_IMAGES = 2048, 512


class FitData(eqx.Module):
    """Training rows and a fixed held-out batch.

    The columns of the training rows are one array, so that taking a batch is one gather. With a
    history, `ages` are the steps since the start of each row's episode, at most `history − 1`;
    windows are gathered from the rows, so that they take no memory. Images stay bytes, outside of
    `rows`: `frames` are those of states and next states, which a batch makes normalised floats.
    """

    rows: Float[Array, "n columns"]
    counts: UInt8[Array, "seeds n members"]
    held_out: Batch
    state_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    ages: Int[Array, " n"] | None = None
    history: int = eqx.field(static=True, default=1)
    frames: tuple[UInt8[Array, "n pixels"], UInt8[Array, "n pixels"]] | None = None
    pixel_scaling: Standardiser | None = None

    @property
    def layout(self) -> WindowLayout:
        """The columns of the encoder's inputs."""
        return WindowLayout(self.history, self.state_size, self.action_size)

    @property
    def _numbers(self) -> int:
        """Number of columns of `rows` that belong to a state."""
        return self.state_size - (0 if self.frames is None else self.frames[0].shape[1])

    def choose_inputs(self, count: int) -> Float[Array, "k input"]:
        """Take the encoder's inputs at and after at most `count` training rows, spread evenly."""
        chosen = choose_evenly(self.rows, count)
        batch = self.gather(jnp.asarray(chosen), lambda rows: jnp.zeros((len(rows), 0)))
        return jnp.concatenate([batch.inputs, batch.next_inputs])

    def choose_pool(
        self,
        phase: int,  # noqa: ARG002
        step: int,  # noqa: ARG002
        length: int,  # noqa: ARG002
        total: int,  # noqa: ARG002
    ) -> "FitData":
        """Return the rows that updates draw from: always all of them. See `Pools`."""
        return self

    def gather(self, chosen: Int[Array, " k"], weigh: Callable[[Array], Array]) -> Batch:
        """Gather rows, split them into their columns, and weigh them for every decoder."""
        rows, weights = self.rows[chosen], weigh(chosen)
        stops = np.cumsum([self._numbers, self.action_size, 1, self._numbers])
        states, actions, rewards, next_states, terminated = jnp.split(rows, stops, axis=1)
        states = self._join_frames(states, chosen, 0)
        next_states = self._join_frames(next_states, chosen, 1)
        batch = Batch(states, actions, rewards, next_states, terminated[:, 0], weights)
        if self.ages is None:
            return batch
        return replace(batch, windows=self._gather_windows(states, chosen, self.ages[chosen]))

    def _gather_windows(
        self,
        states: Float[Array, "k state"],
        chosen: Int[Array, " k"],
        ages: Int[Array, " k"],
    ) -> Float[Array, "k window"]:
        back = jnp.arange(1, self.history)
        known = (ages[:, None] >= back)[..., None]
        places = jnp.maximum(chosen[:, None] - back, 0)
        past = self.rows[places][..., : self._numbers + self.action_size]
        if self.frames is not None:
            numbers, actions = jnp.split(past, [self._numbers], axis=-1)
            past = jnp.concatenate([self._join_frames(numbers, places, 0), actions], axis=-1)
        memory = jnp.where(known, jnp.concatenate([past, jnp.ones_like(past[..., :1])], -1), 0)
        return jnp.asarray(self.layout.open(states, memory.reshape(len(chosen), -1)))

    def _join_frames(
        self, numbers: Float[Array, "*k numbers"], places: Int[Array, "*k"], which: int
    ) -> Float[Array, "*k state"]:
        """Append the normalised images at these rows: of states (0) or of next states (1)."""
        if self.frames is None or self.pixel_scaling is None:
            return numbers
        frames = self.pixel_scaling(self.frames[which][places].astype(jnp.float32))
        return jnp.concatenate([numbers, frames], axis=-1)


class FitState(eqx.Module):
    """Everything that updates change; a checkpoint stores exactly this."""

    model: LatentModel
    target_encoder: GaussianMLP
    optimiser: optax.OptState
    step: Int[Array, ""]
    best_model: LatentModel
    best_loss: Float[Array, ""]


def draw_bootstrap_counts(
    rows: int, members: int, seed: int, *block: int
) -> UInt8[np.ndarray, "rows members"]:
    """Draw how often each decoder uses each row: Poisson(1), the limit of a bootstrap.

    Every `block` of rows has its own counts.
    """
    rng = np.random.default_rng([seed, rows, members, *block])
    return rng.poisson(1.0, (rows, members)).astype(np.uint8)


def normalise_batch(
    transitions: Transitions,
    scaling: Scaling,
    weights: Float[Array, "n members"] | None = None,
    *,
    windows: bool = True,
) -> Batch:
    """Convert transitions to the model's units. Only the objective needs `weights`.

    With a history, their windows take `history` times the memory; leave them out for many rows.
    """
    if weights is None:
        weights = jax.device_put(np.zeros((len(transitions), 0), np.float32))
    actions, rewards, terminated = encode_columns(transitions, scaling)
    return Batch(
        states=jax.device_put(scaling.states(np.asarray(transitions.states))),
        actions=actions,
        rewards=rewards,
        next_states=jax.device_put(scaling.states(np.asarray(transitions.next_states))),
        terminated=terminated,
        weights=weights,
        windows=normalise_inputs(transitions, scaling)
        if windows and transitions.past is not None
        else None,
    )


def normalise_inputs(transitions: Transitions, scaling: Scaling) -> Float[Array, "n input"]:
    """Return what the encoder reads at each row, in the model's units."""
    return jnp.asarray(scaling.inputs(transitions.inputs))


def encode_columns(
    transitions: Transitions, scaling: Scaling
) -> tuple[Float[Array, "n action"], Float[Array, "n 1"], Float[Array, " n"]]:
    """Return actions, rewards and terminations in the model's units."""
    # `jnp.asarray` would compile a program for every shape.
    return (
        scaling.action_space.encode(np.asarray(transitions.actions)),
        jax.device_put(scaling.rewards(np.asarray(transitions.rewards)[:, None])),
        jax.device_put(np.asarray(transitions.terminated, np.float32)),
    )


def prepare_data(
    train: Transitions,
    held_out: Transitions,
    scaling: Scaling,
    config: ModelConfig,
    seeds: Sequence[int],
) -> FitData:
    """Normalise the data and put it on the device. Images are put there as bytes."""
    numbers, frames, pixels = train.observed.numbers, None, None
    if train.images:
        pixels = jax.tree.map(jnp.asarray, scaling.states[numbers:])
        _, before = split_parts(train.states, numbers)
        _, after = split_parts(train.next_states, numbers)
        frames = jnp.asarray(before), jnp.asarray(after)
    return FitData(
        rows=join_rows(train, scaling),
        counts=jnp.stack(
            [draw_bootstrap_counts(len(train), config.decoders, seed) for seed in seeds]
        ),
        held_out=prepare_held_out(held_out, scaling, config),
        state_size=train.observed.size,
        action_size=train.action_space.size,
        ages=_find_ages(train),
        history=train.layout.history,
        frames=frames,
        pixel_scaling=pixels,
    )


def join_rows(transitions: Transitions, scaling: Scaling) -> Float[Array, "n columns"]:
    """Normalise transitions and join their columns; images are left out."""
    if transitions.on_disk:
        transitions = transitions.read(0, len(transitions))
    actions, rewards, terminated = encode_columns(transitions, scaling)
    numbers = transitions.observed.numbers
    own = scaling.states[:numbers] if transitions.images else scaling.states
    states, _ = split_parts(transitions.states, numbers)
    next_states, _ = split_parts(transitions.next_states, numbers)
    columns = [
        jnp.asarray(own(states)),
        actions,
        rewards,
        jnp.asarray(own(next_states)),
        terminated[:, None],
    ]
    return jnp.concatenate(columns, axis=1)


def prepare_held_out(held_out: Transitions, scaling: Scaling, config: ModelConfig) -> Batch:
    """Choose the fixed held-out batch and put it on the device."""
    chosen = choose_evenly(held_out, _HELD_OUT_IMAGES if held_out.images else _HELD_OUT_ROWS)
    weights = jnp.ones((len(chosen), config.decoders))
    return normalise_batch(held_out[chosen], scaling, weights)


def _find_ages(train: Transitions) -> Int[Array, " n"] | None:
    """Return the ages of rows, whose past is in the rows before them."""
    if train.past is None:
        return None
    places, ages = np.asarray(train.past.places), np.asarray(train.past.ages)
    assert (np.diff(places)[ages[1:] > 0] == 1).all() and ages[0] == 0
    return jnp.asarray(ages)


def make_model(
    config: ModelConfig,
    state_size: int,
    action_space: ActionSpace,
    history: int = 1,
    images: tuple[ImageShape, ...] = (),
    *,
    key: PRNGKeyArray,
) -> LatentModel:
    """Make an untrained model."""
    return LatentModel(
        state_size,
        action_space,
        latent_size=config.latent_size,
        decoders=config.decoders,
        hidden=config.hidden,
        forward_hidden=config.forward_hidden,
        couplings=config.couplings,
        activation=config.activation,
        minimum_variance=config.minimum_variance,
        observation_minimum_variance=config.observation_minimum_variance,
        shortcuts=config.shortcuts,
        variance_centres=config.variance_centres,
        input_scale=config.input_scale,
        history=history,
        forwards=config.forwards,
        forward_norm=config.forward_norm,
        images=images,
        key=key,
    )


@eqx.filter_jit
def begin_phase(config: ModelConfig, phase: int, models: LatentModel) -> FitState:
    """Make the state a phase starts from. Arrays of `models` have the seed as first axis."""

    def one(model: LatentModel) -> FitState:
        trainable, _ = eqx.partition(model, _mark_trained(phase, model))
        optimiser = _optimiser(config, phase).init(eqx.filter(trainable, eqx.is_array))
        no_loss = jnp.full((), jnp.inf, jnp.float32)
        return FitState(model, model.encoder, optimiser, jnp.zeros((), jnp.int32), model, no_loss)

    return copy_arrays(eqx.filter_vmap(one)(models))


@eqx.filter_jit
def make_models(
    config: ModelConfig,
    state_size: int,
    action_space: ActionSpace,
    seeds: Int[Array, " seeds"],
    history: int = 1,
    images: tuple[ImageShape, ...] = (),
) -> LatentModel:
    """Make untrained models; the first axis of every array is the seed."""

    def one(seed: Int[Array, ""]) -> LatentModel:
        key = jax.random.fold_in(jax.random.key(seed), MODEL_WEIGHTS)
        return make_model(config, state_size, action_space, history, images, key=key)

    return eqx.filter_vmap(one)(seeds)


@compile_training
def run_block(
    constants: tuple[FitData, Int[Array, " seeds"]],
    state: FitState,
    *,
    config: ModelConfig,
    phase: int,
    updates: int,
) -> tuple[FitState, Float[Array, "seeds updates terms"], Float[Array, " seeds"]]:
    """Run a block of updates for every seed.

    Returns the new state, the terms of every update, and the held-out loss at the end.
    """
    return _update_models(constants, state, config, phase, updates)


@compile_training
def run_parts(
    constants: tuple[FitData, Int[Array, " seeds"]],
    state: FitState,
    *,
    config: ModelConfig,
    phase: int,
    updates: int,
    mesh: Mesh,
) -> tuple[FitState, Float[Array, "seeds updates terms"], Float[Array, " seeds"]]:
    """Do what `run_block` does, on several devices; each has some of the seeds and all rows."""
    data, seeds = constants

    def call(
        counts: UInt8[Array, "seeds n members"],
        seeds: Int[Array, " seeds"],
        state: FitState,
        data: FitData,
    ) -> tuple[FitState, Float[Array, "seeds updates terms"], Float[Array, " seeds"]]:
        constants = eqx.tree_at(lambda d: d.counts, data, counts), seeds
        return _update_models(constants, state, config, phase, updates)

    specs = BY_SEED, BY_SEED, BY_SEED, EVERYWHERE
    # The counts are given apart, because they are the only part of the data that has seeds.
    shared = eqx.tree_at(lambda d: d.counts, data, jnp.zeros((0, 0, 0), jnp.uint8))
    return run_in_parts(call, mesh, (data.counts, seeds, state, shared), specs, BY_SEED)


def place_data(data: FitData, mesh: Mesh) -> FitData:
    """Put all rows on every device, and the counts of a seed where its model is."""
    counts = place(data.counts, mesh, BY_SEED)
    return eqx.tree_at(lambda d: d.counts, place(data, mesh, EVERYWHERE), counts)


def _update_models(
    constants: tuple[FitData, Int[Array, " seeds"]],
    state: FitState,
    config: ModelConfig,
    phase: int,
    updates: int,
) -> tuple[FitState, Float[Array, "seeds updates terms"], Float[Array, " seeds"]]:
    data, seeds = constants

    def one(
        state: FitState, counts: UInt8[Array, "n members"], seed: Int[Array, ""]
    ) -> tuple[FitState, Float[Array, "updates terms"], Float[Array, ""]]:
        key = jax.random.fold_in(jax.random.key(seed), phase)
        mean_counts = jnp.maximum(jnp.mean(counts, axis=0, dtype=jnp.float32), 1e-6)

        def draw(step: Int[Array, ""]) -> tuple[Int[Array, " rows"], PRNGKeyArray]:
            row_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
            rows = jax.random.randint(row_key, (config.batch_size,), 0, data.rows.shape[0])
            return rows, noise_key

        def update(
            state: FitState, drawn: tuple[Int[Array, " rows"], PRNGKeyArray]
        ) -> tuple[FitState, Float[Array, " terms"]]:
            rows, noise_key = drawn
            batch = data.gather(rows, lambda rows: counts[rows] / mean_counts)
            return _update(state, batch, config, phase, noise_key)

        # Draw the rows of all updates together, because every draw is a kernel on an accelerator.
        state, terms = jax.lax.scan(update, state, jax.vmap(draw)(state.step + jnp.arange(updates)))
        held_out_key = jax.random.fold_in(key, HELD_OUT_NOISE)
        held_out, _ = _loss(
            state.model, state.target_encoder, data.held_out, config, phase, held_out_key
        )
        better = held_out < state.best_loss
        best = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), state.model, state.best_model
        )
        state = eqx.tree_at(
            lambda s: (s.best_model, s.best_loss),
            state,
            (best, jnp.minimum(held_out, state.best_loss)),
        )
        return state, terms, held_out

    return eqx.filter_vmap(one)(state, data.counts, seeds)


def list_term_names(config: ModelConfig, phase: int) -> tuple[str, ...]:
    """Return the names of the terms that `run_block` measures, in the order of the last axis."""
    return tuple(config.term_weights) if phase == MEANS else ("likelihood",)


def _loss(
    model: LatentModel,
    target: GaussianMLP,
    batch: Batch,
    config: ModelConfig,
    phase: int,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Float[Array, " terms"]]:
    if phase == VARIANCES:
        loss = compute_variance_loss(model, batch)
        return loss, loss[None]
    terms = compute_objective_terms(
        model,
        target,
        batch,
        minimum_variance=config.minimum_variance,
        per_dimension=config.variance_per_dimension,
        predict="prediction" in config.term_weights,
        key=key,
    )
    logged = jnp.stack([terms[name] for name in config.term_weights])
    return compute_weighted_sum(terms, config.term_weights), logged


def _update(
    state: FitState, batch: Batch, config: ModelConfig, phase: int, key: PRNGKeyArray
) -> tuple[FitState, Float[Array, " terms"]]:
    trainable, frozen = eqx.partition(state.model, _mark_trained(phase, state.model))

    def loss(trainable: LatentModel) -> tuple[Float[Array, ""], Float[Array, " terms"]]:
        return _loss(
            eqx.combine(trainable, frozen), state.target_encoder, batch, config, phase, key
        )

    gradient, terms = jax.grad(loss, has_aux=True)(trainable)
    change, optimiser = _optimiser(config, phase).update(gradient, state.optimiser, trainable)
    model = eqx.combine(optax.apply_updates(trainable, change), frozen)
    target = state.target_encoder
    if phase == MEANS:
        target = optax.incremental_update(model.encoder, target, config.target_rate)
    step = state.step + 1
    return FitState(model, target, optimiser, step, state.best_model, state.best_loss), terms


def _mark_trained(phase: int, model: LatentModel) -> LatentModel:
    """Mark the leaves that a phase trains.

    Phase 1 trains everything except the variance networks of decoders and reward. Phase 2 trains
    only these.
    """

    def mark_all(tree: PyTree, mark: bool) -> PyTree:
        return jax.tree.map(lambda leaf: mark and eqx.is_array(leaf), tree)

    variances = (model.decoders.raw_variance, model.reward_networks.raw_variance)
    return eqx.tree_at(
        lambda m: (m.decoders.raw_variance, m.reward_networks.raw_variance, m.support),
        mark_all(model, phase == MEANS),
        (*mark_all(variances, phase == VARIANCES), mark_all(model.support, False)),
    )


def _optimiser(config: ModelConfig, phase: int) -> optax.GradientTransformation:
    updates = config.updates if phase == MEANS else config.variance_updates
    rate: optax.ScalarOrSchedule = config.learning_rate
    if config.learning_rate_decay:
        rate = optax.cosine_decay_schedule(config.learning_rate, max(updates, 1), alpha=0.01)
    steps = [optax.adam(rate)]
    if config.gradient_norm is not None:
        steps.insert(0, optax.clip_by_global_norm(config.gradient_norm))
    return fuse_small_arrays(optax.chain(*steps))
