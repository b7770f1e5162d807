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

from gelato.arrays import take
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

    def apply(self, raw: Float[np.ndarray, "*batch"]) -> Float[np.ndarray, "*batch"]:
        """Do the same for values of NumPy, without compiling a program."""
        return np.maximum(raw - np.asarray(self.level), 0) / np.asarray(self.unit)


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
    return calibrate_on(penalty, take(data.embeddings, rows), rows, pairs, how=how)


def calibrate_on(
    penalty: AbstractPenalty,
    inside: Float[Array, "n embedding"],
    data_rows: Int[np.ndarray, " n"],
    outside: Float[Array, "m embedding"],
    *,
    how: Calibration = "default",
) -> Calibrated:
    """Compute the scale from embeddings of the data (with their row numbers) and from embeddings of
    out-of-distribution pairs. Row number −1 excludes no data point.
    """
    # NumPy compiles no program for each of these operations, which saves time and memory.
    on_data = np.asarray(penalise(penalty, inside, jax.device_put(data_rows.astype(np.int32))))
    beyond = penalise_in_parts(penalty, outside)
    if not (np.isfinite(on_data).all() and np.isfinite(beyond).all()):
        raise InputError(
            f"{type(penalty).__name__} is not finite on the data or out of distribution, so it "
            "cannot be calibrated"
        )
    level = np.float32(0) if how == "paper" else np.median(on_data)
    unit = max(on_data.max(), beyond.max()) if how == "paper" else np.median(beyond) - level
    if not unit > 0:
        if not isinstance(penalty, Nothing):
            note(
                f"{type(penalty).__name__} is not larger on out-of-distribution pairs than on the "
                "data, so calibration cannot scale it (unit = 1)"
            )
        unit = np.float32(1)
    level, unit = jax.device_put((np.float32(level), np.float32(unit)))
    return Calibrated(penalty, Scale(level, unit))


def penalise_in_parts(
    penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]
) -> Float[np.ndarray, " n"]:
    """Compute `U` of any number of embeddings in parts of one size.

    The program compiled for calibration serves all parts.
    """
    count = -(-len(embeddings) // SAMPLE)
    extra = count * SAMPLE - len(embeddings)
    padded = np.pad(np.asarray(embeddings), ((0, extra), (0, 0)), mode="edge")
    none = jax.device_put(np.full(SAMPLE, NO_EXCLUSION, np.int32))
    parts = jax.device_put(np.split(padded, count))
    found = [np.asarray(penalise(penalty, part, none)) for part in parts]
    return np.concatenate(found)[: len(embeddings)]
