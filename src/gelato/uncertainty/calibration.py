"""Calibration: one scale for every penalty, fixed once before a policy is trained, so that one λ means the same.

Distances to neighbours are not zero on the data itself. The default therefore subtracts the level on the data, each
point left out of its own neighbours, and divides by how far foreign pairs rise above it: data sits near 0, foreign
pairs near 1. `paper` divides by the largest value, as the paper does.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.model.latent import LatentModel, Scaling
from gelato.uncertainty.embedded import EmbeddedData, foreign_pairs
from gelato.uncertainty.penalty import AbstractPenalty, Embedded, Scalar, penalise

Calibration = Literal["default", "paper"]
SAMPLE = 512


class Calibrated(AbstractPenalty):
    """`max(0, (U(e) − level)/scale)`."""

    penalty: AbstractPenalty
    level: Scalar
    scale: Scalar

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        return self.adjust(self.penalty(e, leave_out))

    def adjust(self, raw: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The calibrated value of an uncalibrated one."""
        return jnp.maximum(raw - self.level, 0) / self.scale

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
    """Measure the penalty on the data, leaving each point out, and on foreign pairs, and fix its scale."""
    rows = np.random.default_rng(0).permutation(len(data))[:sample]
    inside = penalise(penalty, data.embeddings[rows], jnp.asarray(rows))
    foreign = foreign_pairs(model, scaling, data, len(rows), key=jax.random.key(0))
    outside = penalise(penalty, foreign, jnp.full(len(rows), -1))
    if how == "paper":
        level, scale = jnp.zeros(()), jnp.maximum(inside.max(), outside.max())
    else:
        level = jnp.median(inside)
        scale = jnp.median(outside) - level
    # A penalty that is the same everywhere (`Nothing`) or lower far from the data has no scale to give.
    return Calibrated(penalty, level, jnp.where(scale > 0, scale, 1.0))
