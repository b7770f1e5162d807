"""Penalties `U(e)`: how little the model is to be trusted at one embedded state-action, never negative.

Every one is a value with the same signature, so that swapping it is all that tells the paper's methods apart:

| penalty | `U(e)` |
|---|---|
| `Transport` | the neighbours' own residuals, carried to `e` along the geodesics (ours, the default) |
| `Extrapolation` | the part of it that grows on the way from the data |
| `Geodesic` | mean geodesic distance to the `K` nearest data points under the metric (the paper's) |
| `Euclidean` | the same by plain distance in the embedding space (GELATO-ℓ2) |
| `Ensemble` | disagreement of the decoders' means |
| `Aleatoric` | largest decoder σ (MOPO's choice) |
| `Forward` | the forward model's own σ, as the decoders' metric measures it |
| `Ambient` | distance to the `K` nearest `(s, a, s′)` in normalised state space (SUMO's choice) |
| `Nothing` | 0 |
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.geometry import AbstractMetric, AbstractSolver, Composite, Index, Near, distance, freeze, grouped, spread
from gelato.geometry.neighbours import at_once
from gelato.model.latent import LatentModel

Embedded = Float[Array, " embedding"]
Scalar = Float[Array, ""]
# Floats of distances held at once: 1 GiB.
_BUDGET = 2**28


class AbstractPenalty(eqx.Module):
    """`U(e)`, for one embedding; `leave_out` is the row of the data that `e` itself is, so that it is no neighbour."""

    @abstractmethod
    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        """`U(e) ≥ 0`."""

    @property
    def points(self) -> int:
        """How many data points a call measures the distance to, which bounds how many calls are made at once."""
        return 1


class Nothing(AbstractPenalty):
    """`U = 0`: MBPO's."""

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        del leave_out
        return jnp.zeros((), e.dtype)


class Euclidean(AbstractPenalty):
    """`U(e) = (1/K) Σₖ ‖e − eₖ‖` over the `K` nearest data points."""

    data: Index
    k: int = eqx.field(static=True, default=20)

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        return jnp.mean(grouped(self.data, e, self.k, leave_out)[1])

    @property
    def points(self) -> int:
        return len(self.data)


class Images(eqx.Module):
    """Every data point in the space that the metric is pulled back from: `Φ(μ_F(eₖ))`, `σ_F(eₖ)` and `diag(Ḡ)` there.

    Lengths to a point are those of polygons between images, `segments` of them along the straight line: one is the
    chord, the least that a geodesic can have; with two, no less, and what lies between must lie near the data as well.
    """

    outputs: Float[Array, "*batch n ambient"]
    scales: Float[Array, "*batch n latent"]
    weights: Float[Array, "*batch n latent"]
    segments: int = eqx.field(static=True)

    @staticmethod
    @eqx.filter_jit
    def of(metric: Composite, points: Float[Array, "n embedding"], segments: int) -> "Images":
        """The images of points, in chunks of bounded memory."""

        def one(e: Embedded) -> tuple[Array, Array, Array]:
            mean, scale = metric.forward(e)
            return metric.phi(mean), scale, jnp.diag(metric.scale_term.weights(metric.phi, metric.samples(e)))

        outputs, scales, weights = jax.lax.map(one, points, batch_size=min(4096, len(points)))
        return Images(outputs, scales, weights, segments)

    def lengths(
        self, metric: Composite, e: Embedded, rows: Int[Array, " k"], points: Float[Array, "k embedding"]
    ) -> Float[Array, " k"]:
        """Lengths from `e` to some rows, which are `points`."""
        mean, scale = metric.forward(e)
        outputs, noise = self.outputs[rows], jnp.sum(self.weights[rows] * (self.scales[rows] - scale) ** 2, axis=1)

        def inner(t: float) -> Float[Array, "k ambient"]:
            return jax.vmap(lambda point: metric.phi(metric.forward(e + t * (point - e))[0]))(points)

        between = [inner(step / self.segments) for step in range(1, self.segments)]
        polygon = jnp.stack([jnp.broadcast_to(metric.phi(mean), outputs.shape), *between, outputs])
        steps = jnp.sum(jnp.diff(polygon, axis=0) ** 2, axis=-1) + noise / self.segments**2
        return jnp.sum(jnp.sqrt(steps), axis=0)


class Geodesic(AbstractPenalty):
    """`U(e) = (1/K) Σₖ d_G(e, eₖ)` over the `K` data points nearest under the metric, out of a Euclidean shortlist.

    With `images`, lengths are taken between images of the data instead of solved for, at a hundredth of the cost. Where
    the latent space is no smaller than the state, chords are within a percent for near neighbours; where it is smaller,
    the way between matters, and two segments see it (docs/uncertainty.md).
    """

    data: Index
    metric: AbstractMetric
    k: int = eqx.field(static=True, default=20)
    shortlist: int = eqx.field(static=True, default=20)
    solver: AbstractSolver = Near()
    images: Images | None = None

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        return jnp.mean(self.neighbours(e, leave_out)[1])

    def neighbours(
        self, e: Embedded, leave_out: Int[Array, ""] | int = -1
    ) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
        """The `K` nearest rows under the metric and their geodesic distances."""
        rows, _ = grouped(self.data, e, max(self.k, self.shortlist), leave_out)
        others, metric = self.data.data[rows], self.metric
        if self.images is not None and isinstance(metric, Composite):
            lengths = self.images.lengths(metric, e, rows, others)
        else:
            # The σ_F term of Theorem 2 changes slowly: its weights at `e` serve all neighbours, at a tenth of the cost.
            frozen = freeze(metric, e) if isinstance(metric, Composite) else metric
            lengths = jax.vmap(lambda other: distance(frozen, e, other, self.solver))(others)
        order = jnp.argsort(lengths)[: self.k]
        return rows[order], lengths[order]

    @property
    def points(self) -> int:
        return len(self.data)


class Transport(AbstractPenalty):
    """`U(e) = (1/K) Σₖ (εₖ + β σ_G(e) d_G(e, eₖ))`: the error nearby, and what may be added on the way here.

    `εₖ = ‖s′ₖ − ŝ′ₖ‖/√d_S` is known, since a neighbour is a transition we have. If the error changes along the way by
    at most `β σ_G` for each unit of length, faster where the forward model itself is unsure (`Forward`), then every
    summand bounds the error at `e` (the triangle inequality along the geodesic), and so does their mean. `β` is the
    typical rate on held-out transitions (`growth_rate`).
    """

    geodesic: Geodesic
    residuals: Float[Array, " n"]
    forward: "Forward"
    beta: Float[Array, ""]

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        near, far = self.terms(e, leave_out)
        return near + self.beta * far

    def terms(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> tuple[Scalar, Scalar]:
        """The neighbours' mean residual and `σ_G(e)` times their mean geodesic distance."""
        rows, lengths = self.geodesic.neighbours(e, leave_out)
        return jnp.mean(self.residuals[rows]), self.forward(e) * jnp.mean(lengths)

    @property
    def points(self) -> int:
        return self.geodesic.points


class Extrapolation(AbstractPenalty):
    """`U(e) = σ_G(e) (1/K) Σₖ d_G(e, eₖ)`: the part of `Transport` that grows on the way from the data.

    A policy is not to be kept from places that are merely hard to predict, as long as the data is there.
    """

    geodesic: Geodesic
    forward: "Forward"

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        return self.forward(e) * self.geodesic(e, leave_out)

    @property
    def points(self) -> int:
        return self.geodesic.points


class Ensemble(AbstractPenalty):
    """`U(e) = √(1/d_S Σⱼ Varᵢ μ_D^i(μ_F(e))ⱼ)`: how much the bootstrapped decoders disagree."""

    model: LatentModel

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        del leave_out
        return jnp.sqrt(jnp.mean(jnp.var(self.model.decoded_means(self.model.forward(e).mean), axis=0)))


class Aleatoric(AbstractPenalty):
    """`U(e) = maxᵢ √(1/d_S) ‖σ_D^i(μ_F(e))‖`: the noisiest decoder's own estimate of its error (MOPO's choice)."""

    model: LatentModel

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        del leave_out
        variances = self.model.decoded_variances(self.model.forward(e).mean)
        return jnp.sqrt(jnp.max(jnp.mean(variances, axis=1)))


class Forward(AbstractPenalty):
    """`U(e) = σ_G(e) = √(Σₖ σ_F(e)ₖ² Ḡₖₖ / d_S)`: how unsure the forward model is of the next state.

    Latent directions that the decoders ignore have noise of any size; the metric gives them no weight.
    """

    metric: Composite
    state_size: int = eqx.field(static=True)

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        del leave_out
        return spread(self.metric, e) / jnp.sqrt(self.state_size)


class Ambient(AbstractPenalty):
    """`U(e) = (1/K) Σₖ ‖(ŝ, a, ŝ′) − (sₖ, aₖ, s′ₖ)‖` in normalised state space: no latent geometry (SUMO's choice)."""

    model: LatentModel
    rows: Index
    k: int = eqx.field(static=True, default=20)

    def __call__(self, e: Embedded, leave_out: Int[Array, ""] | int = -1) -> Scalar:
        z, a = self.model.embedding.inverse(e)
        state, successor = (jnp.mean(self.model.decoded_means(x), axis=0) for x in (z, self.model.forward(e).mean))
        return jnp.mean(grouped(self.rows, jnp.concatenate([state, a, successor]), self.k, leave_out)[1])

    @property
    def points(self) -> int:
        return len(self.rows)


@eqx.filter_jit
def penalise(
    penalty: AbstractPenalty, embeddings: Float[Array, "m embedding"], leave_out: Int[Array, " m"] | None = None
) -> Float[Array, " m"]:
    """`U` of many embeddings, compiled or inside a compiled program, in chunks of bounded memory."""
    rows = jnp.full(len(embeddings), -1) if leave_out is None else leave_out
    return chunked(penalty, penalty.points, embeddings, rows)


def chunked(function: Callable[..., Any], points: int, *arrays: Array) -> Any:
    """`vmap` in chunks, so that no more than a fixed number of distances is held at once."""
    # Geodesics to twenty neighbours each hold far more than the distances.
    most = max(1, min(_BUDGET // points, at_once()))
    # Chunks of one size where that goes: another is another program to compile.
    rows = max(1, len(arrays[0]))
    chunks = -(-rows // most)
    return jax.lax.map(lambda row: function(*row), arrays, batch_size=-(-rows // chunks))
