"""Build penalties, and the metrics they measure distance with, from a fitted model and its data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.data.transitions import Transitions, choose_evenly
from gelato.errors import InputError
from gelato.geometry import AbstractMetric, Composite, EnsemblePullback, prepare
from gelato.model.latent import LatentModel
from gelato.progress import note
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.guard import Guard, UnusualAction, combine, fit_unusual_action
from gelato.uncertainty.penalty import (
    AbstractPenalty,
    Aleatoric,
    Ambient,
    Ensemble,
    EuclideanDistance,
    Extrapolation,
    ForwardNoise,
    GeodesicDistance,
    Images,
    Nothing,
    Transport,
    map_rows,
)
from gelato.uncertainty.registry import Space, find_penalty

MetricName = Literal["composite", "decoder"]
# A name, a penalty that is built already, or a function that builds one from `PenaltyInputs`.
Penalty = str | AbstractPenalty | Callable[["PenaltyInputs"], AbstractPenalty]
NEIGHBOURS = 20
# The paper's K, for datasets so small that twenty neighbours would be spread all over them.
_FEW_NEIGHBOURS, _FEW = 5, 1_000
# `growth_rate` keeps its denominator above this fraction of the median.
_LEAST_FRACTION = 0.1
_HELD_OUT = 1024
# From this many latent dimensions on, chords and solved geodesics order state-actions alike
# (docs/research/uncertainty.md).
_ENOUGH_DIMENSIONS = 16


@dataclass(frozen=True)
class PenaltyInputs:
    """What a penalty is built from.

    `model` is the latent model, or the dynamics in state space. `data` and `held_out` are the
    training and held-out transitions in the space that the penalty works in. `k` is the number of
    neighbours (default: 20, or 5 with fewer than 1,000 transitions). With `segments`, lengths are
    those of polygons between images of the data instead of solved geodesics (`Images`).
    """

    model: eqx.Module
    data: EmbeddedData
    held_out: EmbeddedData
    k: int | None = None
    segments: int | None = None

    @property
    def space(self) -> Space:
        """The space that the penalty works in."""
        return "latent" if isinstance(self.model, LatentModel) else "state"

    @property
    def latent_model(self) -> LatentModel:
        """The model, for penalties that need the latent one."""
        if not isinstance(self.model, LatentModel):
            raise InputError("this penalty needs a latent model, not dynamics in state space")
        return self.model

    @property
    def neighbours(self) -> int:
        """The number of neighbours, checked against the data."""
        points = len(self.data)
        few = min(_FEW_NEIGHBOURS, points - 1)
        k = self.k or (NEIGHBOURS if points >= _FEW else few)
        if not 1 <= k <= points - 1:
            raise InputError(
                f"needs {max(k, 1)} neighbours besides the point itself but has {points} data "
                "points. Use more data or a smaller k"
            )
        return k


def build_penalty(penalty: Penalty, inputs: PenaltyInputs) -> AbstractPenalty:
    """Build a penalty from its name or build function; return one that is built already."""
    if isinstance(penalty, AbstractPenalty):
        return penalty
    name = name_penalty(penalty)
    build = find_penalty(name, inputs.space).load() if isinstance(penalty, str) else penalty
    if not callable(build):
        raise InputError(f"{penalty!r} is neither the name of a penalty nor a penalty")
    try:
        built = build(inputs)
    except InputError as error:
        raise InputError(f"penalty {name!r}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"penalty {name!r}: its build function failed with {reason}") from error
    if not isinstance(built, AbstractPenalty):
        raise InputError(
            f"penalty {name!r}: its build function returned a {type(built).__name__}. Return an "
            "AbstractPenalty"
        )
    return built


def name_penalty(penalty: Penalty) -> str:
    """Name a penalty in messages and records."""
    if isinstance(penalty, str):
        return penalty
    return getattr(penalty, "__name__", type(penalty).__name__)


def build_transport(inputs: PenaltyInputs) -> Transport:
    """Build `Transport` with its rate from held-out transitions."""
    return fit_transport(build_geodesic(inputs), inputs)


def build_extrapolation(inputs: PenaltyInputs) -> Extrapolation:
    """Build the part of `Transport` that grows away from the data."""
    return Extrapolation(build_geodesic(inputs), build_forward(inputs))


def build_geodesic(inputs: PenaltyInputs) -> GeodesicDistance:
    """Build the geodesic distance under Theorem 2's metric."""
    k, metric, images = inputs.neighbours, build_composite(inputs.latent_model), None
    if inputs.segments:
        images = Images.of(metric, inputs.data.embeddings, inputs.segments)
    return GeodesicDistance(inputs.data.index, metric, k=k, shortlist=k, images=images)


def build_euclidean(inputs: PenaltyInputs) -> EuclideanDistance:
    """Build the Euclidean distance, in either space."""
    return EuclideanDistance(inputs.data.index, k=inputs.neighbours)


def build_unusual_action(inputs: PenaltyInputs) -> UnusualAction:
    """Build `UnusualAction` with its kernel from held-out transitions."""
    return fit_unusual_action(inputs.latent_model, inputs.data, inputs.held_out)


def build_guard(inputs: PenaltyInputs) -> Guard:
    """Build `Guard`: the larger of a distance and `UnusualAction`."""
    return combine(build_euclidean(inputs), build_unusual_action(inputs), inputs.held_out)


def build_ensemble(inputs: PenaltyInputs) -> Ensemble:
    """Build the disagreement of the decoders."""
    return Ensemble(inputs.latent_model)


def build_aleatoric(inputs: PenaltyInputs) -> Aleatoric:
    """Build the largest decoder σ."""
    return Aleatoric(inputs.latent_model)


def build_forward(inputs: PenaltyInputs) -> ForwardNoise:
    """Build σ of the forward model, in units of the normalised state."""
    model = inputs.latent_model
    state_size = model.decoders.mean.layers[-1].weight.shape[-2]
    return ForwardNoise(build_composite(model), state_size)


def build_ambient(inputs: PenaltyInputs) -> Ambient:
    """Build the distance in normalised state space."""
    return Ambient(inputs.latent_model, prepare(inputs.data.rows), k=inputs.neighbours)


def build_nothing(inputs: PenaltyInputs) -> Nothing:
    """Build the penalty that is zero everywhere."""
    del inputs
    return Nothing()


def choose_segments(model: LatentModel, data: Transitions) -> int:
    """Choose one segment where the latent space has a dimension for every change of state.

    There a chord is as good as a geodesic. Elsewhere the path between matters: two segments.
    """
    return 1 if model.latent_size >= min(_ENOUGH_DIMENSIONS, data.states.shape[1]) else 2


class Stepped(eqx.Module):
    """`e -> (μ_F, σ_F)`."""

    model: LatentModel

    def __call__(self, e: Float[Array, " embedding"]) -> tuple[Array, Array]:
        predicted = self.model.forward(e)
        return predicted.mean, jnp.sqrt(predicted.variance)


class Decoded(eqx.Module):
    """`z -> (μ_D, σ_D)` of every decoder."""

    model: LatentModel

    def __call__(self, z: Float[Array, " latent"]) -> tuple[Array, Array]:
        decoded = self.model.decode(z)
        return decoded.mean, jnp.sqrt(decoded.variance)


class DecodedStep(eqx.Module):
    """`e -> (μ_D, σ_D)(μ_F(e))`: the decoders at the forward model's mean."""

    model: LatentModel

    def __call__(self, e: Float[Array, " embedding"]) -> tuple[Array, Array]:
        return Decoded(self.model)(self.model.forward(e).mean)


def build_metric(model: LatentModel, name: MetricName = "composite") -> AbstractMetric:
    """Build the metric that the model pulls back to its embedding space.

    `composite` is Theorem 2's, `decoder` that of the decoders alone at the mean of F.
    """
    return EnsemblePullback(DecodedStep(model)) if name == "decoder" else build_composite(model)


def build_composite(model: LatentModel) -> Composite:
    """Build Theorem 2's metric of forward model and decoders."""
    return Composite(Stepped(model), Decoded(model))


def fit_transport(geodesic: GeodesicDistance, inputs: PenaltyInputs) -> Transport:
    """Build `Transport` over this distance, with its rate from held-out transitions."""
    forward = build_forward(inputs)
    unfinished = Transport(geodesic, inputs.data.residuals, forward, jnp.zeros(()))
    beta = growth_rate(unfinished, inputs.held_out)
    return eqx.tree_at(lambda penalty: penalty.beta, unfinished, beta)


def growth_rate(penalty: Transport, held_out: EmbeddedData) -> Float[Array, ""]:
    """Estimate `β`: the median of `|ε(e) − mean εₖ| / (σ_G(e) d̄(e))` on held-out transitions.

    Their error is known. The denominator is kept above a tenth of its median: between near
    duplicates the residuals differ by noise, which says nothing about a rate.
    """
    rows = choose_evenly(held_out, _HELD_OUT)
    near, far = _measure_terms(penalty, held_out.embeddings[rows])
    typical = jnp.median(far)
    if not typical > 0:
        note("held-out transitions repeat the training data, so transport leaves distance out")
        return jnp.zeros(())
    rates = jnp.abs(held_out.residuals[rows] - near) / jnp.maximum(far, _LEAST_FRACTION * typical)
    return jnp.median(rates)


@eqx.filter_jit
def _measure_terms(
    penalty: Transport, embeddings: Float[Array, "n embedding"]
) -> tuple[Array, Array]:
    return map_rows(penalty.terms, penalty.points, embeddings)
