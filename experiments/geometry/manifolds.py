"""Manifolds with known distances, in charts of our own choice, and the pairs to measure on them.

`near` pairs are about a tenth of the chart apart, `far` pairs are independent.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.geometry import AbstractMetric, Pullback, Tensor

Points = Float[Array, "pairs dim"]
NEAR = 0.1


class Manifold(NamedTuple):
    """A metric, a sampler of points in its chart, and the distance where a closed form exists."""

    name: str
    dim: int
    metric: AbstractMetric
    sample: Callable[[PRNGKeyArray, int], Points]
    distance: Callable[[Points, Points], Float[np.ndarray, " pairs"]] | None = None

    def draw_pairs(self, range_: str, count: int, seed: int = 0) -> tuple[Points, Points]:
        """Draw pairs of points."""
        first, second = jr.split(jr.key(seed))
        starts, others = self.sample(first, count), self.sample(second, count)
        return starts, others if range_ == "far" else starts + NEAR * (others - starts)


class Stereographic(eqx.Module):
    """The unit sphere from its north pole, stretched by half-axes."""

    axes: Float[Array, " ambient"]

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, " ambient"]:
        square = z @ z
        return self.axes * jnp.append(2 * z, square - 1) / (1 + square)


def sphere(dim: int) -> Manifold:
    """The unit sphere in the stereographic chart."""
    immersion = Stereographic(jnp.ones(dim + 1))
    return Manifold(
        f"sphere-{dim}", dim, Pullback(immersion), _sample_ball(dim), _measure_angles(immersion)
    )


def ellipsoid(dim: int) -> Manifold:
    """An ellipsoid with half-axes from 0.5 to 1 in the stereographic chart of the sphere."""
    metric = Pullback(Stereographic(jnp.linspace(0.5, 1.0, dim + 1)))
    return Manifold(f"ellipsoid-{dim}", dim, metric, _sample_ball(dim))


def polar_sphere() -> Manifold:
    """The unit sphere with longitude and latitude; some geodesics pass close to a pole."""

    def sample(key: PRNGKeyArray, count: int) -> Points:
        return jr.uniform(key, (count, 2), minval=-1.3, maxval=1.3)

    return Manifold("sphere-polar", 2, Pullback(_turn), sample, _measure_angles(_turn))


def paraboloid(dim: int) -> Manifold:
    """The graph of `|z|²`."""
    metric = Pullback(_lift)
    return Manifold(f"paraboloid-{dim}", dim, metric, _sample_ball(dim))


def torus() -> Manifold:
    """A torus with radii 2 and 1; coordinates are the two angles, without identification."""

    def sample(key: PRNGKeyArray, count: int) -> Points:
        return jr.uniform(key, (count, 2), minval=-1.5, maxval=1.5)

    return Manifold("torus", 2, Pullback(_wind), sample)


def hyperbolic(dim: int) -> Manifold:
    """The half-space model of hyperbolic space; the last coordinate is the height."""

    def sample(key: PRNGKeyArray, count: int) -> Points:
        flat = jr.normal(key, (count, dim)) / jnp.sqrt(dim)
        return flat.at[:, -1].set(jnp.exp(0.5 * jr.normal(jr.fold_in(key, 1), (count,))))

    def measure(a: Points, b: Points) -> np.ndarray:
        a, b = np.asarray(a, float), np.asarray(b, float)
        square = np.sum((a - b) ** 2, axis=1)
        return 2 * np.arcsinh(np.sqrt(square / (4 * a[:, -1] * b[:, -1])))

    return Manifold(f"hyperbolic-{dim}", dim, Tensor(_scale), sample, measure)


def spd(size: int) -> Manifold:
    """Symmetric positive definite matrices with the affine-invariant metric.

    Coordinates are the entries on and above the diagonal.
    """
    rows, columns = np.triu_indices(size)

    def unpack(z: Array) -> Array:
        upper = jnp.zeros((size, size), z.dtype).at[rows, columns].set(z)
        return upper + upper.T - jnp.diag(jnp.diag(upper))

    def tensor(z: Array) -> Array:
        inverse = jnp.linalg.inv(unpack(z))
        moved = jax.vmap(lambda v: inverse @ unpack(v))(jnp.eye(len(rows), dtype=z.dtype))
        return jnp.einsum("aij,bji->ab", moved, moved)

    def sample(key: PRNGKeyArray, count: int) -> Points:
        factors = jnp.eye(size) + 0.4 * jr.normal(key, (count, size, size)) / jnp.sqrt(size / 2)
        return (factors @ jnp.swapaxes(factors, 1, 2) + 0.1 * jnp.eye(size))[:, rows, columns]

    def measure(a: Points, b: Points) -> np.ndarray:
        from scipy.linalg import eigh

        def one(p: np.ndarray, q: np.ndarray) -> float:
            P, Q = (np.asarray(unpack(jnp.asarray(x)), float) for x in (p, q))
            return float(np.linalg.norm(np.log(eigh(Q, P, eigvals_only=True))))

        return np.array([one(p, q) for p, q in zip(np.asarray(a), np.asarray(b))])

    return Manifold(f"spd-{size}x{size}", len(rows), Tensor(tensor), sample, measure)


def list_manifolds() -> list[Manifold]:
    """List the manifolds of the benchmarks."""
    return [
        *(sphere(dim) for dim in (2, 10, 100)),
        *(make(dim) for make in (ellipsoid, paraboloid) for dim in (2, 10, 100)),
        polar_sphere(),
        torus(),
        hyperbolic(2),
        hyperbolic(10),
        spd(2),
        spd(5),
    ]


def _sample_ball(dim: int) -> Callable[[PRNGKeyArray, int], Points]:
    def sample(key: PRNGKeyArray, count: int) -> Points:
        return jr.normal(key, (count, dim)) / jnp.sqrt(dim)

    return sample


def _turn(z: Float[Array, "2"]) -> Float[Array, "3"]:
    longitude, latitude = z
    flat = jnp.cos(latitude)
    return jnp.stack([flat * jnp.cos(longitude), flat * jnp.sin(longitude), jnp.sin(latitude)])


def _lift(z: Float[Array, " dim"]) -> Float[Array, " ambient"]:
    return jnp.append(z, z @ z)


def _wind(z: Float[Array, "2"]) -> Float[Array, "3"]:
    ring = 2 + jnp.cos(z[1])
    return jnp.stack([ring * jnp.cos(z[0]), ring * jnp.sin(z[0]), jnp.sin(z[1])])


def _scale(z: Float[Array, " dim"]) -> Float[Array, "dim dim"]:
    return jnp.eye(z.size, dtype=z.dtype) / z[-1] ** 2


def _measure_angles(immersion: Callable[[Array], Array]) -> Callable[..., np.ndarray]:
    def measure(a: Points, b: Points) -> np.ndarray:
        with jax.enable_x64(True):
            u, v = (jax.vmap(immersion)(jnp.asarray(np.asarray(x, float))) for x in (a, b))
            chord = jnp.linalg.norm(u - v, axis=1)
            return np.asarray(2 * jnp.arcsin(chord / 2))

    return measure
