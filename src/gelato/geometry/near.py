"""The default for neighbours: one damped Gauss–Newton step in closed form, from a handful of decoded points.

For a pullback metric a curve's length is that of its image `c = Φ∘γ`. Decode the points `cᵢ` that cut the straight line
into `S` segments, and let `eᵢ` be the gap between `cᵢ` and its place on the chord from `c₀` to `c_S`. The polygon has
the energy

    S Σ‖cᵢ₊₁ − cᵢ‖² = ‖c_S − c₀‖² + S Σ‖eᵢ₊₁ − eᵢ‖².

Moving the points by `uᵢ` moves the gaps by `J_m uᵢ`, with `J_m` the Jacobian at the midpoint; what is dropped is an
order of `‖b − a‖` smaller. The minimiser then decouples,

    uᵢ = argmin_u ‖J_m u + eᵢ‖²,

that is, the gaps lose their tangential part: to leading order the geodesic equation. The least-squares problem is
solved by a few steps of conjugate gradients, a product with `J_m` and one with its transpose each, rather than by
forming `J_m` (a product for every dimension). Stopping early is the damping: steps stay in directions that are long in
the ambient space, nearly singular ones are never entered, and no unit enters anywhere.

Only inner points move, so that one round on two segments costs four decoded points beside the products. A polygon's
length errs by the square of its chords; with every other point left out it errs four times as much, so that
`(4 L_S − L_{S/2})/3` errs by the fourth power. That is at least `L_S ≥ ‖c_S − c₀‖`, the lower bound of every distance,
and the straight line is kept where it is shorter by the same rule. Two segments are for near pairs: on far ones the
figure may fall below the geodesic's length, at `d = 2` by more than the straight line errs; use `Converged` there.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, root
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Immersion, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

Polygon = Float[Array, "points ambient"]
Moves = Float[Array, "inner dim"]


class Near(AbstractSolver):
    """Closed-form geodesics between near points: `rounds` corrections by `iterations` conjugate-gradient steps each.

    `tolerance` bounds the further relative decrease of the energy that one more gradient step promises, for
    `converged`.
    """

    segments: int = eqx.field(static=True, default=2)
    iterations: int = eqx.field(static=True, default=4)
    rounds: int = eqx.field(static=True, default=1)
    tolerance: float = eqx.field(static=True, default=1e-2)

    def __check_init__(self) -> None:
        if self.segments < 2 or self.segments % 2:
            raise InputError(
                f"Near(segments={self.segments}): lengths are extrapolated from an even number of segments"
            )

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(f"{type(metric).__name__} has no immersion, which the solver Near needs: use Converged")
        # Lengths are differences of decoded points, which the shortened products of an accelerator would blur.
        with jax.default_matmul_precision("float32"):
            return self._solve(metric.immersion(jax.lax.stop_gradient((a + b) / 2)), a, b)

    def _solve(self, phi: Immersion, a: Point, b: Point) -> Geodesic:
        linear = _Linear(phi, jax.lax.stop_gradient(a + 0.5 * (b - a)))
        ends = phi(a), phi(b)
        moves = jnp.zeros((self.segments - 1, a.size), a.dtype)
        polygon = self._decode(phi, a, b, ends, moves)
        for _ in range(self.rounds):
            # By the envelope theorem the moves may be held fixed when the length is differentiated.
            trial = moves + jax.lax.stop_gradient(linear.correct(_gaps(polygon), self.iterations))
            moved = self._decode(phi, a, b, ends, trial)
            # False for NaN, which must not win over a straight line that is fine.
            better = _extrapolated(moved) <= _extrapolated(polygon)
            moves, polygon = jnp.where(better, trial, moves), jnp.where(better, moved, polygon)
        L = _guarded(_extrapolated(polygon), linear, b - a)
        energy = jnp.maximum(_energy(polygon), L**2)
        converged = self._promise(linear, polygon) <= self.tolerance * energy
        return Geodesic(self._curve(a, b, moves), L, energy, converged & jnp.isfinite(L))

    def _decode(self, phi: Immersion, a: Point, b: Point, ends: tuple[Array, Array], moves: Moves) -> Polygon:
        # Unrolled: points are few, and a batch axis of size one costs XLA transposes.
        inner = [phi(a + t * (b - a) + move) for t, move in zip(_inner(self.segments).tolist(), moves)]
        return jnp.stack([ends[0], *inner, ends[1]])

    def _promise(self, linear: "_Linear", polygon: Polygon) -> Scalar:
        gaps = _gaps(polygon)
        images = jnp.stack([linear.push(step) for step in linear.correct(gaps, 1)])
        return _energy(jnp.pad(gaps, ((1, 1), (0, 0)))) - _energy(jnp.pad(gaps + images, ((1, 1), (0, 0))))

    def _curve(self, a: Point, b: Point, moves: Moves) -> Curve:
        basis = Legendre(self.segments - 1)
        values = basis.tables(_inner(self.segments))[0]
        return Curve(a, b, jnp.asarray(np.linalg.inv(values), a.dtype) @ moves, basis)


class _Linear:
    """Products with `J` and `Jᵀ` at one point, and least squares by them."""

    def __init__(self, phi: Immersion, point: Point) -> None:
        self.value, self.push = jax.linearize(phi, point)
        self._transposed = jax.linear_transpose(self.push, point)

    def pull(self, y: Float[Array, " ambient"]) -> Point:
        return self._transposed(y)[0]

    def correct(self, gaps: Float[Array, "inner ambient"], iterations: int) -> Moves:
        return jnp.stack([self.least_squares(gap, iterations) for gap in gaps])

    def least_squares(self, r: Float[Array, " ambient"], iterations: int) -> Point:
        # Conjugate gradients on min ‖Ju + r‖² (CGLS), which never forms JᵀJ; unrolled, since a handful of steps does.
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


def _gaps(polygon: Polygon) -> Float[Array, "inner ambient"]:
    t = jnp.asarray(_inner(len(polygon) - 1), polygon.dtype)[:, None]
    return polygon[1:-1] - polygon[0] - t * (polygon[-1] - polygon[0])


def _energy(polygon: Polygon) -> Scalar:
    return (len(polygon) - 1) * jnp.sum(jnp.diff(polygon, axis=0) ** 2)


def _extrapolated(polygon: Polygon) -> Scalar:
    fine, coarse = (jnp.sum(root(jnp.sum(jnp.diff(c, axis=0) ** 2, axis=-1))) for c in (polygon, polygon[::2]))
    return (4 * fine - coarse) / 3


def _guarded(L: Scalar, linear: _Linear, chord: Point) -> Scalar:
    # Differences of decoded points lose digits as the points approach: relative error ε‖c‖/L, while the speed at the
    # midpoint errs by (L/‖c‖)². The two are equal where L = ε^⅓ ‖c‖.
    blurred = jnp.finfo(L.dtype).eps ** (1 / 3) * root(jnp.sum(linear.value**2))
    speed = root(jnp.sum(linear.push(chord) ** 2))
    return jnp.where(blurred >= L, speed, L)


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    # Coincident endpoints and a singular G give 0/0: there is nothing to correct.
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)
