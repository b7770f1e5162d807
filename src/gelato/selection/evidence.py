"""What estimators may look at: the log, the policies, and models of the log.

It holds no return of a policy in the real environment.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.errors import InputError
from gelato.selection.log import Log, normalise_actions
from gelato.selection.policies import AbstractTarget
from gelato.selection.replay import Bias
from gelato.selection.rollouts import Rollouts
from gelato.selection.temporal import Rows, TemporalConfig

_CHUNK = 8192


@dataclass(frozen=True)
class SelectSettings:
    """Settings of all estimators."""

    discount: float = 0.99
    """Discount of FQE, importance weighting and the value; returns of rollouts have none."""
    episodes: int = 16
    """Rollouts per policy and model."""
    model_updates: int = 30_000
    """Updates of the models that are fitted to halves of the episodes."""
    half_seeds: int = 2
    """Models per half of the episodes."""
    points: int = 20_000
    """Logged steps in which the penalty of a model looks for neighbours."""
    critics: TemporalConfig = field(default_factory=TemporalConfig)
    """Critics of FQE and of the value."""
    all_estimators: bool = False
    """Also compute the estimators that take no part in the choice: values and importance weighting.
    """
    imagined: int = 50_000
    """Imagined steps per policy that the value is learned from."""
    seed: int = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise InputError(f"discount is {self.discount}; it must be above 0 and at most 1")


class ImaginedSteps(eqx.Module):
    """Steps that policies imagined in the models they were trained in.

    `rows` have the policy as first axis; their rewards are the reward and the penalty U. `initial`
    holds what the policies see of the first states of episodes, with their choices there.
    """

    rows: Rows
    initial: Float[Array, "*policies e state"]
    initial_choices: Float[Array, "*policies e action"]


@dataclass(frozen=True)
class Evidence:
    """The log, stacked policies, and what they did in models."""

    log: Log
    policies: AbstractTarget
    settings: SelectSettings
    rollouts: Rollouts | None = None
    imagined: ImaginedSteps | None = None
    own_weights: Float[np.ndarray, " policies"] | None = None
    """The penalty weight λ that each policy was trained with."""
    bias: Bias | None = None
    """How wrong the models of the rollouts are about logged rewards."""

    @property
    def count(self) -> int:
        """The number of policies."""
        return int(jax.tree.leaves(self.policies)[0].shape[0])

    @property
    def key(self) -> PRNGKeyArray:
        """The key that all random numbers come from."""
        return jax.random.key(self.settings.seed)

    @property
    def steps(self) -> int:
        """The length of the longest logged episode."""
        return int(self.log.rows.shape[1])

    @property
    def reach(self) -> float:
        """The largest discounted number of steps."""
        discount = self.settings.discount
        return float(self.steps) if discount == 1 else 1 / (1 - discount)

    def bound_values(
        self, rewards: Float[np.ndarray, "n heads"]
    ) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, " heads"]]:
        """Return the lowest and the highest value that rewards allow."""
        low = np.minimum(rewards.min(axis=0), 0) * self.reach
        high = np.maximum(rewards.max(axis=0), 0) * self.reach
        return low, np.maximum(high, low + 1e-6)


@eqx.filter_jit
def choose_actions(
    policies: AbstractTarget, log: Log, states: Float[Array, "n state"], *, key: PRNGKeyArray
) -> Float[Array, "policies n action"]:
    """Return what every policy chooses in these states: scaled actions, or probabilities."""
    keys = jax.random.split(key, len(states))

    def of_policy(policy: AbstractTarget) -> Array:
        def one(row: tuple[Array, Array]) -> Array:
            return policy.choose(row[0], key=row[1])

        return jax.lax.map(one, (states, keys), batch_size=min(_CHUNK, len(states)))

    return normalise_actions(log.space, eqx.filter_vmap(of_policy)(policies))
