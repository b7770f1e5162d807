"""Roots of the inverses of small matrices, without LAPACK.

On a CPU, jaxlib divides a batch of LAPACK calls among the threads that also run the program, and
waits for them. Two batches at once then wait for each other forever on two cores (jaxlib 0.10.2),
so the programs of this package factor matrices with the loop below.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Matrix = Float[Array, "dim dim"]


def invert_root(G: Matrix) -> Matrix:
    """Find the lower triangular `R` with `RᵀR = G⁻¹`, for a symmetric positive `G`; else NaN.

    Gaussian elimination turns `[G, 1]` into `[Lᵀ, R]`, with `G = LLᵀ` and `R = L⁻¹`.
    """
    rows = jnp.arange(len(G))

    def eliminate(j: Array, state: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
        left, right = state
        root = jnp.sqrt(left[j, j])
        column = jnp.where(rows > j, left[:, j] / root, 0)
        row = right[j] / root
        left = left - jnp.outer(column, column)
        right = (right - jnp.outer(column, row)).at[j].set(row)
        return left, right

    return jax.lax.fori_loop(0, len(G), eliminate, (G, jnp.eye(len(G), dtype=G.dtype)))[1]
