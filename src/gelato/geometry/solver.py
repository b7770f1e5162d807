"""The interface of geodesic solvers, the straight line, and bounds of distances.

‖Φ(a) − Φ(b)‖  ≤  d(a, b) = inf_γ ∫ √(γ'ᵀG(γ)γ') dt  ≤  length of the straight line
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, make_straight_curve
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point
from gelato.geometry.variation import measure_curve


class Geodesic(eqx.Module):
    """A curve between two points, and what is known about it.

    `error` estimates the relative error of `length`; it is infinite if the metric is not finite
    along the curve. `converged` means `error ≤ tolerance`. `several` means that the solver also
    found a different curve of the same length, within the errors.
    """

    curve: Curve
    length: Scalar
    energy: Scalar
    error: Scalar
    converged: Bool[Array, ""]
    several: Bool[Array, ""]


class AbstractSolver(eqx.Module):
    """A method to find a short curve between two points; its fields are hyperparameters."""

    @abstractmethod
    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        """Find a curve from `a` to `b`. Pure; use `jit` and `vmap`."""


class Straight(AbstractSolver):
    """The straight line, measured by Gauss quadrature: an upper bound of the distance."""

    nodes: int = eqx.field(static=True, default=3)
    tolerance: float = eqx.field(static=True, default=1e-2)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        curve = make_straight_curve(a, b, Legendre(1))
        return make_geodesic(metric, curve, self.nodes, self.tolerance)


def make_geodesic(
    metric: AbstractMetric,
    curve: Curve,
    nodes: int,
    tolerance: float | Scalar,
    remaining: Scalar | float = 0.0,
) -> Geodesic:
    """Measure a curve that a solver found, and estimate the error of its length.

    `remaining` is the relative decrease of the length that the solver's own model predicts.
    """
    L, E, error = measure_curve(metric, curve, nodes)
    error = jnp.where(jnp.isfinite(L) & jnp.isfinite(error), error + remaining, jnp.inf)
    return Geodesic(curve, L, E, error, error <= tolerance, jnp.asarray(False))


def lower_bound(metric: AbstractImmersed, a: Point, b: Point) -> Scalar:
    """Compute the lower bound `‖Φ(a) − Φ(b)‖` of the distance, with Φ anchored at the midpoint."""
    phi = metric.immersion((a + b) / 2)
    # An accelerator's fast products have too little precision for this difference.
    with jax.default_matmul_precision("float32"):
        return jnp.linalg.norm(phi(b) - phi(a))


def bracket(metric: AbstractImmersed, a: Point, b: Point, nodes: int = 8) -> Float[Array, "2"]:
    """Compute the bounds of the distance: `[‖Φ(a) − Φ(b)‖, length of the straight line]`."""
    return jnp.stack([lower_bound(metric, a, b), Straight(nodes)(metric, a, b).length])


def check_dimensions(a: Point, b: Point) -> None:
    """Raise an error if the endpoints are not two vectors of equal size."""
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"The endpoints have shapes {a.shape} and {b.shape}. "
            "Pass two vectors of equal size and use `vmap` for batches."
        )
