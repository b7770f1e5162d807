"""Example of a penalty that works in the latent model and in state space.

`U(e)` is the distance to the nearest data point. In the latent model `e` is the embedding of a
state-action; in state space it is the pair `(s, a)` itself.
"""

import tempfile
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import gelato
from gelato.uncertainty import AbstractPenalty, PenaltyInputs


class NearestPoint(AbstractPenalty):
    """The Euclidean distance to the nearest data point."""

    others: Float[Array, "n embedding"]
    rows: Int[Array, " n"]

    def __call__(
        self, e: Float[Array, " embedding"], exclude: Int[Array, ""] | int = -1
    ) -> Float[Array, ""]:
        squared = jnp.sum((self.others - e) ** 2, axis=1)
        # A data point is not its own neighbour.
        return jnp.sqrt(jnp.min(jnp.where(self.rows == exclude, jnp.inf, squared)))


def build_nearest_point(inputs: PenaltyInputs) -> NearestPoint:
    """Build the penalty from at most 500 data points."""
    rows = jnp.arange(0, len(inputs.data), max(1, len(inputs.data) // 500))
    return NearestPoint(inputs.data.embeddings[rows], rows)


def register() -> None:
    """Register the penalty by name, for methods, `gelato trust` and `gelato uncertainty`."""
    gelato.register_penalty(
        "nearest-point", build_nearest_point, ("latent", "state"), "distance to the nearest point"
    )


def choose_tiny_parts(dataset: gelato.Dataset) -> gelato.Parts:
    """Return settings that run in seconds. Do not use them for real results."""
    parts = gelato.choose_parts(dataset, "small")
    model = replace(parts.latent.model, updates=200, variance_updates=50)
    sac = replace(parts.sac, updates=500, epoch=250, branches=50)
    ensemble = replace(parts.ensemble.ensemble, updates=200)
    return replace(
        parts,
        latent=replace(parts.latent, model=model),
        ensemble=replace(parts.ensemble, ensemble=ensemble),
        sac=sac,
        settings=gelato.TrainSettings(evaluations=1, episodes=2, points=2_000),
    )


def main() -> None:
    """Train with the penalty in both spaces."""
    register()
    dataset = gelato.load("four-rooms-hole,transitions=2000")
    parts = choose_tiny_parts(dataset)
    methods = []
    for name in ("gelato", "mopo"):
        method = gelato.make_method(name, parts)
        methods.append(replace(method, name=f"{name}-nearest", penalty="nearest-point"))
    with tempfile.TemporaryDirectory() as run:
        records = gelato.train(dataset, run, methods, settings=parts.settings)
    for record in records:
        print(record["method"], record["penalty"], record["mean_penalty"], record["return"])


if __name__ == "__main__":
    main()
