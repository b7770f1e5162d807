"""The penalty that guards a policy: is the pair far from the data, or is the action unusual here?

In a dense log every state-action has near neighbours, so the distance to them hardly depends on the
action. `Guard` therefore adds the question that a user asks: at states like this one, were actions
like this taken? It is the larger of two parts, each in units of its spread over held-out data:

    EuclideanDistance   (1/K) Σₖ ‖e − eₖ‖                    how far the pair is from the data
    UnusualAction       −log Σₖ wₖ exp(−‖a − aₖ‖²/2h²)       how rare the action is at such states

The first part stands for −log p(s, a) and the second for −log π(a|s) of the logged behaviour. Both
need only the networks and a table of data points, so they fit into an exported graph.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.arrays import take
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.geometry import Index, find_neighbours, prepare
from gelato.model.latent import LatentModel
from gelato.model.networks import GaussianMLP
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.penalty import (
    NO_EXCLUSION,
    AbstractPenalty,
    Embedded,
    EuclideanDistance,
    Scalar,
    map_rows,
)
from gelato.uncertainty.scores import ORDINARY

# Candidates for the number of states whose actions are compared, and for the width of the kernel in
# standard deviations of the logged actions.
_STATES = (5, 10, 20, 50, 100, 200)
_WIDTHS = (0.05, 0.1, 0.2, 0.4, 0.8)
# One-hot actions are √2 apart. These give another action 0.2%, 2%, 14% or 37% of an equal one.
_WIDTHS_DISCRETE = (0.4, 0.5, 0.7, 1.0)
_HELD_OUT = 1024
# Grid worlds repeat states exactly. A little noise, in standard deviations of the latent states and
# fixed once, gives repeated states an order that does not depend on rounding.
_NOISE = 1e-2
# They keep the weights defined where all neighbours are equally near.
LEAST_WEIGHT, LEAST_SQUARE = 1e-6, 1e-30
# An action that nobody took has a tiny density. The floor keeps it from deciding alone.
_LEAST_DENSITY = 1e-12


class UnusualAction(AbstractPenalty):
    """`U(e) = −log Σₖ wₖ exp(−‖a − aₖ‖²/2h²)` over the `K` nearest latent states.

    Up to a constant, this is `−log π̂(a|s)` for a kernel density of width `h`. `actions` are in
    standard deviations of the logged actions, and so is `h`. The weights `wₖ ∝ 1 − (dₖ/d_K)²` fall
    to zero at the last neighbour, so that `U` is continuous where neighbours change.
    """

    model: LatentModel
    states: Index
    actions: Float[Array, "n action"]
    scale: Float[Array, " action"]
    width: Float[Array, ""]
    k: int = eqx.field(static=True)

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        distances, squares = self.compare(e, exclude)
        weights = weigh(distances)
        exponents = jnp.log(weights) - squares / (2 * self.width**2)
        return jnp.log(jnp.sum(weights)) - jax.nn.logsumexp(exponents)

    def compare(
        self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION
    ) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Return distances to the nearest states, and squared distances to the actions there."""
        z, a = self.model.embedding.inverse(e)
        rows, distances = find_neighbours(self.states, z, self.k, exclude)
        return distances, jnp.sum((self.actions[rows] - a / self.scale) ** 2, axis=1)

    @property
    def points(self) -> int:
        return len(self.states)


def weigh(
    distances: Float[Array | np.ndarray, "*batch k"],
) -> Float[Array | np.ndarray, "*batch k"]:
    """Return weights that fall from 1 to almost 0 at the last of these distances."""
    squares = distances**2
    # NumPy's arrays are computed by NumPy, which compiles nothing.
    maximum: Any = np.maximum if isinstance(squares, np.ndarray) else jnp.maximum
    farthest = maximum(squares[..., -1:], LEAST_SQUARE)
    return maximum(1 - squares / farthest, LEAST_WEIGHT)


class Guard(AbstractPenalty):
    """`U(e) = maxᵢ (Uᵢ(e) − levelᵢ)/unitᵢ`, at least 0: the part that objects most.

    `level` is a part's median on held-out data, and `unit` how far its 95% quantile lies above.
    """

    distance: EuclideanDistance
    action: UnusualAction
    levels: Float[Array, "2"]
    units: Float[Array, "2"]

    def __call__(self, e: Embedded, exclude: Int[Array, ""] | int = NO_EXCLUSION) -> Scalar:
        parts = jnp.stack([self.distance(e, exclude), self.action(e, exclude)])
        return jnp.max(jnp.maximum((parts - self.levels) / self.units, 0))

    @property
    def points(self) -> int:
        return self.distance.points + self.action.points


def fit_unusual_action(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> UnusualAction:
    """Build `UnusualAction` with the kernel under which held-out actions are most likely."""
    discrete = not isinstance(model.policy, GaussianMLP)
    z, actions, scale = _list_actions(model, data.embeddings, discrete)
    most = min(_STATES[-1], len(data) - 1)
    unfinished = UnusualAction(model, prepare(z), actions, scale, jnp.ones(()), most)
    rows = choose_evenly(held_out, _HELD_OUT)
    distances, squares = _compare_all(unfinished, take(held_out.embeddings, rows))
    k, width = choose_kernel(
        np.asarray(distances), np.asarray(squares), len(scale), discrete=discrete
    )
    return UnusualAction(model, unfinished.states, actions, scale, jnp.float32(width), k)


def choose_kernel(
    distances: Float[np.ndarray, "rows k"],
    squares: Float[np.ndarray, "rows k"],
    size: int,
    *,
    discrete: bool,
) -> tuple[int, float]:
    """Choose the number of states and the width of the kernel with the largest likelihood.

    `distances` are those of held-out rows to their nearest states, and `squares` the squared
    distances to the actions there. `size` is the number of action dimensions.
    """
    best, chosen = -np.inf, (1, _WIDTHS[-1])
    for k in sorted({min(k, squares.shape[1]) for k in _STATES}):
        weights = np.asarray(weigh(distances[:, :k]))
        weights = weights / weights.sum(axis=1, keepdims=True)
        for width in _WIDTHS_DISCRETE if discrete else _WIDTHS:
            # The kernel's mass: a sum over one-hot actions, or an integral.
            mass = 1 + (size - 1) * np.exp(-1 / width**2) if discrete else width**size
            kernels = np.exp(-squares[:, :k] / (2 * width**2)) / mass
            density = np.sum(weights * kernels, axis=1)
            likelihood = np.log(np.maximum(density, _LEAST_DENSITY)).mean()
            if likelihood > best:
                best, chosen = likelihood, (k, width)
    return chosen


def combine(distance: EuclideanDistance, action: UnusualAction, held_out: EmbeddedData) -> Guard:
    """Build `Guard` with both parts in units of their spread over held-out data."""
    e = take(held_out.embeddings, choose_evenly(held_out, _HELD_OUT))
    levels, units = [], []
    for part in (distance, action):
        level, high = np.quantile(np.asarray(_measure(part, e)), (0.5, ORDINARY))
        levels.append(level)
        units.append(high - level if high > level else 1.0)
    if not np.isfinite([levels, units]).all():
        raise InputError("its parts are not finite on held-out data")
    return Guard(
        distance, action, jnp.asarray(levels, jnp.float32), jnp.asarray(units, jnp.float32)
    )


@eqx.filter_jit
def _list_actions(
    model: LatentModel, embeddings: Float[Array, "n embedding"], discrete: bool
) -> tuple[Float[Array, "n latent"], Float[Array, "n action"], Float[Array, " action"]]:
    """Return the latent states with noise, the scaled actions there, and the scale of actions."""
    z, a = jax.vmap(model.embedding.inverse)(embeddings)
    z += _NOISE * jnp.std(z, axis=0) * jax.random.normal(jax.random.key(0), z.shape)
    spread = jnp.std(a, axis=0)
    scale = jnp.ones_like(spread) if discrete else jnp.where(spread > 0, spread, 1.0)
    return z, a / scale, scale


@eqx.filter_jit
def _measure(penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]) -> Array:
    return map_rows(penalty, penalty.points, embeddings)


@eqx.filter_jit
def _compare_all(
    penalty: UnusualAction, embeddings: Float[Array, "n embedding"]
) -> tuple[Array, Array]:
    return map_rows(penalty.compare, penalty.points, embeddings)
