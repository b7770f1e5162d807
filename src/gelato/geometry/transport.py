"""Tangents of geodesics: the logarithm, interpolation, and parallel transport.

The momentum `m = Gγ' − ∫₀ᵗ ½∇_z(γ'ᵀGγ')` of `variation.py` is constant along a geodesic, and at the
start it is `Gγ'`. The initial velocity is therefore `G(a)⁻¹m̄`. This mean has the accuracy of the
whole curve, while the slope of a polynomial is least accurate at its ends.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.geometry.adaptive import Adaptive
from gelato.geometry.curvature import connect
from gelato.geometry.curve import Curve, Scalar
from gelato.geometry.metric import AbstractMetric, Point, Tangent
from gelato.geometry.solver import AbstractSolver
from gelato.geometry.variation import DAMPING, compute_momentum, invert_hessian

NODES = 48


def logarithm(
    metric: AbstractMetric, a: Point, b: Point, solver: AbstractSolver | None = None
) -> Tangent:
    """Compute the initial velocity of the geodesic from `a` to `b`: `exponential(a, v)` is `b`.

    Its norm under the metric is the distance.
    """
    return initial_velocity(metric, (solver or Adaptive())(metric, a, b).curve)


def initial_velocity(metric: AbstractMetric, curve: Curve, nodes: int = NODES) -> Tangent:
    """Compute the velocity of a geodesic at its start."""
    momentum = compute_momentum(metric, curve, nodes)[0]
    mean = invert_hessian(metric, curve, nodes, DAMPING).average(momentum)
    return jnp.linalg.solve(metric(curve.start), mean)


def interpolate(
    metric: AbstractMetric,
    a: Point,
    b: Point,
    times: Float[Array, " times"],
    solver: AbstractSolver | None = None,
) -> Float[Array, "times dim"]:
    """Compute points of the geodesic at fractions of its length; 0.5 is the midpoint."""
    return jax.vmap((solver or Adaptive())(metric, a, b).curve)(times)


def parallel_transport(
    metric: AbstractMetric, curve: Curve, vector: Tangent, steps: int = 64
) -> Tangent:
    """Move a tangent along a curve without turning it: `v' = −Γ(γ', v)`.

    The classical Runge-Kutta method integrates the equation; its error falls with `steps⁻⁴`.
    """

    def field(t: Scalar, v: Tangent) -> Tangent:
        return -connect(metric, curve(t), curve.velocity(t), v)

    h = 1 / steps

    def step(v: Tangent, t: Scalar) -> tuple[Tangent, None]:
        first = field(t, v)
        second = field(t + h / 2, v + h / 2 * first)
        third = field(t + h / 2, v + h / 2 * second)
        fourth = field(t + h, v + h * third)
        return v + h / 6 * (first + 2 * second + 2 * third + fourth), None

    return jax.lax.scan(step, vector, jnp.arange(steps) * jnp.asarray(h, vector.dtype))[0]


@eqx.filter_jit
def compute_logarithms(metric: AbstractMetric, curves: Curve) -> Float[Array, "pairs dim"]:
    """Compute the initial velocities of a batch of geodesics."""
    return jax.vmap(lambda curve: initial_velocity(metric, curve))(curves)
