"""Random projections (Johnson–Lindenstrauss) of long vectors whose distances matter.

Draw `P` with `k` rows and independent entries `N(0, 1/k)`. For a fixed `v`, the entries of `√k Pv`
are independent `N(0, ‖v‖²)`, so `√k ‖Pv‖/‖v‖` has the distribution of `‖g‖` with `g ~ N(0, I_k)`.

**Bound.** `g ↦ ‖g‖` is 1-Lipschitz, so `‖g‖` deviates from its mean by `t` or more with a
probability of at most `2 exp(−t²/2)` (concentration of Gaussian measure). The mean lies between
`k/√(k + 1)` and `√k`, that is, at most `√k/(2k)` below `√k`. Together, with probability `1 − δ`,

    |‖Pv‖/‖v‖ − 1| ≤ ε(δ) = √(2 ln(2/δ)/k) + 1/(2k),

whatever the dimension of `v`. The typical error is `1/√(2k)`: 3% for the default `k = 512`, where
`ε(1%) = 14%`.

**Lengths.** A polygon with `S` sides `dⱼ`, each with a part `nⱼ ≥ 0` that is not projected, has the
length `Σⱼ √(‖dⱼ‖² + nⱼ)`. If every `‖Pdⱼ‖` is within a factor `1 ± ε` of `‖dⱼ‖`, so is every
summand, and so is the length. This holds with probability `1 − Sδ`, and for `K` polygons together
with probability `1 − KSδ`.
"""

import math

import jax
from jaxtyping import Array, Float, PRNGKeyArray

# Number of values that remain of a vector.
KEPT = 512


def draw_projection(
    size: int, kept: int = KEPT, *, key: PRNGKeyArray
) -> Float[Array, "{kept} {size}"]:
    """Draw a random projection of vectors of this size."""
    return jax.random.normal(key, (kept, size)) / math.sqrt(kept)


def bound_projection_error(kept: int, probability: float) -> float:
    """Return the relative error of a length that is exceeded with at most this probability."""
    return math.sqrt(2 * math.log(2 / probability) / kept) + 1 / (2 * kept)
