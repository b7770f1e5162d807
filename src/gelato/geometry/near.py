"""The default for neighbours: one damped Gauss–Newton step in closed form, metric frozen at the midpoint.

For a pullback metric the energy is `E(γ) = ∫‖c'‖² dt` with `c = Φ∘γ`. Deform the straight line by `u(t) = Σⱼ wⱼ φⱼ(t)`:
the ambient velocity becomes `c' + (Ju)' ≈ c' + J_m u'`, with `J_m` the Jacobian at the midpoint; what is dropped,
`J'u`, is an order of `‖b − a‖` smaller. With `φⱼ'` orthonormal Legendre polynomials the minimiser over `wⱼ` decouples,

    wⱼ = argmin_w ‖J_m w + rⱼ‖²,    rⱼ = ∫ φⱼ'(t) c'(t) dt,

that is, the straight line's acceleration loses its tangential part: to leading order the geodesic equation. For two
quadrature nodes there is one mode and `r` is the difference of two velocities. The least-squares problem is solved by a
few steps of conjugate gradients, a product with `J_m` and one with its transpose each, rather than by forming `J_m` (a
product for every dimension). Stopping early is the damping: steps stay in directions that are long in the ambient
space, nearly singular ones are never entered, and no unit enters anywhere.

The length is a quadrature of the curve's speed at the same nodes, and the straight line is kept where that is shorter
by the same quadrature. Two nodes are for near pairs only: on far pairs the figure may fall below the geodesic's length
(at d = 2 by 1.4% in the median, more than the straight line errs), so use more nodes or `Converged` there.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, gauss, root, straight
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Immersion, Point
from gelato.geometry.solver import AbstractSolver, Geodesic, check_dimensions

Velocities = Float[Array, "nodes ambient"]


class Near(AbstractSolver):
    """Closed-form geodesics between near points: `rounds` corrections by `iterations` conjugate-gradient steps each.

    `tolerance` bounds the further relative decrease of the energy that one more gradient step promises, for
    `converged`.
    """

    nodes: int = eqx.field(static=True, default=2)
    iterations: int = eqx.field(static=True, default=4)
    rounds: int = eqx.field(static=True, default=1)
    tolerance: float = eqx.field(static=True, default=1e-2)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        if not isinstance(metric, AbstractImmersed):
            raise InputError(f"{type(metric).__name__} has no immersion, which the solver Near needs: use Converged")
        basis = Legendre(self.nodes - 1)
        phi = metric.immersion(jax.lax.stop_gradient((a + b) / 2))
        curve, velocities, converged = self._correct(phi, straight(a, b, basis))
        weights = jnp.asarray(gauss(self.nodes)[1], a.dtype)
        # Two nodes may fall short of a long curve's length, but never of the distance in ambient space.
        chord = root(jnp.sum((phi(b) - phi(a)) ** 2))
        L = jnp.where(jnp.all(a == b), 0, jnp.maximum(_length(velocities, weights), chord))
        energy = jnp.maximum(jnp.sum(velocities**2, axis=-1) @ weights, L**2)
        return Geodesic(curve, L, energy, converged & jnp.isfinite(L))

    def _correct(self, phi: Immersion, curve: Curve) -> tuple[Curve, Velocities, Bool[Array, ""]]:
        weights = jnp.asarray(gauss(self.nodes)[1], curve.start.dtype)
        slopes = jnp.asarray(curve.basis.tables(gauss(self.nodes)[0])[1], curve.start.dtype)
        project = (slopes * weights[:, None]).T
        _, push = jax.linearize(phi, jax.lax.stop_gradient((curve.start + curve.end) / 2))
        transposed = jax.linear_transpose(push, curve.start)
        solve = partial(_least_squares, push, lambda y: transposed(y)[0], iterations=self.iterations)
        velocities = _velocities(phi, curve)
        for _ in range(self.rounds):
            # By the envelope theorem the coefficients may be held fixed when the length is differentiated.
            residuals = jax.lax.stop_gradient(project @ velocities)
            # Unrolled: modes are few, and a batch axis of size one costs XLA transposes.
            step = jnp.stack([solve(residual) for residual in residuals])
            trial = Curve(curve.start, curve.end, curve.coefficients + step, curve.basis)
            trial_velocities = _velocities(phi, trial)
            # False for NaN, which must not win over a straight line that is fine.
            better = _length(trial_velocities, weights) <= _length(velocities, weights)
            coefficients = jnp.where(better, trial.coefficients, curve.coefficients)
            curve = Curve(curve.start, curve.end, coefficients, curve.basis)
            velocities = jnp.where(better, trial_velocities, velocities)
        decrease = sum(_cauchy_decrease(push, lambda y: transposed(y)[0], r) for r in project @ velocities)
        return curve, velocities, decrease <= self.tolerance * (jnp.sum(velocities**2, axis=-1) @ weights)


def _velocities(phi: Immersion, curve: Curve) -> Velocities:
    points, velocities = curve.at(gauss(curve.basis.size + 1)[0])
    return jax.vmap(lambda point, velocity: jax.jvp(phi, (point,), (velocity,))[1])(points, velocities)


def _length(velocities: Velocities, weights: Float[Array, " nodes"]) -> Scalar:
    return root(jnp.sum(velocities**2, axis=-1)) @ weights


def _least_squares(push: Immersion, pull: Immersion, r: Float[Array, " ambient"], iterations: int) -> Point:
    # Conjugate gradients on min ‖Jw + r‖² (CGLS), which never forms JᵀJ; unrolled, since a handful of steps does.
    gradient = -pull(r)
    w, direction, square = jnp.zeros_like(gradient), gradient, gradient @ gradient
    for _ in range(iterations):
        image = push(direction)
        rate = _ratio(square, image @ image)
        w, r = w + rate * direction, r + rate * image
        gradient = -pull(r)
        square, previous = gradient @ gradient, square
        direction = gradient + _ratio(square, previous) * direction
    return w


def _cauchy_decrease(push: Immersion, pull: Immersion, r: Float[Array, " ambient"]) -> Scalar:
    gradient = pull(r)
    square, image = gradient @ gradient, push(gradient)
    return square * _ratio(square, image @ image)


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    # Coincident endpoints and a singular G give 0/0: there is nothing to correct.
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), 0)
