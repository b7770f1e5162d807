"""Calibration: one scale for every penalty, fixed once before a policy is trained, so that one λ means the same.

Distances to neighbours are not zero on the data itself. The default therefore subtracts the level on the data, each
point left out of its own neighbours, and divides by how far foreign pairs rise above it: data sits near 0, foreign
pairs near 1. `paper` divides by the largest value, as the paper does.
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
from gelato.uncertainty.embedded import EmbeddedData, foreign_pairs
from gelato.uncertainty.penalty import AbstractPenalty, Embedded, Nothing, Scalar, penalise

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

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        return self.scale(self.penalty(e, leave_out))

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
    foreign = foreign_pairs(model, scaling, data, len(rows), key=jax.random.key(0))
    return calibrate_on(penalty, data.embeddings[rows], jnp.asarray(rows), foreign, how=how)


def calibrate_on(
    penalty: AbstractPenalty,
    inside: Float[Array, "n embedding"],
    own_rows: Int[Array, " n"],
    outside: Float[Array, "m embedding"],
    *,
    how: Calibration = "default",
) -> Calibrated:
    """The same on given embeddings: of the data, with the row of each to leave out, and of foreign pairs."""
    on_data = penalise(penalty, inside, own_rows.astype(jnp.int32))
    beyond = penalise_in_parts(penalty, outside)
    if not bool(jnp.isfinite(on_data).all() & jnp.isfinite(beyond).all()):
        raise InputError(f"{type(penalty).__name__} is not finite on the data or beyond it; it cannot be calibrated")
    level = jnp.zeros(()) if how == "paper" else jnp.median(on_data)
    unit = jnp.maximum(on_data.max(), beyond.max()) if how == "paper" else jnp.median(beyond) - level
    if not unit > 0:
        if not isinstance(penalty, Nothing):
            note(f"{type(penalty).__name__} is no larger beyond the data than on it; its unit is left at 1")
        unit = jnp.ones(())
    return Calibrated(penalty, Scale(level, unit))


def penalise_in_parts(penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]) -> Float[Array, " n"]:
    """`U` of any number of embeddings, in parts of one size: the program that calibrated it serves them all."""
    count = -(-len(embeddings) // SAMPLE)
    padded = jnp.pad(embeddings, ((0, count * SAMPLE - len(embeddings)), (0, 0)), mode="edge")
    nobody = jnp.full(SAMPLE, -1, jnp.int32)
    parts = [penalise(penalty, part, nobody) for part in jnp.split(padded, count)]
    return jnp.concatenate(parts)[: len(embeddings)]
