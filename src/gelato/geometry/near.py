"""The default solver for neighbours: one damped Gauss–Newton step from a few decoded points.

For a pullback metric the length of a curve is that of its image `c = Φ∘γ`. Decode the points `cᵢ`
that cut the straight line into `S` segments, and let `eᵢ` be the gap between `cᵢ` and its place on
the chord from `c₀` to `c_S`. The polygon has the energy

    S Σ‖cᵢ₊₁ − cᵢ‖² = ‖c_S − c₀‖² + S Σ‖eᵢ₊₁ − eᵢ‖².

Moving the points by `uᵢ` moves the gaps by `J_m uᵢ`, with `J_m` the Jacobian at the midpoint; the
neglected terms are smaller by a factor of order `‖b − a‖`. The minimiser then decouples,

    uᵢ = argmin_u ‖J_m u + eᵢ‖²,

which removes the tangential part of the gaps. To leading order this is the geodesic equation. A few
steps of conjugate gradients solve the least-squares problem. Each step takes one product with `J_m`
and one with its transpose; forming `J_m` would take one product per dimension. Early stopping damps
the solution. Steps use directions that are long in the ambient space and avoid nearly singular
directions. The result does not depend on units.

Only inner points move, so that one round on two segments costs four decoded points and the
products. The error of a polygon's length is of second order in its chords. With half as many
segments it is four times as large, so the error of `(4 L_S − L_{S/2})/3` is of fourth order. This
length is at least `L_S ≥ ‖c_S − c₀‖`, the lower bound of every distance. If the same formula gives
a shorter length for the straight line, the result is the straight line. Two segments are enough for
near pairs. For far pairs the result may be shorter than the geodesic. In two dimensions this error
can be larger than that of the straight line; use `Converged` there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, safe_sqrt
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Immersion, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions
from gelato.geometry.variation import SAFETY

Polygon = Float[Array, "points ambient"]
Moves = Float[Array, "inner dim"]


class Near(AbstractSolver):
    """Approximate geodesics between near points, without an iterative minimisation of the energy.

    It makes `rounds` corrections with `iterations` conjugate-gradient steps each. The estimated
    error adds what one more round would gain and the size of the extrapolation. It is several times
    too large for near pairs. XLA removes it from programs that use the length only.
    """

    segments: int = eqx.field(static=True, default=2)
    iterations: int = eqx.field(static=True, default=4)
    rounds: int = eqx.field(static=True, default=1)
    tolerance: float = eqx.field(static=True, default=1e-2)

    def __check_init__(self) -> None:
        if self.segments < 2 or self.segments % 2:
            raise InputError(
                f"Near(segments={self.segments}) needs an even number of at least 2 segments."
            )

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(
                f"The solver Near needs an immersion, which {type(metric).__name__} does not have. "
                "Use Converged."
            )
        # Lengths are differences of decoded points. The reduced precision of an accelerator's fast
        # products would make them inexact.
        with jax.default_matmul_precision("float32"):
            return self._solve(metric.immersion(jax.lax.stop_gradient((a + b) / 2)), a, b)

    def _solve(self, phi: Immersion, a: Point, b: Point) -> Geodesic:
        linear = _Linear(phi, jax.lax.stop_gradient(a + 0.5 * (b - a)))
        ends = phi(a), phi(b)
        moves = jnp.zeros((self.segments - 1, a.size), a.dtype)
        polygon = self._decode(phi, a, b, ends, moves)
        for _ in range(self.rounds):
            # By the envelope theorem, derivatives of the length may treat the moves as constant.
            trial = moves + jax.lax.stop_gradient(
                linear.correct(_compute_gaps(polygon), self.iterations)
            )
            moved = self._decode(phi, a, b, ends, trial)
            # The test is false for NaN, which must not replace a finite straight line.
            better = extrapolate_length(moved) <= extrapolate_length(polygon)
            moves, polygon = jnp.where(better, trial, moves), jnp.where(better, moved, polygon)
        L = _guard_precision(extrapolate_length(polygon), linear, b - a)
        energy = jnp.maximum(compute_polygon_energy(polygon), L**2)
        error = jax.lax.stop_gradient(self._estimate_error(linear, polygon, L))
        curve = self._curve(a, b, moves)
        return Geodesic(curve, L, energy, error, error <= self.tolerance, jnp.asarray(False))

    def _decode(
        self, phi: Immersion, a: Point, b: Point, ends: tuple[Array, Array], moves: Moves
    ) -> Polygon:
        # The loop is unrolled, because a batch axis of size one would cost transposes.
        inner = [
            phi(a + t * (b - a) + move) for t, move in zip(_inner(self.segments).tolist(), moves)
        ]
        return jnp.stack([ends[0], *inner, ends[1]])

    def _estimate_error(self, linear: "_Linear", polygon: Polygon, L: Scalar) -> Scalar:
        gaps = _compute_gaps(polygon)
        images = jnp.stack([linear.push(u) for u in linear.correct(gaps, self.iterations)])
        before, after = (
            compute_polygon_energy(jnp.pad(g, ((1, 1), (0, 0)))) for g in (gaps, gaps + images)
        )
        gain = SAFETY * (before - after) / 2
        error = _ratio(gain, compute_polygon_energy(polygon)) + _ratio(
            jnp.abs(L - measure_polygon(polygon)), L
        )
        # Pairs whose length is the speed at the midpoint have the error of this rule.
        smallest = jnp.finfo(L.dtype).eps ** (2 / 3)
        is_speed = is_below_precision(L, linear.value)
        error = jnp.where(is_speed, 0, error) + smallest
        return jnp.where(jnp.isfinite(L) & jnp.isfinite(error), error, jnp.inf)

    def _curve(self, a: Point, b: Point, moves: Moves) -> Curve:
        basis = Legendre(self.segments - 1)
        values = basis.tables(_inner(self.segments))[0]
        return Curve(a, b, jnp.asarray(np.linalg.inv(values), a.dtype) @ moves, basis)


class _Linear:
    """Products with `J` and `Jᵀ` at one point, and least squares with these products."""

    def __init__(self, phi: Immersion, point: Point) -> None:
        self.value, self.push = jax.linearize(phi, point)
        self._transposed = jax.linear_transpose(self.push, point)

    def pull(self, y: Float[Array, " ambient"]) -> Point:
        return self._transposed(y)[0]

    def correct(self, gaps: Float[Array, "inner ambient"], iterations: int) -> Moves:
        return jnp.stack([self.least_squares(gap, iterations) for gap in gaps])

    def least_squares(self, r: Float[Array, " ambient"], iterations: int) -> Point:
        # Conjugate gradients on min ‖Ju + r‖² (CGLS) never form JᵀJ. The loop is unrolled, because
        # a few steps are enough.
        gradient = -self.pull(r)
        u, direction, square = jnp.zeros_like(gradient), gradient, gradient @ gradient
        for _ in range(iterations):
            image = self.push(direction)
            rate = _ratio(square, image @ image)
            u, r = u + rate * direction, r + rate * image
            gradient = -self.pull(r)
            square, previous = gradient @ gradient, square
            direction = gradient + _ratio(square, previous) * direction
        return u


def _inner(segments: int) -> Float[np.ndarray, " inner"]:
    return np.arange(1, segments) / segments


def _compute_gaps(polygon: Polygon) -> Float[Array, "inner ambient"]:
    t = jnp.asarray(_inner(len(polygon) - 1), polygon.dtype)[:, None]
    return polygon[1:-1] - polygon[0] - t * (polygon[-1] - polygon[0])


def compute_polygon_energy(polygon: Polygon) -> Scalar:
    """Compute `S Σ‖cᵢ₊₁ − cᵢ‖²`."""
    return (len(polygon) - 1) * jnp.sum(jnp.diff(polygon, axis=0) ** 2)


def measure_polygon(polygon: Polygon) -> Scalar:
    """Compute the length of a polygon."""
    return jnp.sum(safe_sqrt(jnp.sum(jnp.diff(polygon, axis=0) ** 2, axis=-1)))


def extrapolate_length(polygon: Polygon) -> Scalar:
    """Extrapolate the length from all corners and from every second one."""
    return (4 * measure_polygon(polygon) - measure_polygon(polygon[::2])) / 3


def _guard_precision(L: Scalar, linear: _Linear, chord: Point) -> Scalar:
    speed = safe_sqrt(jnp.sum(linear.push(chord) ** 2))
    return jnp.where(is_below_precision(L, linear.value), speed, L)


def is_below_precision(L: Scalar, value: Float[Array, " ambient"]) -> Bool[Array, ""]:
    """Return whether points are so close that the speed at their midpoint is more accurate."""
    # Differences of decoded points lose digits as the points approach: the relative error is
    # ε‖c‖/L. The error of the speed at the midpoint is (L/‖c‖)². They are equal at L = ε^⅓ ‖c‖.
    return jnp.finfo(L.dtype).eps ** (1 / 3) * safe_sqrt(jnp.sum(value**2)) >= L


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    # Coincident endpoints and a singular G give 0/0; then there is nothing to correct.
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)
