"""The Levi-Civita connection and its curvature, by automatic differentiation of the metric.

    Γ(u, v) = ½ G⁻¹ ((D_u G) v + (D_v G) u − ∇(uᵀGv))
    R(u, v)w = D_u Γ(v, w) − D_v Γ(u, w) + Γ(u, Γ(v, w)) − Γ(v, Γ(u, w))

Here `D_u` differentiates at the point and holds the other tangents constant. All functions need a
regular `G`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.geometry.curve import Scalar
from gelato.geometry.metric import AbstractMetric, Point, Tangent


def connect(metric: AbstractMetric, point: Point, u: Tangent, v: Tangent) -> Tangent:
    """Compute the Christoffel symbols `Γ(u, v)`: a geodesic has `γ'' = −Γ(γ', γ')`."""
    G, along_u = jax.jvp(metric, (point,), (u,))
    along_v = jax.jvp(metric, (point,), (v,))[1]
    gradient = jax.grad(lambda z: u @ metric(z) @ v)(point)
    return jnp.linalg.solve(G, along_u @ v + along_v @ u - gradient) / 2


def riemann(metric: AbstractMetric, point: Point, u: Tangent, v: Tangent, w: Tangent) -> Tangent:
    """Compute the Riemann curvature `R(u, v)w`."""

    def half(u: Tangent, v: Tangent) -> Tangent:
        vw, moved = jax.jvp(lambda z: connect(metric, z, v, w), (point,), (u,))
        return moved + connect(metric, point, u, vw)

    return half(u, v) - half(v, u)


def sectional_curvature(metric: AbstractMetric, point: Point, u: Tangent, v: Tangent) -> Scalar:
    """Compute the Gaussian curvature of the surface of geodesics in the plane of `u` and `v`."""
    G = metric(point)
    area = (u @ G @ u) * (v @ G @ v) - (u @ G @ v) ** 2
    return riemann(metric, point, u, v, v) @ G @ u / area


def scalar_curvature(metric: AbstractMetric, point: Point) -> Scalar:
    """Compute the scalar curvature: the sum of sectional curvatures over an orthonormal frame."""
    G, frame = metric(point), make_frame(metric, point)

    def measure(u: Tangent, v: Tangent) -> Scalar:
        return riemann(metric, point, u, v, v) @ G @ u

    return jnp.sum(jax.vmap(jax.vmap(measure, (None, 0)), (0, None))(frame, frame))


def make_frame(metric: AbstractMetric, point: Point) -> Float[Array, "dim dim"]:
    """Compute an orthonormal frame; its rows are tangents `eₐ` with `eₐᵀGeᵦ = δₐᵦ`."""
    return jnp.linalg.inv(jnp.linalg.cholesky(metric(point)))
