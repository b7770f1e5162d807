"""Penalties by name, as command lines and presets choose them."""

from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.data.transitions import Transitions, evenly
from gelato.errors import InputError
from gelato.geometry import AbstractMetric, Composite, EnsemblePullback, prepare
from gelato.model.latent import LatentModel
from gelato.progress import note
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.penalty import (
    AbstractPenalty,
    Aleatoric,
    Ambient,
    Ensemble,
    Euclidean,
    Extrapolation,
    Forward,
    Geodesic,
    Images,
    Nothing,
    Transport,
    chunked,
)

PenaltyName = Literal[
    "transport",
    "extrapolation",
    "geodesic",
    "euclidean",
    "ensemble",
    "aleatoric",
    "forward",
    "ambient",
    "none",
]
MetricName = Literal["composite", "decoder"]
Maker = Callable[[LatentModel, EmbeddedData, EmbeddedData], AbstractPenalty]
PENALTIES: tuple[PenaltyName, ...] = get_args(PenaltyName)
NEIGHBOURS = 20
# The paper's K, for data so small that twenty neighbours would be all over it.
_FEW_NEIGHBOURS, _FEW = 5, 1_000
_LEAST_SHARE = 0.1
_HELD_OUT = 1024
# Latent dimensions in which chords and solved geodesics order state-actions alike (docs/driving.md).
_ROOM = 16


def maker(name: str) -> Maker:
    """The penalty of that name as a function of model, embedded data and embedded held-out data."""
    return lambda model, data, held_out: build_penalty(name, model, data, held_out)


def build_penalty(
    name: str,
    model: LatentModel,
    data: EmbeddedData,
    held_out: EmbeddedData,
    *,
    k: int | None = None,
    shortlist: int | None = None,
    metric: MetricName = "composite",
    segments: int | None = None,
) -> AbstractPenalty:
    """The penalty of that name over embedded training data; `held_out` sets what has to be estimated.

    With `segments`, lengths are those of polygons between images of the data instead of solved geodesics (`Images`).
    """
    k = k or (NEIGHBOURS if len(data) >= _FEW else min(_FEW_NEIGHBOURS, len(data) - 1))
    shortlist = shortlist or k
    if not 1 <= k <= shortlist <= len(data) - 1:
        raise InputError(
            f"{max(k, 1)} neighbours out of {max(shortlist, 1)} are sought, but only {len(data) - 1} points can be "
            "one; give more"
        )

    def geodesic() -> Geodesic:
        images = Images.of(composite(model), data.embeddings, segments) if segments and metric == "composite" else None
        return Geodesic(data.index, model_metric(model, metric), k=k, shortlist=shortlist, images=images)

    makers: dict[str, Callable[[], AbstractPenalty]] = {
        "transport": lambda: transport(geodesic(), model, data, held_out),
        "extrapolation": lambda: Extrapolation(geodesic(), forward(model)),
        "geodesic": geodesic,
        "euclidean": lambda: Euclidean(data.index, k=k),
        "ensemble": lambda: Ensemble(model),
        "aleatoric": lambda: Aleatoric(model),
        "forward": lambda: forward(model),
        "ambient": lambda: Ambient(model, prepare(data.rows), k=k),
        "none": Nothing,
    }
    if name not in makers:
        raise InputError(f"penalty {name!r} is not one of {', '.join(makers)}")
    return makers[name]()


def segments_for(model: LatentModel, data: Transitions) -> int:
    """One where the latent space has room for every change of state, so that a chord is as good as a geodesic."""
    return 1 if model.latent_size >= min(_ROOM, data.states.shape[1]) else 2


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


def model_metric(model: LatentModel, name: MetricName = "composite") -> AbstractMetric:
    """The metric the model pulls back to its embedding space: Theorem 2's, or the decoders' alone at the mean of F."""
    return EnsemblePullback(DecodedStep(model)) if name == "decoder" else composite(model)


def composite(model: LatentModel) -> Composite:
    """Theorem 2's metric of forward model and decoders."""
    return Composite(Stepped(model), Decoded(model))


def forward(model: LatentModel) -> Forward:
    """The forward model's own σ in units of the normalised state."""
    return Forward(composite(model), model.decoders.mean.layers[-1].weight.shape[-2])


def transport(geodesic: Geodesic, model: LatentModel, data: EmbeddedData, held_out: EmbeddedData) -> Transport:
    """The `Transport` penalty with its rate from held-out transitions."""
    unfinished = Transport(geodesic, data.residuals, forward(model), jnp.zeros(()))
    return eqx.tree_at(lambda penalty: penalty.beta, unfinished, growth_rate(unfinished, held_out))


def growth_rate(penalty: Transport, held_out: EmbeddedData) -> Float[Array, ""]:
    """`β`: the median of `|ε(e) − mean εₖ| / (σ_G(e) d̄(e))` over held-out transitions, whose error is known.

    The denominator is kept above a tenth of its median: between near duplicates the residuals differ by noise, and
    that says nothing of a rate.
    """
    rows = evenly(held_out, _HELD_OUT)
    near, far = _terms(penalty, held_out.embeddings[rows])
    typical = jnp.median(far)
    if not typical > 0:
        note("held-out transitions repeat the data, so that no rate of growth can be had; distance is left out")
        return jnp.zeros(())
    rates = jnp.abs(held_out.residuals[rows] - near) / jnp.maximum(far, _LEAST_SHARE * typical)
    return jnp.median(rates)


@eqx.filter_jit
def _terms(penalty: Transport, embeddings: Float[Array, "n embedding"]) -> tuple[Array, Array]:
    return chunked(penalty.terms, penalty.points, embeddings)
