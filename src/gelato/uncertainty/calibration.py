"""Put all penalties on one scale before training, so that the same λ works for all of them.

Distances to neighbours are not zero on the data. The default therefore subtracts the level: the
median on the data, where no point is its own neighbour. It divides by the unit: the median on
out-of-distribution pairs minus the level. Then data is near 0 and out-of-distribution pairs are
near 1. `paper` divides by the largest value, as the paper does.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.errors import InputError
from gelato.model.latent import LatentModel, Scaling
from gelato.progress import note
from gelato.uncertainty.embedded import EmbeddedData, sample_out_of_distribution
from gelato.uncertainty.penalty import (
    NO_EXCLUSION,
    AbstractPenalty,
    Embedded,
    Nothing,
    Scalar,
    penalise,
)

Calibration = Literal["default", "paper"]
SAMPLE = 256


class Scale(eqx.Module):
    """`U ↦ max(0, (U − level)/unit)`."""

    level: Scalar
    unit: Scalar

    def __call__(self, raw: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.maximum(raw - self.level, 0) / self.unit


class Calibrated(AbstractPenalty):
    """A penalty on the common scale."""

    penalty: AbstractPenalty
    scale: Scale

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return self.scale(self.penalty(e, exclude))

    @property
    def points(self) -> int:
        return self.penalty.points


def calibrate(
    penalty: AbstractPenalty,
    model: LatentModel,
    scaling: Scaling,
    data: EmbeddedData,
    *,
    how: Calibration = "default",
    sample: int = SAMPLE,
) -> Calibrated:
    """Fix the scale of a penalty from its values on the data and on out-of-distribution pairs.

    No data point is its own neighbour.
    """
    rows = np.random.default_rng(0).permutation(len(data))[:sample]
    pairs = sample_out_of_distribution(model, scaling, data, len(rows), key=jax.random.key(0))
    return calibrate_on(penalty, data.embeddings[rows], jnp.asarray(rows), pairs, how=how)


def calibrate_on(
    penalty: AbstractPenalty,
    inside: Float[Array, "n embedding"],
    data_rows: Int[Array, " n"],
    outside: Float[Array, "m embedding"],
    *,
    how: Calibration = "default",
) -> Calibrated:
    """Compute the scale from embeddings of the data (with their row numbers) and from embeddings of
    out-of-distribution pairs. Row number −1 excludes no data point.
    """
    on_data = penalise(penalty, inside, data_rows.astype(jnp.int32))
    beyond = penalise_in_parts(penalty, outside)
    if not bool(jnp.isfinite(on_data).all() & jnp.isfinite(beyond).all()):
        raise InputError(
            f"{type(penalty).__name__} is not finite on the data or out of distribution, so it "
            "cannot be calibrated"
        )
    level = jnp.zeros(()) if how == "paper" else jnp.median(on_data)
    unit = (
        jnp.maximum(on_data.max(), beyond.max()) if how == "paper" else jnp.median(beyond) - level
    )
    if not unit > 0:
        if not isinstance(penalty, Nothing):
            note(
                f"{type(penalty).__name__} is not larger on out-of-distribution pairs than on the "
                "data, so calibration cannot scale it (unit = 1)"
            )
        unit = jnp.ones(())
    return Calibrated(penalty, Scale(level, unit))


def penalise_in_parts(
    penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]
) -> Float[Array, " n"]:
    """Compute `U` of any number of embeddings in parts of one size.

    The program compiled for calibration serves all parts.
    """
    count = -(-len(embeddings) // SAMPLE)
    padded = jnp.pad(embeddings, ((0, count * SAMPLE - len(embeddings)), (0, 0)), mode="edge")
    none = jnp.full(SAMPLE, NO_EXCLUSION, jnp.int32)
    parts = [penalise(penalty, part, none) for part in jnp.split(padded, count)]
    return jnp.concatenate(parts)[: len(embeddings)]
