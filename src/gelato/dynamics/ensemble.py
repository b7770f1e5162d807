"""MOPO's ensemble as a fit that policies learn in, and its penalty, the largest σ."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.arrays import take
from gelato.compilation import TRAINED_PASSES, Work, count_products
from gelato.data.transitions import Transitions
from gelato.dynamics.ensemble_training import fit_ensemble
from gelato.dynamics.fit import AbstractFit, AbstractFitted, PenaltySettings
from gelato.dynamics.interface import Embedded
from gelato.dynamics.state import EnsembleConfig, StateDynamics
from gelato.errors import InputError
from gelato.model.fit import normalise_batch
from gelato.model.latent import Scaling
from gelato.model.split import Split
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty
from gelato.uncertainty.calibration import SAMPLE, calibrate_on
from gelato.uncertainty.embedded import embed_pairs, sample_actions
from gelato.uncertainty.penalty import NO_EXCLUSION, AbstractPenalty, Scalar
from gelato.uncertainty.registry import register_penalty


class LargestDeviation(AbstractPenalty):
    """`U(e) = maxᵢ ‖σᵢ(s, a)‖ / √d` over all members, as in MOPO."""

    dynamics: StateDynamics

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return jnp.sqrt(jnp.max(jnp.mean(self.dynamics.predict(e)[0].variance, axis=1)))


@dataclass(frozen=True)
class EnsembleFit(AbstractFit):
    """The fit of the ensemble of MOPO."""

    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    """Settings of the ensemble."""

    folder = "ensemble"
    space = "state"

    def check(self, split: Split) -> None:
        history = split.scaling.history
        if history > 1:
            raise InputError(
                f"{split.dataset.reference}: an ensemble in state space predicts from single "
                "observations. Use a method with a latent model, such as gelato, or remove "
                "history= from the reference"
            )

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
    batch = normalise_batch(train[rows], dynamics.scaling)
    half = len(rows) // 2
    states, others = batch.states[half:], batch.states[: len(rows) - half]
    away = states + (states - others) / 2
    actions = sample_actions(dynamics.scaling, len(away), jax.random.key(0))
    inside = jax.vmap(dynamics.embed)(batch.states, batch.actions)
    outside = jax.vmap(dynamics.embed)(away, actions)
    return calibrate_on(penalty, inside, np.full(len(inside), NO_EXCLUSION), outside)
