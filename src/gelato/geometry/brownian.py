"""Brownian motion of a metric: the diffusion whose generator is half the Laplace–Beltrami operator.

With an orthonormal frame `eₐ` and independent Wiener processes `Wₐ`,

    dz = Σₐ eₐ dWₐ − ½ Σₐ Γ(eₐ, eₐ) dt        (Itô).
"""

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.geometry.curvature import connect, make_frame
from gelato.geometry.metric import AbstractMetric, Point


def brownian_motion(
    metric: AbstractMetric, start: Point, time: float, steps: int = 256, *, key: PRNGKeyArray
) -> Float[Array, "steps dim"]:
    """Draw one path by the Euler–Maruyama method; returns the point after each step."""
    h = time / steps

    def step(z: Point, key: PRNGKeyArray) -> tuple[Point, Point]:
        frame = make_frame(metric, z)
        drift = jnp.sum(jax.vmap(lambda e: connect(metric, z, e, e))(frame), axis=0)
        noise = jr.normal(key, z.shape, z.dtype)
        moved = z - h / 2 * drift + jnp.sqrt(h).astype(z.dtype) * (noise @ frame)
        return moved, moved

    return jax.lax.scan(step, start, jr.split(key, steps))[1]
