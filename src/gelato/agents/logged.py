"""Agents that learn from logged steps only: the loop that they share.

Such an agent says how one batch of rows changes its state. The loop draws the rows.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.networks import Actor, Critic
from gelato.compilation import TRAINED_PASSES, Work, count_products, fuse_small_arrays
from gelato.errors import InputError, require_positive
from gelato.mdp.pessimistic import Step
from gelato.random_streams import LEARN, NOISE, derive_key


@runtime_checkable
class HasActor(Protocol):
    """Networks with an actor among them."""

    actor: Actor


Networks = TypeVar("Networks", bound=HasActor)


@dataclass(frozen=True)
class AbstractLoggedAgent(AbstractAgent):
    """An agent without imagined steps, with the sizes that all of them have."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    rate: float = 3e-4
    """Learning rate."""
    batch_size: int = 256
    """Transitions per update."""
    updates: int = 300_000
    """Total number of updates."""
    epoch: int = 1_000
    """Updates between two rows of metrics."""

    # The random stream of the batches.
    stream: ClassVar[int] = LEARN
    # The number of networks that an update trains.
    trained_networks: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "rate", "batch_size", "updates", "epoch")

    @property
    def updates_per_rollout(self) -> int:
        return self.epoch

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the learning rate of the agent."""
        return fuse_small_arrays(optax.adam(self.rate))

    @abstractmethod
    def update(
        self, view: View, state: PyTree, rows: Int[Array, " size"], *, key: PRNGKeyArray
    ) -> tuple[PyTree, Metrics]:
        """Change the state by one batch: these rows of `view.logged`."""

    def learn(
        self, view: View, state: PyTree, steps: Step | None, updates: int, *, key: PRNGKeyArray
    ) -> tuple[PyTree, Metrics]:
        del steps

        def draw_rows(step: Int[Array, ""]) -> Int[Array, " size"]:
            key_now = derive_key(key, self.stream, step)
            return jax.random.randint(key_now, (self.batch_size,), 0, len(view.logged))

        def update(state: PyTree, rows: Int[Array, " size"]) -> tuple[PyTree, Metrics]:
            return self.update(view, state, rows, key=derive_key(key, NOISE, state.step))

        rows = jax.vmap(draw_rows)(state.step + jnp.arange(updates))
        state, metrics = jax.lax.scan(update, state, rows)
        return state, jax.tree.map(jnp.mean, metrics)

    def estimate_work(self, latent_size: int, action_size: int, step_products: float) -> Work:
        del step_products
        products = count_products((latent_size + action_size, *self.hidden, 2 * action_size))
        each = self.trained_networks * TRAINED_PASSES * products
        return Work(self.updates * self.batch_size * each, self.updates, programs=1)


def make_critics(
    view: View,
    hidden: Sequence[int],
    count: int = 2,
    *,
    normalised: bool = False,
    key: PRNGKeyArray,
) -> Critic:
    """Return untrained critics; the critic is the first axis of their arrays."""

    def make(key: PRNGKeyArray) -> Critic:
        size, actions = view.latent_size, view.action_space.size
        return Critic(size, actions, hidden, normalised=normalised, key=key)

    return eqx.filter_vmap(make)(jax.random.split(key, count))


def check_discount(discount: float) -> None:
    """Raise an error if the discount is not between 0 and 1."""
    if not 0 < discount < 1:
        raise InputError(f"discount is {discount}; it must lie strictly between 0 and 1")


def slow_actor(share: float | Float[Array, ""]) -> Callable[[Networks], Networks]:
    """Return a function that multiplies the actor's part of a change of networks by a share."""

    def adjust(change: Networks) -> Networks:
        actor = jax.tree.map(lambda x: share * x, change.actor)
        return eqx.tree_at(lambda networks: networks.actor, change, actor)

    return adjust


def check_truncation(truncation: float | None) -> None:
    """Raise an error if the quantile of the penalty is not above 0 and at most 1."""
    if truncation is not None and not 0 < truncation <= 1:
        raise InputError(
            f"truncation is {truncation}; give a quantile above 0 and at most 1, or none"
        )


def cosine_decay(step: Int[Array, ""], total: int) -> Float[Array, ""]:
    """Return the share of a learning rate that is left: from 1 to 0 along a cosine.

    With a rate that falls to zero, the last policy does not depend on the last few batches.
    """
    return 0.5 * (1 + jnp.cos(jnp.pi * step / total))
