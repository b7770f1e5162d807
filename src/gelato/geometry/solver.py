"""What every geodesic solver takes and returns, the straight line, and the bracket around every distance.

‖Φ(a) − Φ(b)‖  ≤  d(a, b) = inf_γ ∫ √(γ'ᵀG(γ)γ') dt  ≤  length of the straight line
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre, Scalar, length_and_energy, straight
from gelato.geometry.metric import AbstractImmersed, AbstractMetric, Point


class Geodesic(eqx.Module):
    """A curve with its length, its energy, and whether the solver's own test of convergence passed."""

    curve: Curve
    length: Scalar
    energy: Scalar
    converged: Bool[Array, ""]


class AbstractSolver(eqx.Module):
    """A way to find a short curve between two points; hyperparameters are its fields."""

    @abstractmethod
    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        """The curve found between `a` and `b`: pure, to be `jit`ted and `vmap`ped."""


class Straight(AbstractSolver):
    """The straight line, measured by Gauss quadrature: the upper end of the bracket, and no solver at all."""

    nodes: int = eqx.field(static=True, default=3)

    def __call__(self, metric: AbstractMetric, a: Point, b: Point) -> Geodesic:
        check_dimensions(a, b)
        curve = straight(a, b, Legendre(1))
        L, E = length_and_energy(metric, curve, self.nodes)
        return Geodesic(curve, L, E, jnp.isfinite(L))


def lower_bound(metric: AbstractImmersed, a: Point, b: Point) -> Scalar:
    """`‖Φ(a) − Φ(b)‖`, no longer than any curve in latent space (Φ anchored at the midpoint)."""
    phi = metric.immersion((a + b) / 2)
    # The shortened products of an accelerator would blur the difference.
    with jax.default_matmul_precision("float32"):
        return jnp.linalg.norm(phi(b) - phi(a))


def bracket(metric: AbstractImmersed, a: Point, b: Point, nodes: int = 8) -> Float[Array, "2"]:
    """`[‖Φ(a) − Φ(b)‖, length of the straight line]`, the distance's lower and upper bound."""
    return jnp.stack([lower_bound(metric, a, b), Straight(nodes)(metric, a, b).length])


def check_dimensions(a: Point, b: Point) -> None:
    """Refuse endpoints that do not live in the same space."""
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"endpoints have shapes {a.shape} and {b.shape}; a solver takes two single points of one dimension: "
            "pass vectors of equal size and `vmap` over batches"
        )
