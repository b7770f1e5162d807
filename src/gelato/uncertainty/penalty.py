"""Penalties `U(e) ≥ 0`: how little the model can be trusted at one embedded state-action.

All have the same signature: the paper's methods differ only in this value.

| penalty | `U(e)` |
|---|---|
| `Transport` | the neighbours' residuals, carried to `e` along geodesics (ours, the default) |
| `Extrapolation` | the part of it that grows with the distance from the data |
| `GeodesicDistance` | mean geodesic distance to the `K` nearest data points (the paper's) |
| `EuclideanDistance` | the same by Euclidean distance in the embedding space (GELATO-ℓ2) |
| `UnusualAction`, `Guard` | how rare the action is at similar states (`guard.py`) |
| `Ensemble` | disagreement of the decoders' means |
| `Aleatoric` | largest decoder σ (MOPO's choice) |
| `ForwardNoise` | σ of the forward model, measured by the metric of the decoders |
| `Ambient` | distance to the `K` nearest `(s, a, s′)` in normalised state space (SUMO's) |
| `Nothing` | 0 |
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gelato.geometry import (
    AbstractMetric,
    AbstractSolver,
    Composite,
    Index,
    Near,
    distance,
    find_neighbours,
    freeze,
    spread,
)
from gelato.geometry.neighbours import chunk_size
from gelato.model.latent import LatentModel

Embedded = Float[Array, " embedding"]
Scalar = Float[Array, ""]
Tree = TypeVar("Tree")
# Row number that leaves no data point out.
NO_EXCLUSION = -1
# The most distances held in memory: 1 GiB of floats.
_BUDGET = 2**28


class AbstractPenalty(eqx.Module):
    """`U(e)` for one embedding.

    If `e` is a data point, `exclude` is its row: a point is not its own neighbour.
    """

    @abstractmethod
    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        """`U(e) ≥ 0`."""

    @property
    def points(self) -> int:
        """How many distances one call computes; this bounds the calls in one chunk."""
        return 1


class Nothing(AbstractPenalty):
    """`U = 0`: MBPO's."""

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return jnp.zeros((), e.dtype)


class EuclideanDistance(AbstractPenalty):
    """`U(e) = (1/K) Σₖ ‖e − eₖ‖` over the `K` nearest data points."""

    data: Index
    k: int = eqx.field(static=True, default=20)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return jnp.mean(find_neighbours(self.data, e, self.k, exclude)[1])

    @property
    def points(self) -> int:
        return len(self.data)


class Images(eqx.Module):
    """Every data point in the space that the metric is pulled back from.

    That is `Φ(μ_F(eₖ))`, `σ_F(eₖ)` and `diag(Ḡ)` there. Lengths are those of polygons between
    images of `segments` steps along the straight line. One segment is the chord, a lower bound of
    the geodesic's length. Two are no shorter, and the point between must be near the data too.
    """

    outputs: Float[Array, "*batch n ambient"]
    scales: Float[Array, "*batch n latent"]
    weights: Float[Array, "*batch n latent"]
    segments: int = eqx.field(static=True)

    @staticmethod
    @eqx.filter_jit
    def of(metric: Composite, points: Float[Array, "n embedding"], segments: int) -> "Images":
        """Compute the images of points, in chunks of bounded memory."""

        def one(e: Embedded) -> tuple[Array, Array, Array]:
            mean, scale = metric.forward(e)
            return (
                metric.phi(mean),
                scale,
                jnp.diag(metric.scale_term.weights(metric.phi, metric.samples(e))),
            )

        outputs, scales, weights = jax.lax.map(one, points, batch_size=min(4096, len(points)))
        return Images(outputs, scales, weights, segments)

    def lengths(
        self,
        metric: Composite,
        e: Embedded,
        rows: Int[Array, " k"],
        points: Float[Array, "k embedding"],
    ) -> Float[Array, " k"]:
        """Return the lengths from `e` to these rows of the data; `points` are their embeddings."""
        mean, scale = metric.forward(e)
        outputs, noise = (
            self.outputs[rows],
            jnp.sum(self.weights[rows] * (self.scales[rows] - scale) ** 2, axis=1),
        )

        def inner(t: float) -> Float[Array, "k ambient"]:
            return jax.vmap(lambda point: metric.phi(metric.forward(e + t * (point - e))[0]))(
                points
            )

        between = [inner(step / self.segments) for step in range(1, self.segments)]
        polygon = jnp.stack([jnp.broadcast_to(metric.phi(mean), outputs.shape), *between, outputs])
        steps = jnp.sum(jnp.diff(polygon, axis=0) ** 2, axis=-1) + noise / self.segments**2
        return jnp.sum(jnp.sqrt(steps), axis=0)


class GeodesicDistance(AbstractPenalty):
    """`U(e) = (1/K) Σₖ d_G(e, eₖ)` over the `K` nearest data points under the metric.

    Neighbours come from a Euclidean shortlist. With `images`, lengths are taken between images of
    the data instead of solved for, at a hundredth of the cost. Where the latent space is no smaller
    than the state, chords are within a percent for near neighbours. Where it is smaller, the path
    between matters, and two segments measure it (docs/research/uncertainty.md).
    """

    data: Index
    metric: AbstractMetric
    k: int = eqx.field(static=True, default=20)
    shortlist: int = eqx.field(static=True, default=20)
    solver: AbstractSolver = Near()
    images: Images | None = None

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return jnp.mean(self.neighbours(e, exclude)[1])

    def neighbours(
        self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION
    ) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
        """Return the `K` nearest rows under the metric and their geodesic distances."""
        rows, _ = find_neighbours(self.data, e, max(self.k, self.shortlist), exclude)
        others, metric = self.data.data[rows], self.metric
        if self.images is not None and isinstance(metric, Composite):
            lengths = self.images.lengths(metric, e, rows, others)
        else:
            # The σ_F term of Theorem 2 changes slowly: its weights at `e` serve all neighbours, at
            # a tenth of the cost.
            frozen = freeze(metric, e) if isinstance(metric, Composite) else metric
            lengths = jax.vmap(lambda other: distance(frozen, e, other, self.solver))(others)
        order = jnp.argsort(lengths)[: self.k]
        return rows[order], lengths[order]

    @property
    def points(self) -> int:
        return len(self.data)


class Transport(AbstractPenalty):
    """`U(e) = (1/K) Σₖ (εₖ + β σ_G(e) d_G(e, eₖ))`: the error nearby plus its growth on the way.

    `εₖ = ‖s′ₖ − ŝ′ₖ‖/√d_S` is known, since a neighbour is a transition we have. If the error
    changes along the way by at most `β σ_G` for each unit of length, faster where the forward model
    itself is unsure (`ForwardNoise`), then every summand bounds the error at `e` (the triangle
    inequality along the geodesic), and so does their mean. `β` is the typical rate on held-out
    transitions (`growth_rate`).
    """

    geodesic: GeodesicDistance
    residuals: Float[Array, " n"]
    forward: "ForwardNoise"
    beta: Float[Array, ""]

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        near, far = self.terms(e, exclude)
        return near + self.beta * far

    def terms(
        self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION
    ) -> tuple[Scalar, Scalar]:
        """Return the neighbours' mean residual, and `σ_G(e)` times their mean distance."""
        rows, lengths = self.geodesic.neighbours(e, exclude)
        return jnp.mean(self.residuals[rows]), self.forward(e) * jnp.mean(lengths)

    @property
    def points(self) -> int:
        return self.geodesic.points


class Extrapolation(AbstractPenalty):
    """`U(e) = σ_G(e) (1/K) Σₖ d_G(e, eₖ)`: the part of `Transport` that grows with distance.

    It does not keep a policy away from places that are hard to predict but in the data.
    """

    geodesic: GeodesicDistance
    forward: "ForwardNoise"

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return self.forward(e) * self.geodesic(e, exclude)

    @property
    def points(self) -> int:
        return self.geodesic.points


class Ensemble(AbstractPenalty):
    """`U(e) = √(1/d_S Σⱼ Varᵢ μ_D^i(μ_F(e))ⱼ)`: how much the bootstrapped decoders disagree."""

    model: LatentModel

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return jnp.sqrt(
            jnp.mean(jnp.var(self.model.decode_means(self.model.forward(e).mean), axis=0))
        )


class Aleatoric(AbstractPenalty):
    """`U(e) = maxᵢ √(1/d_S) ‖σ_D^i(μ_F(e))‖`: the largest error a decoder expects (MOPO's)."""

    model: LatentModel

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        variances = self.model.decode_variances(self.model.forward(e).mean)
        return jnp.sqrt(jnp.max(jnp.mean(variances, axis=1)))


class ForwardNoise(AbstractPenalty):
    """`U(e) = σ_G(e) = √(Σₖ σ_F(e)ₖ² Ḡₖₖ / d_S)`: the forward model's noise in the next state.

    Noise in latent directions that the decoders ignore can have any size. The metric gives those
    directions no weight.
    """

    metric: Composite
    state_size: int = eqx.field(static=True)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return spread(self.metric, e) / jnp.sqrt(self.state_size)


class Ambient(AbstractPenalty):
    """`U(e) = (1/K) Σₖ ‖(ŝ, a, ŝ′) − (sₖ, aₖ, s′ₖ)‖` in normalised state space (SUMO's).

    It uses no latent geometry.
    """

    model: LatentModel
    rows: Index
    k: int = eqx.field(static=True, default=20)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        z, a = self.model.embedding.inverse(e)
        state, successor = (
            jnp.mean(self.model.decode_means(x), axis=0) for x in (z, self.model.forward(e).mean)
        )
        return jnp.mean(
            find_neighbours(self.rows, jnp.concatenate([state, a, successor]), self.k, exclude)[1]
        )

    @property
    def points(self) -> int:
        return len(self.rows)


@eqx.filter_jit
def penalise(
    penalty: AbstractPenalty,
    embeddings: Float[Array, "m embedding"],
    exclude: Int[Array, " m"] | None = None,
) -> Float[Array, " m"]:
    """Compute `U` of many embeddings in chunks of bounded memory."""
    rows = jnp.full(len(embeddings), NO_EXCLUSION) if exclude is None else exclude
    return map_rows(penalty, penalty.points, embeddings, rows)


def map_rows(function: Callable[..., Tree], points: int, *arrays: Array) -> Tree:
    """Map over rows in chunks that hold a bounded number of distances, `points` for each row.

    Unlike a loop over chunks on the host, it can be part of a compiled program.
    """
    # Geodesics to twenty neighbours hold far more than the distances.
    most = max(1, min(_BUDGET // points, chunk_size()))
    # Chunks of equal size where possible: every size is another program to compile.
    rows = max(1, len(arrays[0]))
    chunks = -(-rows // most)
    return jax.lax.map(lambda row: function(*row), arrays, batch_size=-(-rows // chunks))
