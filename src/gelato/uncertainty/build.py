"""Build penalties, and the metrics they measure distance with, from a fitted model and its data."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.data.transitions import Transitions, choose_evenly
from gelato.errors import InputError, UserCodeError
from gelato.geometry import Composite, draw_projection, prepare
from gelato.model.latent import LatentModel
from gelato.progress import note
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.guard import Guard, UnusualAction, combine, fit_unusual_action
from gelato.uncertainty.penalty import (
    LONG,
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

# A name, a penalty that is built already, or a function that builds one from `PenaltyInputs`.
Penalty = str | AbstractPenalty | Callable[["PenaltyInputs"], AbstractPenalty]
NEIGHBOURS = 20
# The paper's K. It is used for small datasets, where twenty neighbours are not local.
_SMALL_DATA_NEIGHBOURS, _SMALL_DATA_ROWS = 5, 1_000
# In `estimate_growth_rate`, the denominator is at least this fraction of its median.
_SMALLEST_DENOMINATOR = 0.1
_HELD_OUT = 1024
# With at least this many latent dimensions, chords and geodesics rank state-actions the same way
# (docs/research/uncertainty.md).
_CHORD_DIMENSIONS = 16


@dataclass(frozen=True)
class PenaltyInputs:
    """The inputs of a penalty's build function.

    `model` is the latent model, or the dynamics in state space. `data` and `held_out` are the
    training and held-out transitions in the space that the penalty works in. `k` is the number of
    neighbours (default: 20, or 5 with fewer than 1,000 transitions). With `segments`, lengths are
    polygon lengths between images of the data (see `Images`), not lengths of solved geodesics.
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
        few = min(_SMALL_DATA_NEIGHBOURS, points - 1)
        k = self.k or (NEIGHBOURS if points >= _SMALL_DATA_ROWS else few)
        if not 1 <= k <= points - 1:
            raise InputError(
                f"{max(k, 1)} neighbours besides the point itself are needed, but there are only "
                f"{points} data points. Use more data or a smaller k"
            )
        return k


def build_penalty(penalty: Penalty, inputs: PenaltyInputs) -> AbstractPenalty:
    """Build a penalty from its name or build function; return one that is built already."""
    if isinstance(penalty, AbstractPenalty):
        return penalty
    name = name_penalty(penalty)
    build = find_penalty(name, inputs.space).load() if isinstance(penalty, str) else penalty
    if not callable(build):
        raise InputError(
            f"{penalty!r} is not a penalty. Pass a registered name, an AbstractPenalty or a build "
            "function"
        )
    try:
        built = build(inputs)
    except InputError as error:
        raise InputError(f"penalty {name!r}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserCodeError(f"penalty {name!r}: its build function failed with {reason}") from error
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
    """Build the geodesic distance under the metric of Theorem 2."""
    model, k, images = inputs.latent_model, inputs.neighbours, None
    metric = build_composite(model)
    if inputs.segments:
        projection = None
        if model.observed.size > LONG:
            size = 2 * model.members * model.forwards * model.observed.size
            projection = draw_projection(size, key=jax.random.key(0))
        images = Images.compute(metric, inputs.data.embeddings, inputs.segments, projection)
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
    return ForwardNoise(build_composite(model), model.observed.size)


def build_ambient(inputs: PenaltyInputs) -> Ambient:
    """Build the distance in normalised state space."""
    if inputs.latent_model.observed.images:
        raise InputError("distances between images say little; use a penalty in the latent space")
    return Ambient(inputs.latent_model, prepare(inputs.data.rows), k=inputs.neighbours)


def build_no_penalty(inputs: PenaltyInputs) -> Nothing:
    """Build the penalty that is zero everywhere."""
    del inputs
    return Nothing()


def choose_segments(model: LatentModel, data: Transitions) -> int:
    """Choose the number of segments: one if `latent_size ≥ min(16, state size)`, because a chord is
    then as good as a geodesic; otherwise two, because the path between the points matters.
    """
    return 1 if model.latent_size >= min(_CHORD_DIMENSIONS, data.states.shape[1]) else 2


class ForwardOutput(eqx.Module):
    """`e -> (μ_F, σ_F)`, the values of several forward networks one after the other."""

    model: LatentModel

    def __call__(self, e: Float[Array, " embedding"]) -> tuple[Array, Array]:
        predicted = self.model.predict_latents(e)
        return jnp.ravel(predicted.mean), jnp.sqrt(jnp.ravel(predicted.variance))


class DecoderOutput(eqx.Module):
    """`z -> (μ_D, σ_D)` of every decoder.

    If `z` holds the latent states of several forward networks, the outputs are those for the first
    one, then those for the second, and so on.
    """

    model: LatentModel

    def __call__(self, z: Float[Array, " latents"]) -> tuple[Array, Array]:
        if self.model.forwards == 1:
            decoded = self.model.decode(z)
        else:
            decoded = jax.vmap(self.model.decode)(z.reshape(-1, self.model.latent_size))
            decoded = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), decoded)
        return decoded.mean, jnp.sqrt(decoded.variance)


def build_composite(model: LatentModel) -> Composite:
    """Build the metric of Theorem 2 from all forward networks and decoders."""
    return Composite(ForwardOutput(model), DecoderOutput(model), members=model.forwards)


def fit_transport(geodesic: GeodesicDistance, inputs: PenaltyInputs) -> Transport:
    """Build `Transport` over this distance, with its rate from held-out transitions."""
    forward = build_forward(inputs)
    unfinished = Transport(geodesic, inputs.data.residuals, forward, jnp.zeros(()))
    beta = estimate_growth_rate(unfinished, inputs.held_out)
    return eqx.tree_at(lambda penalty: penalty.beta, unfinished, beta)


def estimate_growth_rate(penalty: Transport, held_out: EmbeddedData) -> Float[Array, ""]:
    """Estimate `β`: the median of `|ε(e) − mean εₖ| / (σ_G(e) d̄(e))` on held-out transitions.

    Their error is known. The denominator is kept above a tenth of its median: residuals of near
    duplicates differ only by noise, which is no information about the rate.
    """
    rows = choose_evenly(held_out, _HELD_OUT)
    near, far = _measure_terms(penalty, held_out.embeddings[rows])
    typical = jnp.median(far)
    if not typical > 0:
        note(
            "held-out transitions repeat the training data, so the penalty `transport` ignores "
            "distance (its rate β is 0)"
        )
        return jnp.zeros(())
    rates = jnp.abs(held_out.residuals[rows] - near) / jnp.maximum(
        far, _SMALLEST_DENOMINATOR * typical
    )
    return jnp.median(rates)


@eqx.filter_jit
def _measure_terms(
    penalty: Transport, embeddings: Float[Array, "n embedding"]
) -> tuple[Array, Array]:
    return map_rows(penalty.compute_terms, penalty.points, embeddings)
