"""t-SNE from a matrix of distances (van der Maaten and Hinton, 2008), exact and deterministic.

    P = symmetrised neighbour probabilities of a given perplexity,   Q ∝ 1/(1 + ‖yᵢ − yⱼ‖²),   min_y KL(P ‖ Q)

It starts from classical scaling rather than from random points, so that equal distances give equal pictures.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.linalg import eigsh

Layout = Float[Array, "n 2"]
EXAGGERATION, EXAGGERATED = 12.0, 250
BISECTIONS = 50


def tsne(distances: Float[np.ndarray, "n n"], perplexity: float = 30.0, iterations: int = 750) -> np.ndarray:
    """Points in the plane whose neighbours are the neighbours of the distances."""
    affinities = neighbour_probabilities(distances, min(perplexity, (len(distances) - 1) / 3))
    P = jnp.asarray((affinities + affinities.T) / (2 * len(distances)), jnp.float32)
    return np.asarray(_descend(P, jnp.asarray(classical_scaling(distances), jnp.float32), iterations))


def neighbour_probabilities(distances: Float[np.ndarray, "n n"], perplexity: float) -> Float[np.ndarray, "n n"]:
    """Row `i` is `∝ exp(−βᵢ d²)` without `i` itself, with `βᵢ` such that its entropy is the perplexity's logarithm."""
    squares = np.array(distances, np.float64) ** 2
    np.fill_diagonal(squares, np.inf)
    squares -= squares.min(axis=1, keepdims=True)
    typical = np.median(squares[np.isfinite(squares)]) or 1.0
    low, high = np.full((2, len(squares), 1), np.log(1e-6 / typical))
    high = high + np.log(1e12)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        P = np.exp(-np.exp(middle) * squares)
        P /= P.sum(axis=1, keepdims=True)
        entropy = -np.sum(P * np.log(np.maximum(P, 1e-300)), axis=1, keepdims=True)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return P


def classical_scaling(distances: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n 2"]:
    """The two leading coordinates of the distances' Gram matrix, signs fixed, tiny as t-SNE wants its start."""
    squares = np.asarray(distances, np.float64) ** 2
    gram = -(squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()) / 2
    _, vectors = eigsh(gram, k=2, v0=np.ones(len(gram)))
    vectors = vectors[:, ::-1] * np.sign(vectors[np.abs(vectors).argmax(axis=0), [0, 1]])[::-1]
    return 1e-4 * vectors / vectors.std(axis=0)


@jax.jit(static_argnames="iterations")
def _descend(P: Float[Array, "n n"], start: Layout, iterations: int) -> Layout:
    rate = jnp.maximum(P.shape[0] / EXAGGERATION / 4, 50.0)

    def step(index: Array, state: tuple[Layout, Layout, Layout]) -> tuple[Layout, Layout, Layout]:
        y, velocity, gains = state
        early = index < EXAGGERATED
        gradient = _gradient(jnp.where(early, EXAGGERATION, 1.0) * P, y)
        agree = jnp.sign(gradient) == jnp.sign(velocity)
        gains = jnp.maximum(jnp.where(agree, gains * 0.8, gains + 0.2), 0.01)
        velocity = jnp.where(early, 0.5, 0.8) * velocity - rate * gains * gradient
        return y + velocity, velocity, gains

    still = jnp.zeros_like(start)
    return jax.lax.fori_loop(0, iterations, step, (start, still, jnp.ones_like(start)))[0]


def _gradient(P: Float[Array, "n n"], y: Layout) -> Layout:
    squares = jnp.sum(y**2, axis=1)
    kernel = 1 / (1 + jnp.maximum(squares[:, None] + squares - 2 * y @ y.T, 0))
    kernel = kernel - jnp.diag(jnp.diag(kernel))
    forces = (P - kernel / jnp.sum(kernel)) * kernel
    return 4 * (jnp.sum(forces, axis=1)[:, None] * y - forces @ y)
