"""Run geomstats, which solves the geodesic equation as a boundary value problem, on any metric.

Its own solver of the equation (`LogODESolver` with SciPy's `solve_bvp`) starts from the straight
line and uses the Jacobian, as its defaults do. The Christoffel symbols come from compiled JAX
functions in double precision. They are evaluated for a few shapes only, because the solver changes
the number of its nodes.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.geometry import AbstractMetric

NODES = 64


def is_installed() -> bool:
    """Return whether geomstats can be imported."""
    return find_spec("geomstats") is not None


def build(
    metric: AbstractMetric, starts: Float[np.ndarray, "pairs dim"], ends: np.ndarray
) -> Callable[[], Float[np.ndarray, "pairs nodes dim"]]:
    """Build a call that solves all pairs and returns points of the curves."""
    # geomstats 2.8 imports names that NumPy 2.4 has dropped.
    for old, new in (("trapz", "trapezoid"), ("in1d", "isin")):
        if not hasattr(np, old):
            setattr(np, old, getattr(np, new))
    os.environ.setdefault("GEOMSTATS_BACKEND", "numpy")
    from geomstats.geometry.euclidean import Euclidean
    from geomstats.geometry.riemannian_metric import RiemannianMetric
    from geomstats.numerics.geodesic import LogODESolver

    with jax.enable_x64(True):
        metric = jax.tree.map(
            lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, metric
        )

    def evaluate(function: Callable[..., Array], points: np.ndarray) -> np.ndarray:
        rows = points.reshape(-1, points.shape[-1])
        # Repeat the last point up to a power of two.
        size = 2 ** int(np.ceil(np.log2(len(rows))))
        padded = rows[np.minimum(np.arange(size), len(rows) - 1)]
        with jax.enable_x64(True):
            values = np.asarray(function(metric, jnp.asarray(padded)))[: len(rows)]
        return values.reshape(*points.shape[:-1], *values.shape[1:])

    class Metric(RiemannianMetric):  # type: ignore[misc]
        def metric_matrix(self, base_point: np.ndarray) -> np.ndarray:
            return evaluate(_compute_tensors, base_point)

        def christoffels(self, base_point: np.ndarray) -> np.ndarray:
            return evaluate(_compute_symbols, base_point)

        def jacobian_christoffels(self, base_point: np.ndarray) -> np.ndarray:
            return evaluate(_differentiate_symbols, base_point)

    space: Any = Euclidean(starts.shape[1], equip=False)
    space.equip_with_metric(Metric)
    solver = LogODESolver(space)
    times = np.linspace(0, 1, NODES + 1)

    def solve() -> np.ndarray:
        return np.stack([solver.geodesic_bvp(b, a)(times) for a, b in zip(starts, ends)])

    return solve


def _symbols(metric: AbstractMetric, z: Float[Array, " dim"]) -> Float[Array, "dim dim dim"]:
    D = jax.jacfwd(metric)(z)  # D[i, j, k] = ∂ₖ Gᵢⱼ
    lowered = (jnp.swapaxes(D, 1, 2) + D - jnp.moveaxis(D, 2, 0)) / 2
    return jnp.tensordot(jnp.linalg.inv(metric(z)), lowered, axes=1)


@eqx.filter_jit
def _compute_tensors(metric: AbstractMetric, points: Array) -> Array:
    return jax.vmap(metric)(points)


@eqx.filter_jit
def _compute_symbols(metric: AbstractMetric, points: Array) -> Array:
    return jax.vmap(lambda z: _symbols(metric, z))(points)


@eqx.filter_jit
def _differentiate_symbols(metric: AbstractMetric, points: Array) -> Array:
    return jax.vmap(jax.jacfwd(lambda z: _symbols(metric, z)))(points)
