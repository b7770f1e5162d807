"""The interface of every agent: initialise one policy, imagine steps with it, and update it.

The training program (`training/program.py`) calls these methods for one policy and uses `vmap` to
train many policies. A new agent implements this class. `examples/own_agent.py` shows a complete
one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from gelato.agents.networks import Actor
from gelato.compilation import Work
from gelato.data.spaces import ActionSpace
from gelato.dynamics.interface import AbstractDynamics, Latent
from gelato.mdp.pessimistic import ImaginedMDP, Limit, Step

Metrics = Mapping[str, Float[Array, ""]]
"""The mean of each quantity that an agent reports."""


class View(eqx.Module):
    """The inputs of one policy's training.

    `logged` holds the data, one packed row per step (`agents.replay.unpack`). `reward_range` holds
    the lowest and the highest logged reward. `dynamics` is None for methods without a model.
    `limit` ends imagined episodes; the program applies it before `learn` gets the steps.
    """

    dynamics: AbstractDynamics | None
    logged: Float[Array, "n columns"]
    starts: Float[Array, "k latent"]
    penalty_weight: Float[Array, ""]
    real_fraction: Float[Array, ""]
    reward_range: Float[Array, "2"]
    action_space: ActionSpace = eqx.field(static=True)
    limit: Limit | None = None

    @property
    def latent_size(self) -> int:
        """The size of the policy's input."""
        return self.starts.shape[-1]

    def make_imagined_mdp(self, horizon: int) -> ImaginedMDP:
        """Return the MDP of the model, without the penalty."""
        assert self.dynamics is not None
        return ImaginedMDP(self.dynamics, self.starts, horizon)


class AbstractAgent(ABC):
    """One policy's algorithm. Hyperparameters are fields of a frozen dataclass.

    Training takes `updates` updates in blocks of `block` updates; metrics are logged per block.
    Before every `updates_per_rollout` updates the policy imagines new steps. `key` is always the
    seed's own key: derive the key of each use and step with `gelato.random_streams.derive_key`.
    """

    updates: int
    # The quantile of the penalty over held-out data above which imagined episodes end.
    truncation: float | None = None
    # Whether the agent learns from imagined steps when the method has a fit.
    imagines: ClassVar[bool] = False
    # Whether the agent learns from logged steps.
    reads_log: ClassVar[bool] = True
    # Whether the agent itself subtracts a penalty, with the method's penalty weight.
    penalises: ClassVar[bool] = False
    # Whether the agent needs the dynamics of an ensemble in state space.
    needs_ensemble: ClassVar[bool] = False

    @property
    @abstractmethod
    def updates_per_rollout(self) -> int:
        """The number of updates between two rollouts."""

    @property
    def block(self) -> int:
        """The number of updates in a block, a multiple of `updates_per_rollout`."""
        return self.updates_per_rollout

    @property
    def total(self) -> int:
        """The total number of updates."""
        return self.updates

    def check(self, space: ActionSpace) -> None:  # noqa: B027 - most agents accept every space
        """Raise an `InputError` for actions that the agent cannot learn."""

    @abstractmethod
    def init(self, view: View, *, key: PRNGKeyArray) -> PyTree:
        """Return an untrained policy and the rest of the training state."""

    def imagine(
        self, view: View, state: PyTree, *, key: PRNGKeyArray
    ) -> tuple[PyTree, Step] | None:
        """Return steps imagined with the current policy, or None to use logged data only.

        The program subtracts the penalty from their rewards before `learn` gets them.
        """
        del view, state, key
        return None

    @abstractmethod
    def learn(
        self, view: View, state: PyTree, steps: Step | None, updates: int, *, key: PRNGKeyArray
    ) -> tuple[PyTree, Metrics]:
        """Update the policy. Return the new state and the mean of each metric."""

    @abstractmethod
    def actor(self, state: PyTree) -> Actor:
        """Return the policy itself."""

    def value(self, state: PyTree, z: Latent) -> Float[Array, ""] | None:
        """Return the value of a state, or None for an agent without a critic."""
        del state, z
        return None

    def estimate_work(self, latent_size: int, action_size: int, step_products: float) -> Work:
        """Estimate the cost of training one policy; an imagined step costs `step_products`."""
        del latent_size, action_size, step_products
        return Work()
