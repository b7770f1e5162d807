"""The default solver: refine a curve until the estimated error of its length is small enough.

Legendre modes are hierarchical: a curve with few modes is also a curve with many, whose further
coefficients are zero. Each level therefore starts from the curve of the level before, and only
pairs whose estimate is above the tolerance go on to the next level, which has twice as many modes
and nodes.

Each level also checks the estimate of the level before: if the length fell by more than it
promised, the new estimate grows by the same factor.

A minimiser finds a geodesic, which need not be the shortest. If the curve is much shorter than the
straight line, or much longer than the ambient distance of its ends, the space is curved enough for
other geodesics. Then curves that bend to several sides start as well and the shortest is kept. On
the host, in two dimensions, the shortest path on a graph is one more start. No method that looks at
finitely many curves can exclude a shorter one, so the error is an estimate relative to the
geodesics near the curve that was found.

As a function of one pair, `Adaptive` is one program in which finished pairs take no iterations.
`gelato.geometry.distance` runs the same steps on the host, each as one program over the pairs that
need it (see `batch.py`), so that a batch does not wait for its slowest pair.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gelato.errors import InputError
from gelato.geometry.converged import Converged
from gelato.geometry.curve import (
    Curve,
    Legendre,
    Scalar,
    compute_gauss_nodes,
    length,
    make_straight_curve,
)
from gelato.geometry.gauss_newton import GaussNewton
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.roots import invert_root
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions, lower_bound

Shapes = Float[Array, "starts modes dim"]
# The minimiser stops when its predicted decrease is this fraction of the tolerance.
PRECISION = 1 / 100
# A curve has other starts if the straight line is longer by the factor BENT, or if the curve is
# longer than the ambient distance of its ends by the factor FOLDED (a straight line over the ridge
# of a hill is a geodesic).
BENT, FOLDED = 1.05, 1.25
# Other starts leave the straight line by this fraction of its length.
BULGE = 0.5
# Two curves are different if their distance is more than this fraction of their length.
DISTINCT = 0.1
# Relative damping of the metric that measures a bulge: it limits steps in almost flat directions.
BULGE_DAMPING = 0.1
LARGEST_DIMENSION = 500
# From this dimension on, the first level starts from a Gauss–Newton polygon with these rounds and
# iterations: where the metric is nearly singular, it converges much faster than L-BFGS.
MANY_DIMENSIONS, WARM_START = 5, (3, 12)
# An estimate grows at most by this factor if the estimate of the level before was too small.
LARGEST_FACTOR = 10.0
# The smallest tolerance in units of rounding.
SMALLEST = 32


class Search(eqx.Module):
    """The best geodesic so far, whose curve has the modes of the last level.

    `bent` means that there may be other geodesics, and `level` is the level that was solved last.
    """

    best: Geodesic
    bent: Bool[Array, ""]
    level: Int[Array, ""]


class Adaptive(AbstractSolver):
    """Refine until the estimated relative error of the length is at most `tolerance`.

    `levels` are pairs (modes, Gauss nodes). `starts` is the number of other starts where the space
    is strongly curved.
    """

    tolerance: float | Scalar = 1e-3
    levels: tuple[tuple[int, int], ...] = eqx.field(
        static=True, default=((4, 8), (8, 18), (16, 36), (32, 72))
    )
    starts: int = eqx.field(static=True, default=4)
    iterations: int = eqx.field(static=True, default=100)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        search = self.begin(metric, a, b)
        if self.starts > 0:
            search = self.explore(metric, search, search.bent)
        for level in range(1, len(self.levels)):
            needed = ~search.best.converged & (search.level < level)
            search = self.refine(metric, search, level, needed)
        return search.best

    def begin(self, metric: AbstractMetric, a: Point, b: Point) -> Search:
        """Solve the first level from the straight line."""
        check_dimensions(a, b)
        self.check(a.size, a.dtype)
        found = self._solver(0).refine(metric, self._start(metric, a, b))
        line = make_straight_curve(a, b, Legendre(1))
        bent = length(metric, line, self.levels[0][1]) > BENT * found.length
        if isinstance(metric, AbstractImmersed):
            bent |= found.length > FOLDED * lower_bound(metric, a, b)
        bent |= ~jnp.isfinite(found.length)
        return Search(self._extend(found), bent, jnp.asarray(0))

    def _start(self, metric: AbstractMetric, a: Point, b: Point) -> Curve:
        """Build the curve that the first level starts from."""
        modes = self._modes(0)
        start = make_straight_curve(a, b, Legendre(modes))
        segments = modes + modes % 2
        if a.size < MANY_DIMENSIONS or segments > modes + 1 or segments < 2:
            return start
        if not isinstance(metric, AbstractImmersed):
            return start
        shape = GaussNewton(segments, *WARM_START)(metric, a, b).curve.coefficients
        shape = jax.lax.stop_gradient(jnp.where(jnp.isfinite(shape), shape, 0))
        return Curve(a, b, start.coefficients.at[: len(shape)].set(shape), start.basis)

    def check(self, dim: int, dtype: np.dtype) -> None:
        """Raise an error if the solver cannot handle points of this dimension and type."""
        if dim > LARGEST_DIMENSION:
            raise InputError(
                f"Adaptive handles at most {LARGEST_DIMENSION} dimensions, but the points have "
                f"{dim}. Use Near or Straight."
            )
        smallest = SMALLEST * float(jnp.finfo(dtype).eps)
        # Inside a compiled program the tolerance may have no value yet.
        if isinstance(self.tolerance, float) and self.tolerance < smallest:
            raise InputError(
                f"The tolerance {self.tolerance:g} is below the precision of {dtype}. "
                f"Use at least {smallest:.0e}, or double precision."
            )

    def refine(
        self, metric: AbstractMetric, search: Search, level: int, needed: Bool[Array, ""]
    ) -> Search:
        """Solve a level from the best curve."""
        start = self._truncate(search.best.curve, level)
        found = self._solve(metric, start, level, needed)
        return self._advance(needed, search, found, found.length, level)

    def explore(
        self,
        metric: AbstractMetric,
        search: Search,
        needed: Bool[Array, ""],
        guess: Float[Array, "modes dim"] | None = None,
    ) -> Search:
        """Solve the second level from the best curve, from bulges to several sides and a guess."""
        level = min(1, len(self.levels) - 1)
        first = self._truncate(search.best.curve, level)
        others = self._bend(metric, first, self.starts)
        if guess is not None:
            others = jnp.concatenate([others, guess[None, : self._modes(level)]])
        shapes = jax.lax.stop_gradient(jnp.concatenate([first.coefficients[None], others]))

        def solve(shape: Float[Array, "modes dim"]) -> Geodesic:
            curve = Curve(first.start, first.end, shape, first.basis)
            return self._solve(metric, curve, level, needed)

        found = jax.vmap(solve)(shapes)
        # A curve that left the chart can look short between the nodes. Its error is then large.
        bounds = found.length * (1 + found.error)
        shortest = jnp.argmin(jnp.where(jnp.isfinite(bounds), bounds, jnp.inf))
        best = jax.tree.map(lambda leaf: leaf[shortest], found)
        different = jax.vmap(lambda curve: _differ(metric, best, curve))(found.curve)
        equal = jnp.abs(found.length - best.length) <= (found.error + best.error) * best.length
        several = jnp.any(different & equal & (found.error <= DISTINCT))
        best = eqx.tree_at(lambda g: g.several, best, several)
        return self._advance(needed, search, best, found.length[0], level)

    def _advance(
        self,
        needed: Bool[Array, ""],
        search: Search,
        found: Geodesic,
        continued: Scalar,
        level: int,
    ) -> Search:
        """Replace the best curve; `continued` is the length that refining it led to."""
        # If the length fell by more than the estimate, the new estimate is as much too small.
        fell = jnp.abs(search.best.length - continued)
        promised = search.best.error * continued
        factor = jnp.where(fell > promised, fell / jnp.where(promised > 0, promised, 1), 1)
        error = found.error * jax.lax.stop_gradient(jnp.clip(factor, 1, LARGEST_FACTOR))
        found = eqx.tree_at(
            lambda g: (g.error, g.converged, g.several),
            self._extend(found),
            (error, error <= self.tolerance, found.several | search.best.several),
        )
        return _choose(needed, Search(found, search.bent, jnp.asarray(level)), search)

    def _solve(
        self, metric: AbstractMetric, start: Curve, level: int, needed: Bool[Array, ""]
    ) -> Geodesic:
        return self._solver(level).refine(metric, start, jnp.where(needed, self.iterations, 0))

    def _solver(self, level: int) -> Converged:
        modes, nodes = self.levels[level]
        return Converged(modes, nodes, self.iterations, self.tolerance, PRECISION * self.tolerance)

    def _modes(self, level: int) -> int:
        return self.levels[level][0]

    def _truncate(self, curve: Curve, level: int) -> Curve:
        modes = self._modes(level)
        return Curve(curve.start, curve.end, curve.coefficients[:modes], Legendre(modes))

    def _extend(self, found: Geodesic) -> Geodesic:
        modes, curve = self._modes(-1), found.curve
        missing = modes - len(curve.coefficients)
        shape = jnp.pad(curve.coefficients, ((0, missing), (0, 0)))
        return eqx.tree_at(
            lambda g: g.curve, found, Curve(curve.start, curve.end, shape, Legendre(modes))
        )

    def _bend(self, metric: AbstractMetric, curve: Curve, count: int) -> Shapes:
        # Directions are drawn in coordinates in which the mean metric is the identity, so that they
        # do not depend on units. They come in opposite pairs and are orthogonal to the chord.
        t, w = compute_gauss_nodes(4)
        line = make_straight_curve(curve.start, curve.end, Legendre(1))
        G = jnp.tensordot(jnp.asarray(w, line.start.dtype), jax.vmap(metric)(line.at(t)[0]), axes=1)
        diagonal = jnp.diagonal(G)
        floor = jnp.finfo(G.dtype).eps * jnp.max(diagonal) + jnp.finfo(G.dtype).tiny
        damped = G + jnp.diag(BULGE_DAMPING * diagonal + floor)
        root = invert_root(damped)
        chord = root @ (damped @ (line.end - line.start))
        size = jnp.linalg.norm(chord)
        unit = chord / jnp.where(size > 0, size, 1)
        drawn = jr.normal(jr.key(0), (-(-count // 2), curve.start.size), G.dtype)
        drawn = drawn - (drawn @ unit)[:, None] * unit
        norms = jnp.linalg.norm(drawn, axis=1, keepdims=True)
        drawn = drawn / jnp.where(norms > 0, norms, 1)
        sides = jnp.concatenate([drawn, -drawn])[:count]
        moves = BULGE * size * (sides @ root)
        middle = float(Legendre(1).tables(np.array([0.5]))[0][0, 0])
        shapes = jnp.zeros((count, *curve.coefficients.shape), G.dtype)
        return shapes.at[:, 0].set(moves / middle)


def _differ(metric: AbstractMetric, best: Geodesic, other: Curve) -> Bool[Array, ""]:
    t = compute_gauss_nodes(8)[0]
    points = best.curve.at(t)[0]
    squares = jax.vmap(metric.quadratic)(points, other.at(t)[0] - points)
    return jnp.max(squares) > (DISTINCT * best.length) ** 2


def _choose(needed: Bool[Array, ""], new: Search, old: Search) -> Search:
    """Keep the new result where it is needed; a curve that failed never replaces one."""
    better = needed & (jnp.isfinite(new.best.length) | ~jnp.isfinite(old.best.length))
    return jax.tree.map(lambda x, y: jnp.where(better, x, y), new, old)
