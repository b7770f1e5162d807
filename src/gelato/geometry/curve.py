"""Curves between two points, their lengths and energies.

    γ(t) = (1 − t)a + tb + Σⱼ cⱼ φⱼ(t),    φⱼ(0) = φⱼ(1) = 0

Every curve is linear in its coefficients, starts at `a` and ends at `b`. Solvers differ only in
how they choose `c`. Lengths and energies are integrals of the speed `√(γ'ᵀGγ')` by Gauss–Legendre
quadrature. Exact speeds avoid the bias of chords, and few nodes are enough because the speed is
constant along a geodesic.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial.legendre import legvander

from gelato.geometry.metric import AbstractMetric, Point

Scalar = Float[Array, ""]
Table = Float[np.ndarray, "nodes modes"]


class AbstractBasis(eqx.Module):
    """Shape functions on `[0, 1]` that vanish at both ends."""

    @abstractmethod
    def __call__(self, t: Scalar) -> Float[Array, " modes"]:
        """Compute the values `φⱼ(t)`."""

    @abstractmethod
    def tables(self, t: Float[np.ndarray, " nodes"]) -> tuple[Table, Table]:
        """Tabulate values `φⱼ(t)` and slopes `φⱼ'(t)` at fixed nodes, as compile-time constants."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of shape functions."""


class Legendre(AbstractBasis):
    """Integrals of the orthonormal Legendre polynomials.

    `φⱼ' = √(2j+1) Pⱼ(2t − 1)`, so that `∫φⱼ'φₖ' = δⱼₖ`.
    """

    modes: int = eqx.field(static=True)

    def __call__(self, t: Scalar) -> Float[Array, " modes"]:
        x = 2 * t - 1
        P = [jnp.ones_like(x), x]
        for j in range(1, self.modes + 1):
            P.append(((2 * j + 1) * x * P[j] - j * P[j - 1]) / (j + 1))
        values = []
        for j in range(1, self.modes + 1):
            values.append((P[j + 1] - P[j - 1]) / (2 * np.sqrt(2 * j + 1)))
        return jnp.stack(values)

    def tables(self, t: Float[np.ndarray, " nodes"]) -> tuple[Table, Table]:
        P = legvander(2 * t - 1, self.modes + 1)
        norms = np.sqrt(2 * np.arange(1, self.modes + 1) + 1)
        return (P[:, 2:] - P[:, :-2]) / (2 * norms), norms * P[:, 1:-1]

    @property
    def size(self) -> int:
        return self.modes


class Spline(AbstractBasis):
    """The paper's curve: natural cubic splines with equal segments that vanish at both ends.

    The basis is orthonormal.
    """

    modes: int = eqx.field(static=True)

    def __call__(self, t: Scalar) -> Float[Array, " modes"]:
        table = jnp.asarray(_spline_table(self.modes), dtype=jnp.result_type(t))
        segments = self.modes + 1
        place = jnp.floor(jax.lax.stop_gradient(t) * segments)
        segment = jnp.clip(place, 0, segments - 1).astype(int)
        return jnp.power(t, jnp.arange(4)) @ table[segment]

    def tables(self, t: Float[np.ndarray, " nodes"]) -> tuple[Table, Table]:
        segment = np.clip(np.floor(t * (self.modes + 1)), 0, self.modes).astype(int)
        powers = t[:, None] ** np.arange(4)
        slopes = np.arange(4) * t[:, None] ** np.maximum(np.arange(4) - 1, 0)
        table = _spline_table(self.modes)[segment]
        return np.einsum("nk,nkm->nm", powers, table), np.einsum("nk,nkm->nm", slopes, table)

    @property
    def size(self) -> int:
        return self.modes


def _spline_table(modes: int) -> Float[np.ndarray, "segments 4 modes"]:
    # One cubic in t per segment. Conditions: value and second derivative are zero at both ends, and
    # the curve is twice differentiable at the knots.
    from scipy.linalg import null_space

    segments = modes + 1
    knots = np.linspace(0, 1, segments + 1)
    derivatives = [
        lambda t: [1, t, t**2, t**3],
        lambda t: [0, 1, 2 * t, 3 * t**2],
        lambda t: [0, 0, 2, 6 * t],
    ]
    last = segments - 1
    rows = []
    for order, segment, knot in [(0, 0, 0.0), (2, 0, 0.0), (0, last, 1.0), (2, last, 1.0)]:
        row = np.zeros((segments, 4))
        row[segment] = derivatives[order](knot)
        rows.append(row.ravel())
    for segment, knot in enumerate(knots[1:-1]):
        for derivative in derivatives:
            row = np.zeros((segments, 4))
            row[segment], row[segment + 1] = derivative(knot), np.negative(derivative(knot))
            rows.append(row.ravel())
    return null_space(np.stack(rows)).reshape(segments, 4, modes)


class Curve(eqx.Module):
    """`γ(t) = (1 − t)a + tb + Σⱼ cⱼ φⱼ(t)`."""

    start: Point
    end: Point
    coefficients: Float[Array, "modes dim"]
    basis: AbstractBasis

    def __call__(self, t: Scalar) -> Point:
        """Compute the point `γ(t)`."""
        return self.start + t * (self.end - self.start) + self.basis(t) @ self.coefficients

    def velocity(self, t: Scalar) -> Point:
        """Compute the velocity `γ'(t)`."""
        return jax.jvp(self, (t,), (jnp.ones_like(t),))[1]

    def at(
        self, t: Float[np.ndarray, " nodes"]
    ) -> tuple[Float[Array, "nodes dim"], Float[Array, "nodes dim"]]:
        """Compute points and velocities at fixed nodes."""
        dtype = self.coefficients.dtype
        values, slopes = (jnp.asarray(table, dtype) for table in self.basis.tables(t))
        chord = self.end - self.start
        points = self.start + jnp.asarray(t, dtype)[:, None] * chord + values @ self.coefficients
        return points, chord + slopes @ self.coefficients


def make_straight_curve(a: Point, b: Point, basis: AbstractBasis) -> Curve:
    """Build the straight line from `a` to `b` as a curve with the given basis."""
    return Curve(a, b, jnp.zeros((basis.size, a.size), dtype=a.dtype), basis)


def compute_gauss_nodes(
    nodes: int,
) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " nodes"]]:
    """Compute nodes and weights of Gauss–Legendre quadrature on `[0, 1]`."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, w / 2


def compute_squared_speeds(
    metric: AbstractMetric, curve: Curve, nodes: int
) -> Float[Array, " nodes"]:
    """Compute `γ'ᵀG(γ)γ'` at the quadrature nodes."""
    return jax.vmap(metric.quadratic)(*curve.at(compute_gauss_nodes(nodes)[0]))


def compute_length_and_energy(
    metric: AbstractMetric, curve: Curve, nodes: int = 16
) -> tuple[Scalar, Scalar]:
    """Compute `L(γ)` and `E(γ)` from one evaluation of the speeds."""
    squares = compute_squared_speeds(metric, curve, nodes)
    weights = jnp.asarray(compute_gauss_nodes(nodes)[1], dtype=squares.dtype)
    return safe_sqrt(squares) @ weights, squares @ weights


def length(metric: AbstractMetric, curve: Curve, nodes: int = 16) -> Scalar:
    """Compute `L(γ) = ∫ √(γ'ᵀG(γ)γ') dt`."""
    return compute_length_and_energy(metric, curve, nodes)[0]


def energy(metric: AbstractMetric, curve: Curve, nodes: int = 16) -> Scalar:
    """Compute `E(γ) = ∫ γ'ᵀG(γ)γ' dt`; `√E ≥ L`, with equality at constant speed."""
    return compute_length_and_energy(metric, curve, nodes)[1]


def safe_sqrt(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute `√x` with gradient zero, not infinite, at zero.

    Coincident points and singular directions need this.
    """
    # The test is not `square > 0`, which is false for NaN: NaN must stay NaN.
    inside = jnp.where(square == 0, 1, square)
    return jnp.where(square == 0, 0, jnp.sqrt(inside))
