"""MOPO's dynamics: networks in normalised state space, each a Gaussian over change of state and reward.

    (s′ − s, r) ~ N(μᵢ(s, a), σᵢ²(s, a)),  i one of the elites, anew at every step

Fitted by likelihood; the members that predict held-out episodes best are the elites. Its penalty is the largest σ.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.blocks import finish, run_blocks
from gelato.data.spaces import ActionSpace
from gelato.data.transitions import Dataset, Transitions, evenly
from gelato.envs.termination import Rule, termination_rule
from gelato.mdp.dynamics import AbstractDynamics, Action, Embedded, Imagined, Latent
from gelato.model.fit import normalised_batch
from gelato.model.gaussian import Gaussian
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.optimise import in_few_kernels, training_program
from gelato.runs import Run
from gelato.trees import copied
from gelato.uncertainty.penalty import AbstractPenalty, Scalar

_HELD_OUT_ROWS = 4096
# Bounds on log σ², softly kept, as in PETS and MOPO.
_LOG_VARIANCE = (-12.0, 1.0)


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of the ensemble and its fit; the sizes are MOPO's."""

    members: int = 7
    elites: int = 5
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 5e-5
    updates: int = 60_000


class Member(eqx.Module):
    """One network: `(s, a) ↦ N(μ, σ²)` over change of state and reward, and the probability of an end."""

    network: MLP

    def __call__(self, pair: Float[Array, " pair"]) -> tuple[Gaussian, Float[Array, ""]]:
        *_, end = out = self.network(pair)
        mean, raw = jnp.split(out[:-1], 2)
        low, high = _LOG_VARIANCE
        log_variance = high - jax.nn.softplus(high - raw)
        log_variance = low + jax.nn.softplus(log_variance - low)
        return Gaussian(mean, jnp.exp(log_variance)), end


class StateDynamics(AbstractDynamics):
    """An ensemble, best member first, of which the `elites` step; the policy sees the normalised state itself."""

    members: Member
    scaling: Scaling
    low: Float[Array, "*batch state"]
    high: Float[Array, "*batch state"]
    elites: int = eqx.field(static=True)
    rule: Rule | None = eqx.field(static=True)

    def start(self, state: Float[Array, " state"]) -> Latent:
        return state

    def embed(self, latent: Latent, action: Action) -> Embedded:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        choice_key, noise_key, end_key = jax.random.split(key, 3)
        outcomes, ends = self.predictions(embedding)
        which = jax.random.randint(choice_key, (), 0, self.elites)
        sample = Gaussian(outcomes.mean[which], outcomes.variance[which]).sample(key=noise_key)
        state = embedding[: len(sample) - 1] + sample[:-1]
        reward = self.scaling.rewards.inverse(sample[-1:])[0]
        if self.rule is None:
            ended = jax.random.bernoulli(end_key, jax.nn.sigmoid(ends[which]))
        else:
            ended = self.rule(jnp.asarray(self.scaling.states.inverse(state)))
        # Kept where the data reaches: beyond it a network extrapolates without end. The rule sees the state itself.
        return Imagined(jnp.clip(state, self.low, self.high), reward, ended)

    def predictions(self, embedding: Embedded) -> tuple[Gaussian, Float[Array, " members"]]:
        """Every member's outcome and log-odds of an end."""
        return eqx.filter_vmap(lambda member: member(embedding))(self.members)


class LargestDeviation(AbstractPenalty):
    """`U(e) = maxᵢ ‖σᵢ(s, a)‖ / √d` over all members: MOPO's."""

    dynamics: StateDynamics

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        del leave_out
        return jnp.sqrt(jnp.max(jnp.mean(self.dynamics.predictions(e)[0].variance, axis=1)))


class EnsembleState(eqx.Module):
    """What the fit carries from update to update."""

    members: Member
    optimiser: Any
    step: Int[Array, "*seeds"]
    best: Member
    best_losses: Float[Array, "*seeds members"]


class EnsembleData(eqx.Module):
    """Rows `(s, a)` and `(s′ − s, r, end)` of training and held-out transitions."""

    inputs: Float[Array, "n pair"]
    targets: Float[Array, "n target"]
    held_out: tuple[Float[Array, "m pair"], Float[Array, "m target"]]


def fit_ensemble(
    dataset: Dataset,
    parts: tuple[Transitions, Transitions],
    scaling: Scaling,
    run: Path,
    *,
    seeds: tuple[int, ...],
    config: EnsembleConfig,
) -> StateDynamics:
    """Fit ensembles of several seeds in a run's folder, or read the fitted ones; the seed is the first axis.

    `parts` are the training and held-out transitions of the dataset, `scaling` the units of the former.
    """
    train, held_out = parts
    folder = Run(run)
    with folder.locked():
        folder.begin(
            "ensemble",
            data={"reference": dataset.reference, "environment": dataset.environment},
            fingerprint=dataset.transitions.fingerprint(),
            config=asdict(config),
            seeds=list(seeds),
            held_out=len(held_out),
        )
        new = (config, train.states.shape[1], train.action_space, jnp.array(seeds))
        if not folder.has("members"):
            rows = held_out[evenly(held_out, _HELD_OUT_ROWS)]
            data = EnsembleData(*_pairs(train, scaling), _pairs(rows, scaling))
            state = _fit(folder, data, _begin(*new), seeds, config, dataset.reference)
            best_first = _take(state.best, jnp.argsort(state.best_losses, axis=1))
            finish(folder, lambda: folder.save("members", eqx.filter(best_first, eqx.is_array)))
        shapes = eqx.filter_eval_shape(_begin, *new)
        arrays, static = eqx.partition(shapes.members, lambda leaf: hasattr(leaf, "shape"))
        members = eqx.combine(jax.tree.map(jnp.asarray, folder.load("members", arrays)), static)
    states = scaling.states(np.concatenate([train.states, train.next_states]))
    scaling, low, high = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)),
        (scaling, states.min(axis=0), states.max(axis=0)),
    )
    rule = termination_rule(dataset.environment, states.shape[1])
    return StateDynamics(members, scaling, low, high, config.elites, rule)


def _pairs(transitions: Any, scaling: Scaling) -> tuple[Float[Array, "n pair"], Float[Array, "n target"]]:
    batch = normalised_batch(transitions, scaling, jnp.zeros((len(transitions), 0)))
    targets = (batch.next_states - batch.states, batch.rewards, batch.terminated[:, None])
    return jnp.concatenate([batch.states, batch.actions], axis=1), jnp.concatenate(targets, axis=1)


@eqx.filter_jit
def _begin(config: EnsembleConfig, state_size: int, space: ActionSpace, seeds: Int[Array, " seeds"]) -> EnsembleState:
    sizes = (state_size + space.size, 2 * (state_size + 1) + 1)

    def one(seed: Int[Array, ""]) -> EnsembleState:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**29), config.members)
        members = eqx.filter_vmap(lambda key: Member(MLP(*sizes, config.hidden, "silu", key=key)))(keys)
        optimiser = _optimiser(config).init(eqx.filter(members, eqx.is_array))
        return EnsembleState(
            members, optimiser, jnp.zeros((), jnp.int32), members, jnp.full(config.members, jnp.inf, jnp.float32)
        )

    return copied(eqx.filter_vmap(one)(seeds))


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
        state, loss, held_out = _block(constants, state, config=config, updates=updates)
        return state, {"loss": np.asarray(loss), "held_out": np.asarray(held_out)}

    return run_blocks(
        folder,
        state,
        block,
        labels=[{"seed": seed} for seed in seeds],
        total=config.updates,
        length=min(1_000, max(100, config.updates // 40)),
        title=f"fitting the ensemble of {reference}",
        status=lambda metrics: f"held-out loss {metrics['held_out'].mean():.3f}",
    )


@training_program
def _block(
    constants: tuple[EnsembleData, Int[Array, " seeds"]],
    state: EnsembleState,
    *,
    config: EnsembleConfig,
    updates: int,
) -> tuple[EnsembleState, Float[Array, " seeds"], Float[Array, " seeds"]]:
    """A block of updates for every seed; every member draws batches of its own."""
    data, seeds = constants

    def one(state: EnsembleState, seed: Int[Array, ""]) -> tuple[EnsembleState, Array, Array]:
        key = jax.random.fold_in(jax.random.key(seed), 3)

        def draw(step: Int[Array, ""]) -> Int[Array, "members rows"]:
            shape = (config.members, config.batch_size)
            return jax.random.randint(jax.random.fold_in(key, step), shape, 0, len(data.inputs))

        def update(state: EnsembleState, rows: Array) -> tuple[EnsembleState, Float[Array, ""]]:
            trainable, static = eqx.partition(state.members, eqx.is_array)

            def loss(trainable: Member) -> Float[Array, ""]:
                members = eqx.combine(trainable, static)
                return jnp.sum(_losses(members, data.inputs[rows], data.targets[rows]))

            value, gradient = jax.value_and_grad(loss)(trainable)
            change, optimiser = _optimiser(config).update(gradient, state.optimiser, trainable)
            members = eqx.combine(optax.apply_updates(trainable, change), static)
            new = EnsembleState(members, optimiser, state.step + 1, state.best, state.best_losses)
            return new, value / config.members

        state, losses = jax.lax.scan(update, state, jax.vmap(draw)(state.step + jnp.arange(updates)))
        pairs, targets = (jnp.broadcast_to(x, (config.members, *x.shape)) for x in data.held_out)
        held_out = _losses(state.members, pairs, targets)
        better = held_out < state.best_losses
        best = jax.tree.map(
            lambda new, old: jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old), state.members, state.best
        )
        state = eqx.tree_at(lambda s: (s.best, s.best_losses), state, (best, jnp.minimum(held_out, state.best_losses)))
        return state, jnp.mean(losses), jnp.mean(held_out)

    return eqx.filter_vmap(one)(state, seeds)


def _losses(
    members: Member, pairs: Float[Array, "members n pair"], targets: Float[Array, "members n target"]
) -> Float[Array, " members"]:
    """Every member's negative log-likelihood per dimension on a batch of its own."""

    def one(member: Member, pair: Array, target: Array) -> Float[Array, ""]:
        outcome, end = member(pair)
        *_, ended = target
        density = outcome.log_density(target[:-1]) / (len(target) - 1)
        return optax.sigmoid_binary_cross_entropy(end, ended) - density

    return jnp.mean(eqx.filter_vmap(jax.vmap(one, in_axes=(None, 0, 0)))(members, pairs, targets), axis=1)


def _optimiser(config: EnsembleConfig) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.updates, alpha=0.01)
    return in_few_kernels(optax.adamw(rate, weight_decay=config.weight_decay))


def _take(members: Member, chosen: Int[Array, "seeds members"]) -> Member:
    """The chosen members of every seed."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda x, rows: x[rows])(leaf, chosen), members)
