"""MOPO's dynamics: an ensemble of networks in normalised state space, and its fit.

    (s′ − s, r) ~ N(μᵢ(s, a), σᵢ²(s, a)),  i a random elite at every step

Members are fitted by likelihood, each to its own sample of the data. The elites are those that
predict held-out episodes best. MOPO's penalty is the largest σ.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.arrays import copy_arrays, take
from gelato.compilation import (
    TRAINED_PASSES,
    Work,
    compile_training,
    count_products,
    fuse_small_arrays,
)
from gelato.data.spaces import ActionSpace
from gelato.data.transitions import Transitions, choose_evenly
from gelato.dynamics.fit import AbstractFit, AbstractFitted, PenaltySettings
from gelato.dynamics.interface import AbstractDynamics, Action, Embedded, Imagined, Latent
from gelato.errors import InputError, require_positive
from gelato.model.fit import normalise_batch
from gelato.model.gaussian import Gaussian
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.model.split import Split
from gelato.random_streams import ENSEMBLE_BATCHES, ENSEMBLE_SAMPLES, ENSEMBLE_WEIGHTS
from gelato.runs.folder import Run, open_run
from gelato.runs.loop import Metrics, finish, run_blocks
from gelato.tasks.task import Rule, find_termination_rule
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty
from gelato.uncertainty.calibration import SAMPLE, calibrate_on
from gelato.uncertainty.embedded import embed_pairs, sample_actions
from gelato.uncertainty.penalty import NO_EXCLUSION, AbstractPenalty, Scalar
from gelato.uncertainty.registry import register_penalty

_HELD_OUT_ROWS = 4096
# A smaller improvement of the held-out error does not count.
_IMPROVEMENT = 0.01


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of the ensemble and its fit; the sizes are those of MOPO."""

    members: int = 7
    """Networks in the ensemble."""
    elites: int = 5
    """Number of networks used for rollouts: those with the smallest held-out loss."""
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    """Widths of the hidden layers."""
    batch_size: int = 256
    """Transitions per update and network."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, at the start if it decays."""
    learning_rate_decay: bool = False
    """Whether the learning rate decays to 1% along a cosine."""
    weight_decay: tuple[float, float] = (1.25e-5, 5e-5)
    """Factors of `½‖W‖²` in the loss for the first and the last layer, linear between them."""
    log_variance: tuple[float, float] = (-10.0, 0.5)
    """Soft bounds on log σ². If they are trained, these are the first values."""
    bound_weight: float = 0.005
    """Factor of the distance between these bounds in the loss, which trains them; 0: fixed."""
    bootstrap: bool = True
    """Whether every network has its own sample of the data, drawn with replacement."""
    by_error: bool = True
    """Whether held-out squared error selects weights and elites; otherwise likelihood does."""
    patience: int = 20_000
    """A fit ends after so many updates in which no network improves; 0: never."""
    updates: int = 300_000
    """Largest number of updates."""

    def __post_init__(self) -> None:
        require_positive(self, "members", "elites", "hidden", "batch_size", "learning_rate")
        require_positive(self, "updates")
        if self.elites > self.members:
            raise InputError(
                f"elites={self.elites}: must be at most the number of members, {self.members}"
            )
        low, high = self.log_variance
        if not low < high:
            raise InputError(
                f"the ensemble's log_variance is {self.log_variance}; the first bound must be the "
                "smaller one"
            )
        if min(*self.weight_decay, self.bound_weight, self.patience) < 0:
            raise InputError(
                "the ensemble's weight_decay, bound_weight and patience must not be negative"
            )


class Member(eqx.Module):
    """One network: `(s, a) ↦ N(μ, σ²)` for state change and reward, and a termination logit."""

    network: MLP
    low: Float[Array, "*batch target"]
    high: Float[Array, "*batch target"]

    def __call__(self, pair: Float[Array, " pair"]) -> tuple[Gaussian, Float[Array, ""]]:
        *_, end = out = self.network(pair)
        mean, raw = jnp.split(out[:-1], 2)
        log_variance = self.high - jax.nn.softplus(self.high - raw)
        log_variance = self.low + jax.nn.softplus(log_variance - self.low)
        return Gaussian(mean, jnp.exp(log_variance)), end


class StateDynamics(AbstractDynamics):
    """An ensemble, best member first. The `elites` imagine steps; policies see the state itself."""

    members: Member
    scaling: Scaling
    low: Float[Array, "*batch state"]
    high: Float[Array, "*batch state"]
    elites: int = eqx.field(static=True)
    rule: Rule | None = eqx.field(static=True)

    def encode(self, state: Float[Array, " state"]) -> Latent:
        return state

    def embed(self, latent: Latent, action: Action) -> Embedded:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        choice_key, noise_key, end_key = jax.random.split(key, 3)
        outcomes, ends = self.predict(embedding)
        which = jax.random.randint(choice_key, (), 0, self.elites)
        sample = Gaussian(outcomes.mean[which], outcomes.variance[which]).sample(key=noise_key)
        state = embedding[: len(sample) - 1] + sample[:-1]
        reward = self.scaling.rewards.inverse(sample[-1:])[0]
        if self.rule is None:
            ended = jax.random.bernoulli(end_key, jax.nn.sigmoid(ends[which]))
        else:
            ended = self.rule(jnp.asarray(self.scaling.states.inverse(state)))
        # Clip the state to the range of the data, because networks extrapolate without bound
        # outside it. The termination rule gets the state before clipping.
        return Imagined(jnp.clip(state, self.low, self.high), reward, ended)

    def predict(self, embedding: Embedded) -> tuple[Gaussian, Float[Array, " members"]]:
        """Return every member's outcome and log-odds of an end."""
        return eqx.filter_vmap(lambda member: member(embedding))(self.members)


class LargestDeviation(AbstractPenalty):
    """`U(e) = maxᵢ ‖σᵢ(s, a)‖ / √d` over all members, as in MOPO."""

    dynamics: StateDynamics

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return jnp.sqrt(jnp.max(jnp.mean(self.dynamics.predict(e)[0].variance, axis=1)))


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
            state = _fit(folder, data, _init(*new), seeds, config, dataset.reference)
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
    batch = normalise_batch(transitions, scaling, jnp.zeros((len(transitions), 0)))
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
    reference: str,
) -> EnsembleState:
    constants = (data, jnp.array(seeds))

    def block(state: EnsembleState, updates: int) -> tuple[EnsembleState, dict[str, np.ndarray]]:
        state, *measured = _block(constants, state, config=config, updates=updates)
        names = ("loss", "held_out", "stale")
        return state, {
            name: np.asarray(x) for name, x in zip(names, (*measured, state.stale), strict=True)
        }

    def is_done(metrics: Metrics) -> bool:
        return bool(config.patience) and bool((metrics["stale"] >= config.patience).all())

    return run_blocks(
        folder,
        state,
        block,
        labels=[{"seed": seed} for seed in seeds],
        total=config.updates,
        length=min(1_000, max(100, config.updates // 40)),
        title=f"fitting the ensemble of {reference}",
        shown=["held_out"],
        is_done=is_done,
    )


@compile_training
def _block(
    constants: tuple[EnsembleData, Int[Array, " seeds"]],
    state: EnsembleState,
    *,
    config: EnsembleConfig,
    updates: int,
) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
    """A block of updates for every seed; every member draws separate batches."""
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
                fit = jnp.sum(_compute_losses(members, data.inputs[rows], data.targets[rows]))
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
        held_out = _compute_errors(state.members, pairs, targets)
        better = held_out < (1 - _IMPROVEMENT) * state.best_losses
    else:
        held_out = _compute_losses(state.members, pairs, targets)
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


def _compute_errors(
    members: Member,
    pairs: Float[Array, "members n pair"],
    targets: Float[Array, "members n target"],
) -> Float[Array, " members"]:
    """Return every member's mean squared error of state change and reward."""

    def one(member: Member, pair: Array, target: Array) -> Float[Array, ""]:
        return jnp.mean((member(pair)[0].mean - target[:-1]) ** 2)

    return jnp.mean(
        eqx.filter_vmap(jax.vmap(one, in_axes=(None, 0, 0)))(members, pairs, targets), axis=1
    )


def _compute_losses(
    members: Member,
    pairs: Float[Array, "members n pair"],
    targets: Float[Array, "members n target"],
) -> Float[Array, " members"]:
    """The negative log-likelihood per dimension of each member, on separate batches."""

    def one(member: Member, pair: Array, target: Array) -> Float[Array, ""]:
        outcome, end = member(pair)
        *_, ended = target
        density = outcome.log_density(target[:-1]) / (len(target) - 1)
        return optax.sigmoid_binary_cross_entropy(end, ended) - density

    return jnp.mean(
        eqx.filter_vmap(jax.vmap(one, in_axes=(None, 0, 0)))(members, pairs, targets), axis=1
    )


def _optimiser(config: EnsembleConfig) -> optax.GradientTransformation:
    rate: float | optax.Schedule = config.learning_rate
    if config.learning_rate_decay:
        rate = optax.cosine_decay_schedule(config.learning_rate, config.updates, alpha=0.01)
    return fuse_small_arrays(optax.adam(rate))


def _take_members(members: Member, chosen: Int[Array, "seeds members"]) -> Member:
    """Take the chosen members of every seed."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda x, rows: x[rows])(leaf, chosen), members)


@dataclass(frozen=True)
class EnsembleFit(AbstractFit):
    """The fit of the ensemble of MOPO."""

    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    """Settings of the ensemble."""

    folder = "ensemble"
    space = "state"

    def fit(self, split: Split, folder: Path, seeds: tuple[int, ...]) -> "FittedEnsemble":
        return FittedEnsemble(
            fit_ensemble(split, folder, seeds=seeds, config=self.ensemble), split, len(seeds)
        )

    def estimate_work(self, state_size: int, action_size: int) -> Work:
        config = self.ensemble
        products = self._count_member_products(state_size, action_size)
        total = config.updates * config.batch_size * TRAINED_PASSES * products
        return Work(total, config.updates, programs=1)

    def count_step_products(
        self, state_size: int, action_size: int, settings: PenaltySettings
    ) -> float:
        del settings
        return self._count_member_products(state_size, action_size)

    def _count_member_products(self, state_size: int, action_size: int) -> float:
        sizes = (state_size + action_size, *self.ensemble.hidden, 2 * state_size + 3)
        return self.ensemble.members * count_products(sizes)


@dataclass(frozen=True)
class FittedEnsemble(AbstractFitted):
    """Fitted ensembles as dynamics; arrays of `members` have the seed as their first axis."""

    stacked: StateDynamics
    split: Split
    seeds: int
    encoders = None

    @cached_property
    def dynamics(self) -> tuple[StateDynamics, ...]:  # type: ignore[override]
        """The dynamics of every seed."""
        found = []
        for index in range(self.seeds):
            found.append(take(self.stacked, index))
        return tuple(found)

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]
        """The units of the data."""
        return self.split.scaling

    def build_penalties(
        self, index: int, penalties: Sequence[Penalty], settings: PenaltySettings
    ) -> list[AbstractPenalty]:
        dynamics, split = self.dynamics[index], self.split
        predict = MeanPrediction(dynamics)
        data = embed_pairs(predict, split.scaling, split.train, settings.points)
        known = embed_pairs(predict, split.scaling, split.held_out, settings.points)
        inputs = PenaltyInputs(dynamics, data, known, min(settings.neighbours, len(data) - 1))
        built: list[AbstractPenalty] = []
        for penalty in penalties:
            raw = build_penalty(penalty, inputs)
            built.append(_calibrate(raw, dynamics, split.train))
        return built


class MeanPrediction(eqx.Module):
    """The elites' mean prediction of the next state, as a function of the pair `(s, a)`."""

    dynamics: StateDynamics

    def __call__(self, pair: Embedded) -> Float[Array, " state"]:
        means = self.dynamics.predict(pair)[0].mean[: self.dynamics.elites]
        change = jnp.mean(means, axis=0)[:-1]
        return pair[: len(change)] + change


def _build_largest_deviation(inputs: PenaltyInputs) -> LargestDeviation:
    assert isinstance(inputs.model, StateDynamics)
    return LargestDeviation(inputs.model)


register_penalty(
    "largest-deviation",
    _build_largest_deviation,
    ("state",),
    "largest σ of the ensemble, as in MOPO",
)


def _calibrate(
    penalty: AbstractPenalty, dynamics: StateDynamics, train: Transitions
) -> AbstractPenalty:
    """Calibrate on the data, and on out-of-distribution states with random actions."""
    rows = np.random.default_rng(0).permutation(len(train))[: 2 * SAMPLE]
    batch = normalise_batch(train[rows], dynamics.scaling, jnp.zeros((len(rows), 0)))
    half = len(rows) // 2
    states, others = batch.states[half:], batch.states[: len(rows) - half]
    away = states + (states - others) / 2
    actions = sample_actions(dynamics.scaling, len(away), jax.random.key(0))
    inside = jax.vmap(dynamics.embed)(batch.states, batch.actions)
    outside = jax.vmap(dynamics.embed)(away, actions)
    return calibrate_on(penalty, inside, jnp.full(len(inside), NO_EXCLUSION), outside)
