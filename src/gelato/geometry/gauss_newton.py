"""Gauss–Newton on a polygon of decoded points: accurate distances of far pairs at a fixed cost.

For a pullback of Φ, the polygon with corners `cᵢ = Φ(zᵢ)` has the energy `S Σ‖cᵢ₊₁ − cᵢ‖²`. This is
a sum of squares, and each round solves its linear least-squares problem

    min_u  Σᵢ ‖cᵢ₊₁ − cᵢ + Jᵢ₊₁uᵢ₊₁ − Jᵢuᵢ‖²,    J₀u₀ = J_S u_S = 0,

by a fixed number of conjugate-gradient steps, which need one product with `J` and one with `Jᵀ` at
each corner and never form `G`. The unknowns are `u = (DᵀD)^(−1/2) v` with the differences `D`: if
`J` is constant, all frequencies along the curve then have the same Hessian `JᵀJ`.

`η' = d/dt (Jη)` also contains how `J` changes along the curve. The preconditioner of `Converged`
does not, and it needs many more iterations where the metric is nearly singular: for the trained
decoder with d = 35, three rounds come closer to the geodesic than 60 iterations of `Converged`.

The error of a polygon's length is of second order in its chords, so that `(4 L_S − L_{S/2})/3` has
an error of fourth order. All pairs do the same work: a batch never waits for its slowest pair.
Only the decoded points need full precision. Products with `J` may use the fast products of an
accelerator, because the next round corrects their errors.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, safe_sqrt
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Immersion, Point
from gelato.geometry.near import (
    Polygon,
    compute_polygon_energy,
    extrapolate_length,
    is_below_precision,
    measure_polygon,
)
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

Corners = Float[Array, "inner dim"]
# After a round that did not shorten the polygon, the next one takes this fraction of its step.
STEP_DECAY = 0.3
# The remaining decrease is estimated by this multiple of what the last third of the
# conjugate-gradient steps gained.
SAFETY = 3.0
# The largest ratio of the gains of two rounds.
LARGEST_RATIO = 0.95


class GaussNewton(AbstractSolver):
    """Fixed work for every pair: `rounds` of `iterations` conjugate-gradient steps.

    `products` is the precision of products with Jacobians on an accelerator.
    """

    segments: int = eqx.field(static=True, default=4)
    rounds: int = eqx.field(static=True, default=3)
    iterations: int = eqx.field(static=True, default=12)
    tolerance: float = eqx.field(static=True, default=1e-2)
    products: str = eqx.field(static=True, default="tensorfloat32")

    def __check_init__(self) -> None:
        if self.segments < 2 or self.segments % 2:
            raise InputError(
                f"GaussNewton(segments={self.segments}) needs an even number of at least 2 "
                "segments."
            )

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(
                f"The solver GaussNewton needs an immersion, which {type(metric).__name__} does "
                "not have. Use Adaptive."
            )
        phi = metric.immersion(jax.lax.stop_gradient((a + b) / 2))
        t = jnp.arange(1, self.segments)[:, None] / self.segments
        line = a + t.astype(a.dtype) * (b - a)
        fixed = jax.lax.stop_gradient((a, b, line))
        moves, remaining = jax.lax.stop_gradient(self._find_moves(phi, *fixed))
        # Lengths are differences of decoded points and need full precision. By the envelope
        # theorem, their derivatives may treat the moves as constant.
        with jax.default_matmul_precision("float32"):
            polygon = _decode(phi, a, b, line + moves)
            value, speed = jax.jvp(phi, (line[len(line) // 2],), (b - a,))
        L = extrapolate_length(polygon)
        energy = jnp.maximum(compute_polygon_energy(polygon), L**2)
        coarse = jnp.abs(L - measure_polygon(polygon))
        error = _divide(remaining, 2 * energy) + _divide(coarse, L)
        # Differences of decoded points lose digits as the points approach.
        is_blurred = is_below_precision(L, value)
        smallest = jnp.finfo(L.dtype).eps ** (2 / 3)
        L = jnp.where(is_blurred, safe_sqrt(jnp.sum(speed**2)), L)
        error = jnp.where(is_blurred, 0, error) + smallest
        error = jnp.where(jnp.isfinite(L) & jnp.isfinite(error), error, jnp.inf)
        error = jax.lax.stop_gradient(error)
        basis = Legendre(self.segments - 1)
        values = basis.tables(np.arange(1, self.segments) / self.segments)[0]
        curve = Curve(a, b, jnp.asarray(np.linalg.inv(values), a.dtype) @ moves, basis)
        return Geodesic(curve, L, energy, error, error <= self.tolerance, jnp.asarray(False))

    def _find_moves(
        self, phi: Immersion, a: Point, b: Point, line: Corners
    ) -> tuple[Corners, Scalar]:
        """Minimise the energy; also estimate its remaining decrease."""
        smooth = jnp.asarray(_invert_differences(self.segments), a.dtype)

        def improve(
            state: tuple[Corners, Polygon, Scalar, Scalar, Scalar], nothing: None
        ) -> tuple[tuple[Corners, Polygon, Scalar, Scalar, Scalar], None]:
            del nothing
            moves, polygon, rate, previous, _ = state
            with jax.default_matmul_precision(self.products):
                step, predicted, tail = self._solve_round(phi, line + moves, polygon, smooth)
            trial = moves + rate * step
            moved = _decode(phi, a, b, line + trial)
            gain = compute_polygon_energy(polygon) - compute_polygon_energy(moved)
            better = gain >= 0  # false for NaN, which must not replace a finite curve
            # What the model did not predict is what the next round has to correct. Where the curve
            # bends strongly, the gains of the rounds fall slowly, like a geometric series.
            ratio = jnp.clip(_divide(gain, previous), 0, LARGEST_RATIO)
            remaining = SAFETY * tail + jnp.abs(predicted - gain) + gain * ratio / (1 - ratio)
            remaining = jnp.where(better, remaining, jnp.maximum(predicted, remaining))
            return (
                jnp.where(better, trial, moves),
                jnp.where(better, moved, polygon),
                jnp.where(better, 1.0, STEP_DECAY * rate),
                jnp.where(better, gain, previous),
                remaining,
            ), None

        with jax.default_matmul_precision("float32"):
            start = (
                jnp.zeros_like(line),
                _decode(phi, a, b, line),
                jnp.ones((), a.dtype),
                jnp.full((), jnp.inf, a.dtype),
                jnp.full((), jnp.inf, a.dtype),
            )
            (moves, *_, remaining), _ = jax.lax.scan(improve, start, length=self.rounds)
        return moves, remaining

    def _solve_round(
        self, phi: Immersion, corners: Corners, polygon: Polygon, smooth: Float[Array, "inner n"]
    ) -> tuple[Corners, Scalar, Scalar]:
        """Solve the linear least-squares problem by conjugate gradients (CGLS).

        Returns the step, the decrease of the energy that it predicts, and the part of this decrease
        that the last third of the iterations brought.
        """
        _, push = jax.linearize(jax.vmap(phi), corners)
        transposed = jax.linear_transpose(push, corners)

        def apply(v: Corners) -> Polygon:
            return jnp.diff(jnp.pad(push(smooth @ v), ((1, 1), (0, 0))), axis=0)

        def pull(y: Polygon) -> Corners:
            return smooth @ transposed(-jnp.diff(y, axis=0))[0]

        def advance(
            state: tuple[Corners, Polygon, Corners, Corners], _: None
        ) -> tuple[tuple[Corners, Polygon, Corners, Corners], Scalar]:
            v, residual, gradient, direction = state
            image = apply(direction)
            square = jnp.sum(gradient**2)
            rate = _divide(square, jnp.sum(image**2))
            residual = residual - rate * image
            new = pull(residual)
            turned = new + _divide(jnp.sum(new**2), square) * direction
            return (v + rate * direction, residual, new, turned), rate * square

        residual = -jnp.diff(polygon, axis=0)
        gradient = pull(residual)
        start = jnp.zeros_like(corners), residual, gradient, gradient
        (v, *_), gains = jax.lax.scan(advance, start, length=self.iterations)
        gains = self.segments * gains
        return smooth @ v, jnp.sum(gains), jnp.sum(gains[-max(1, self.iterations // 3) :])


def _decode(phi: Immersion, a: Point, b: Point, corners: Corners) -> Polygon:
    return jax.vmap(phi)(jnp.concatenate([a[None], corners, b[None]]))


def _invert_differences(segments: int) -> Float[np.ndarray, "inner inner"]:
    differences = np.diff(np.eye(segments + 1), axis=0)[:, 1:-1]
    values, vectors = np.linalg.eigh(differences.T @ differences)
    return (vectors / np.sqrt(values)) @ vectors.T


def _divide(above: Scalar, below: Scalar) -> Scalar:
    # Coincident endpoints give 0/0; then there is nothing to correct.
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)
