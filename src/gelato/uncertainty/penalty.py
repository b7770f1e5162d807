"""Penalties `U(e) ≥ 0`: larger where the model is less reliable at an embedded state-action.

All penalties have the same signature. The paper's methods differ only in their penalty.

| penalty | `U(e)` |
|---|---|
| `Transport` | the neighbours' residuals, carried to `e` along geodesics (ours, the default) |
| `Extrapolation` | the part of it that grows with the distance from the data |
| `GeodesicDistance` | mean geodesic distance to the `K` nearest data points, as in the paper |
| `EuclideanDistance` | the same by Euclidean distance in the embedding space (GELATO-ℓ2) |
| `UnusualAction`, `Guard` | how rare the action is at similar states (`guard.py`) |
| `Ensemble` | disagreement of the decoders' means |
| `Aleatoric` | largest decoder σ, as in MOPO |
| `ForwardNoise` | σ of the forward model, measured by the metric of the decoders |
| `Ambient` | distance to the `K` nearest `(s, a, s′)` in normalised state space, as in SUMO |
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
    compute_noise_effect,
    distance,
    find_neighbours,
    freeze,
)
from gelato.geometry.neighbours import chunk_size
from gelato.model.latent import LatentModel

Embedded = Float[Array, " embedding"]
Scalar = Float[Array, ""]
Tree = TypeVar("Tree")
# Row number that leaves no data point out.
NO_EXCLUSION = -1
# Observations with more values than this are long: outputs of data points are projected.
LONG = 1024
# Data points whose long images are computed together, and the typical number of rows of the
# Jacobian of all decoders per value of an observation, times latent dimensions.
_LONG_CHUNK, _JACOBIAN = 64, 100
# The most distances held in memory: 1 GiB of floats.
_LARGEST_DISTANCE_COUNT = 2**28


class AbstractPenalty(eqx.Module):
    """`U(e)` for one embedding.

    If `e` is a data point, pass its row number as `exclude`, so that it is not its own neighbour.
    """

    @abstractmethod
    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        """`U(e) ≥ 0`."""

    @property
    def points(self) -> int:
        """Number of distances that one call computes.

        It limits the number of calls in one chunk.
        """
        return 1


class Nothing(AbstractPenalty):
    """`U = 0`, as in MBPO."""

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
    """The images of all data points in the ambient space of the metric.

    That is `Φ(μ_F(eₖ))`, `σ_F(eₖ)` and `diag(Ḡ)` there. Lengths are those of polygons between
    images of `segments` steps along the straight line. One segment is the chord, a lower bound of
    the geodesic's length. Two segments are never shorter than the chord. The polygon then also
    passes through the image of the midpoint.

    Outputs of long observations are stored as a random projection, which changes a length by a few
    percent (`geometry/projection.py`).
    """

    outputs: Float[Array, "*batch n ambient"]
    scales: Float[Array, "*batch n latent"]
    weights: Float[Array, "*batch n latent"]
    segments: int = eqx.field(static=True)
    projection: Float[Array, "*batch ambient size"] | None = None

    @staticmethod
    @eqx.filter_jit
    def compute(
        metric: Composite,
        points: Float[Array, "n embedding"],
        segments: int,
        projection: Float[Array, "ambient size"] | None = None,
    ) -> "Images":
        """Compute the images of points, in chunks of bounded memory."""

        def one(e: Embedded) -> tuple[Array, Array, Array]:
            mean, scale = metric.forward(e)
            return (
                _project(metric.phi(mean), projection),
                scale,
                jnp.diag(metric.scale_term.weights(metric, metric.samples(e))),
            )

        chunk = 4096 if projection is None else _LONG_CHUNK
        outputs, scales, weights = jax.lax.map(one, points, batch_size=min(chunk, len(points)))
        return Images(outputs, scales, weights, segments, projection)

    @property
    def values(self) -> int:
        """Number of values that a call holds for each neighbour, if they are many."""
        return 0 if self.projection is None else self.segments * self.projection.shape[-1]

    def compute_lengths(
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
            def image(point: Embedded) -> Float[Array, " ambient"]:
                phi = metric.phi(metric.forward(e + t * (point - e))[0])
                return _project(phi, self.projection)

            return jax.vmap(image)(points)

        between = [inner(step / self.segments) for step in range(1, self.segments)]
        first = _project(metric.phi(mean), self.projection)
        polygon = jnp.stack([jnp.broadcast_to(first, outputs.shape), *between, outputs])
        steps = jnp.sum(jnp.diff(polygon, axis=0) ** 2, axis=-1) + noise / self.segments**2
        return jnp.sum(jnp.sqrt(steps), axis=0)


def _project(
    outputs: Float[Array, " size"], projection: Float[Array, "ambient size"] | None
) -> Float[Array, " ambient"]:
    return outputs if projection is None else projection @ outputs


class GeodesicDistance(AbstractPenalty):
    """`U(e) = (1/K) Σₖ d_G(e, eₖ)` over the `K` nearest data points under the metric.

    Neighbours come from a Euclidean shortlist. With `images`, lengths are polygon lengths between
    images of the data. No geodesic is solved, which costs a hundredth. Where the latent space is no
    smaller than the state, chords are within a percent for near neighbours. Where it is smaller,
    the path between the points matters, so two segments are used (docs/research/uncertainty.md).
    """

    data: Index
    metric: AbstractMetric
    k: int = eqx.field(static=True, default=20)
    shortlist: int = eqx.field(static=True, default=20)
    solver: AbstractSolver = Near()
    images: Images | None = None

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return jnp.mean(self.measure_neighbours(e, exclude)[1])

    def measure_neighbours(
        self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION
    ) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
        """Return the `K` nearest rows under the metric and their geodesic distances."""
        rows, _ = find_neighbours(self.data, e, max(self.k, self.shortlist), exclude)
        others, metric = self.data.data[rows], self.metric
        if self.images is not None and isinstance(metric, Composite):
            lengths = self.images.compute_lengths(metric, e, rows, others)
        else:
            # The σ_F term of Theorem 2 changes slowly, so its weights at `e` are used for all
            # neighbours. This costs a tenth.
            frozen = freeze(metric, e) if isinstance(metric, Composite) else metric
            lengths = jax.vmap(lambda other: distance(frozen, e, other, self.solver))(others)
        order = jnp.argsort(lengths)[: self.k]
        return rows[order], lengths[order]

    @property
    def points(self) -> int:
        values = 0 if self.images is None else self.shortlist * self.images.values
        return max(len(self.data), values)


class Transport(AbstractPenalty):
    """`U(e) = (1/K) Σₖ (εₖ + β σ_G(e) d_G(e, eₖ))`: the error at the neighbours plus its growth
    along the geodesic.

    `εₖ = ‖s′ₖ − ŝ′ₖ‖/√d_S` is known, because neighbour `k` is a recorded transition. Assume that
    along a geodesic the error changes by at most `β σ_G` per unit of length. `σ_G` (`ForwardNoise`)
    is larger where the forward model is uncertain. Then, by the triangle inequality, every summand
    is an upper bound of the error at `e`, and so is their mean. `β` is the typical rate on held-out
    transitions (`growth_rate`).
    """

    geodesic: GeodesicDistance
    residuals: Float[Array, " n"]
    forward: "ForwardNoise"
    beta: Float[Array, ""]

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        near, far = self.compute_terms(e, exclude)
        return near + self.beta * far

    def compute_terms(
        self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION
    ) -> tuple[Scalar, Scalar]:
        """Return the neighbours' mean residual, and `σ_G(e)` times their mean distance."""
        rows, lengths = self.geodesic.measure_neighbours(e, exclude)
        return jnp.mean(self.residuals[rows]), self.forward(e) * jnp.mean(lengths)

    @property
    def points(self) -> int:
        return max(self.geodesic.points, self.forward.points)


class Extrapolation(AbstractPenalty):
    """`U(e) = σ_G(e) (1/K) Σₖ d_G(e, eₖ)`: the part of `Transport` that grows with distance.

    It is small in regions that the data covers, even if the model predicts poorly there.
    """

    geodesic: GeodesicDistance
    forward: "ForwardNoise"

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        return self.forward(e) * self.geodesic(e, exclude)

    @property
    def points(self) -> int:
        return max(self.geodesic.points, self.forward.points)


class Ensemble(AbstractPenalty):
    """`U(e) = √(1/d_S Σₖ Varᵢ μ_D^i(μ_F(e))ₖ)`: how much the bootstrapped decoders disagree.

    With several forward networks, the variance is over all pairs of decoder and forward network.
    """

    model: LatentModel

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return jnp.sqrt(jnp.mean(jnp.var(self.model.predict_state_means(e), axis=0)))


class Aleatoric(AbstractPenalty):
    """`U(e) = maxᵢ √(1/d_S) ‖σ_D^i(μ_F(e))‖`: the largest error a decoder expects, as in MOPO.

    With several forward networks, the maximum is over all pairs of decoder and forward network.
    """

    model: LatentModel

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        variances = self.model.predict_states(e).variance
        return jnp.sqrt(jnp.max(jnp.mean(variances, axis=1)))


class ForwardNoise(AbstractPenalty):
    """`U(e) = σ_G(e) = √(Σₖ σ_F(e)ₖ² Ḡₖₖ / d_S)`: the forward model's noise in the next state.

    Noise in latent directions that the decoders ignore can have any size. The metric gives those
    directions no weight. With several forward networks, their disagreement counts as noise
    (`compute_noise_effect`).
    """

    metric: Composite
    state_size: int = eqx.field(static=True)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        del exclude
        return compute_noise_effect(self.metric, e) / jnp.sqrt(self.state_size)

    @property
    def points(self) -> int:
        # The Jacobian of the decoders decides if observations are long.
        return 1 if self.state_size <= LONG else _JACOBIAN * self.state_size


class Ambient(AbstractPenalty):
    """`U(e) = (1/K) Σₖ ‖(ŝ, a, ŝ′) − (sₖ, aₖ, s′ₖ)‖` in normalised state space, as in SUMO.

    It uses no latent geometry.
    """

    model: LatentModel
    rows: Index
    k: int = eqx.field(static=True, default=20)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        z, a = self.model.embedding.inverse(e)
        state = jnp.mean(self.model.decode_means(z), axis=0)
        successor = jnp.mean(self.model.predict_state_means(e), axis=0)
        row = jnp.concatenate([state, a, successor])
        return jnp.mean(find_neighbours(self.rows, row, self.k, exclude)[1])

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
    most = max(1, min(_LARGEST_DISTANCE_COUNT // points, chunk_size()))
    # Use chunks of equal size where possible, because each size compiles another program.
    rows = max(1, len(arrays[0]))
    chunks = -(-rows // most)
    return jax.lax.map(lambda row: function(*row), arrays, batch_size=-(-rows // chunks))
