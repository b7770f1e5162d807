"""The variational latent model as dynamics, with optional noise on imagined states, and its fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.compilation import TRAINED_PASSES, Work, count_products
from gelato.data.transitions import choose_evenly
from gelato.dynamics.fit import AbstractFit, AbstractFitted, PenaltySettings
from gelato.dynamics.interface import AbstractDynamics, Action, Embedded, Imagined, Latent
from gelato.errors import InputError
from gelato.model.config import ModelConfig
from gelato.model.data_checks import check_data
from gelato.model.fit import normalise_inputs
from gelato.model.gaussian import Gaussian
from gelato.model.latent import LatentModel, Scaling
from gelato.model.networks import GaussianMLP
from gelato.model.split import Split
from gelato.model.training import FittedModel, fit_latent_model
from gelato.tasks.task import Rule, find_termination_rule
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty, choose_segments
from gelato.uncertainty.calibration import SAMPLE, calibrate
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import AbstractPenalty

# The largest noise on a state, as a multiple of its mean over the data.
NOISE_BOUND = 10.0


class StateNoise(eqx.Module):
    """The standard deviation of the noise on an imagined state: `min(factor·σ, largest)`.

    σ is a decoder's standard deviation. Away from the data it can be hundreds of times larger than
    on the data. Without the bound, noise would move states far from the data.
    """

    factor: Float[Array, "*batch"]
    largest: Float[Array, "*batch"]

    def __call__(self, deviation: Float[Array, " state"]) -> Float[Array, " state"]:
        return jnp.minimum(self.factor * deviation, self.largest)


class LatentNoise(eqx.Module):
    """The standard deviation of the noise on a latent state, in each dimension."""

    scale: Float[Array, "*batch latent"]


class LatentDynamics(AbstractDynamics):
    """The latent model as dynamics.

    Episodes end by a known rule on decoded states. Without a rule, the learned head decides.

    With `noise`, an imagined state is drawn around the mean of a random decoder and encoded again.
    Then a policy cannot exploit tiny details of the model's prediction. If the model reads a
    history, one decoded observation cannot be encoded. The noise is then added to `z` itself, and
    moves decoded observations as far. So imagination needs no windows.
    """

    model: LatentModel
    scaling: Scaling
    rule: Rule | None = eqx.field(static=True)
    noise: StateNoise | LatentNoise | None = None

    def encode(self, state: Float[Array, " input"]) -> Latent:
        return self.model.encode(state).mean

    def embed(self, latent: Latent, action: Action) -> Embedded:
        return self.model.embedding(latent, action)

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        step_key, reward_key, end_key, noise_key = jax.random.split(key, 4)
        forward, unit_reward = self.model.draw_outcome(embedding, key=key)
        z = self.model.support(forward.sample(key=step_key))
        state = self.decode(z, key=noise_key)
        reward = self.scaling.rewards.inverse(unit_reward.sample(key=reward_key))[0]
        if self.rule is None:
            ended = jax.random.bernoulli(end_key, self.model.termination_probability(embedding))
        else:
            ended = self.rule(jnp.asarray(self.scaling.states.inverse(state)))
        if isinstance(self.noise, LatentNoise):
            moved = z + self.noise.scale * jax.random.normal(noise_key, z.shape)
            z = self.model.support(moved)
        elif self.noise is not None:
            z = self.model.support(self.encode(state))
        return Imagined(z, reward, ended)

    def decode(self, latent: Latent, *, key: PRNGKeyArray) -> Float[Array, " state"]:
        """Return the normalised state: the decoders' mean, or with noise of states a draw."""
        if not isinstance(self.noise, StateNoise):
            return jnp.mean(self.model.decode_means(latent), axis=0)
        member_key, noise_key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, self.model.members)
        decoded = self.model.decode(latent)
        deviation = self.noise(jnp.sqrt(decoded.variance[member]))
        return Gaussian(decoded.mean[member], deviation**2).sample(key=noise_key)


@dataclass(frozen=True)
class LatentFit(AbstractFit):
    """The fit of the latent model, and the noise on the states that it imagines."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """Settings of the latent model."""
    state_noise: float = 0.0
    """Mean noise on imagined states, in standard deviations of the data's states."""
    noise_bound: float = NOISE_BOUND
    """Largest noise, as a multiple of `state_noise`."""

    folder = "model"
    space = "latent"

    def __post_init__(self) -> None:
        check_state_noise(self.state_noise)

    @property
    def held_out_fraction(self) -> float:
        return self.model.held_out_fraction

    def check(self, split: Split) -> None:
        check_data(split, self.model)

    def fit(self, split: Split, folder: Path, seeds: tuple[int, ...]) -> "FittedLatent":
        return self.use_model(fit_latent_model(split, folder, self.model, seeds))

    def use_model(self, model: FittedModel) -> "FittedLatent":
        return FittedLatent(model, self.state_noise, self.noise_bound)

    def describe_settings(self) -> dict[str, float]:
        largest = self.noise_bound * self.state_noise
        return {"state_noise": self.state_noise, "largest_noise": largest}

    def estimate_work(self, state_size: int, action_size: int) -> Work:
        model = self.model
        latent = model.latent_size
        coder = count_products((state_size, *model.hidden, 2 * latent))
        forward = count_products((latent + action_size, *model.forward_hidden, 2 * latent))
        # Every forward network's prediction is decoded, next to the two states themselves.
        row = 3 * coder + model.forwards * forward + (2 + model.forwards) * model.decoders * coder
        updates = model.updates + model.variance_updates
        return Work(updates * model.batch_size * TRAINED_PASSES * row, updates, programs=3)

    def count_step_products(
        self, state_size: int, action_size: int, settings: PenaltySettings
    ) -> float:
        del state_size
        # The search for neighbours dominates.
        model = self.model
        latent = model.latent_size
        decoder = count_products((latent, *model.hidden, 2 * latent))
        search = settings.points * (latent + action_size)
        return search + model.forwards * (latent + 1) * model.decoders * decoder

    def latent_size(self, state_size: int) -> int:
        del state_size
        return self.model.latent_size


@dataclass(frozen=True)
class FittedLatent(AbstractFitted):
    """Fitted latent models as dynamics."""

    fitted: FittedModel
    state_noise: float = 0.0
    noise_bound: float = NOISE_BOUND

    @cached_property
    def dynamics(self) -> tuple[LatentDynamics, ...]:  # type: ignore[override]
        """The dynamics of every seed."""
        found = []
        for index in range(len(self.fitted.seeds)):
            found.append(
                make_latent_dynamics(self.fitted, index, self.state_noise, self.noise_bound)
            )
        return tuple(found)

    @property
    def encoders(self) -> GaussianMLP:  # type: ignore[override]
        """The encoders of every seed."""
        return self.fitted.models.encoder

    @property
    def scaling(self) -> Scaling:  # type: ignore[override]
        """The units of the data."""
        return self.fitted.scaling

    def build_penalties(
        self, index: int, penalties: Sequence[Penalty], settings: PenaltySettings
    ) -> list[AbstractPenalty]:
        model, scaling = self.fitted.seed(index), self.fitted.scaling
        train, held_out = self.fitted.parts
        data = embed(model, scaling, train, settings.points)
        known = embed(model, scaling, held_out, settings.points)
        k = min(settings.neighbours, len(data) - 1)
        inputs = PenaltyInputs(model, data, known, k, choose_segments(model, train))
        built: list[AbstractPenalty] = []
        for penalty in penalties:
            raw = build_penalty(penalty, inputs)
            built.append(calibrate(raw, model, scaling, data))
        return built


def make_latent_dynamics(
    fitted: FittedModel, index: int, state_noise: float, noise_bound: float = NOISE_BOUND
) -> LatentDynamics:
    """Return the latent dynamics of one seed, with noise of that mean size over the data.

    The unit is the standard deviation of the data's states. The decoders' σ decides how the noise
    is distributed, up to `noise_bound` times its mean.
    """
    model = fitted.seed(index)
    noise: StateNoise | LatentNoise | None = None
    if state_noise:
        train, _ = fitted.parts
        inputs = normalise_inputs(train[choose_evenly(train, SAMPLE)], fitted.scaling)
        # Noise of pixels would be encoded as noise of single pixels, which the log does not have.
        if fitted.scaling.history > 1 or model.observed.images:
            noise = _make_latent_noise(model, inputs, state_noise)
        else:
            typical = _compute_mean_deviation(model, inputs)
            noise = StateNoise(state_noise / typical, jnp.asarray(noise_bound * state_noise))
    dataset = fitted.dataset
    rule = find_termination_rule(dataset.environment, dataset.transitions.states.shape[1])
    return LatentDynamics(model, fitted.scaling, rule, noise)


def check_state_noise(noise: float) -> None:
    """Raise an error if the state noise is not a finite number of at least 0."""
    if not 0 <= noise < math.inf:
        raise InputError(f"state_noise={noise}: must be a finite number of at least 0")


@eqx.filter_jit
def _make_latent_noise(
    model: LatentModel, windows: Float[Array, "n window"], state_noise: float
) -> LatentNoise:
    """Return noise in proportion to the spread of each latent dimension.

    To first order, it moves a decoded observation by `state_noise` per dimension, on average.
    """
    latents = jax.vmap(lambda window: model.encode(window).mean)(windows)
    spread = jnp.std(latents, axis=0)

    def move(z: Float[Array, " latent"], noise: Float[Array, " latent"]) -> Float[Array, " state"]:
        decode = lambda z: jnp.mean(model.decode_means(z), axis=0)  # noqa: E731
        return jax.jvp(decode, (z,), (spread * noise,))[1]

    moved = jax.vmap(move)(latents, jax.random.normal(jax.random.key(0), latents.shape))
    return LatentNoise(state_noise * spread / jnp.sqrt(jnp.mean(moved**2)))


@eqx.filter_jit
def _compute_mean_deviation(
    model: LatentModel, states: Float[Array, "n state"]
) -> Float[Array, ""]:
    def deviation(state: Float[Array, " state"]) -> Float[Array, "members state"]:
        return jnp.sqrt(model.decode_variances(model.encode(state).mean))

    return jnp.mean(jax.vmap(deviation)(states))
