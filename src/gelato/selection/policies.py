"""Policies to evaluate, as pytrees on observations in the data's own units.

Trained policies are deterministic. Estimators also accept stochastic ones (`AbstractTarget`).
"""

from abc import abstractmethod
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.agents.networks import box_of
from gelato.data.history import WindowLayout
from gelato.data.spaces import ActionSpace, Discrete
from gelato.model.networks import MLP, Linear
from gelato.policy.policy import DeployedPolicy, Stage

Observation = Float[Array, " input"]
# An action as models receive it: in its own units, or one-hot.
EncodedAction = Float[Array, " action"]
# A continuous action counts as a deterministic policy's own within about this share of half the
# box. Without such a kernel every importance weight would be zero.
_KERNEL = 0.1


class AbstractTarget(eqx.Module):
    """A policy whose return is estimated. Several policies are one pytree with a first axis."""

    @abstractmethod
    def choose(self, observation: Observation, *, key: PRNGKeyArray) -> EncodedAction:
        """Return a continuous action, or the probabilities of all discrete actions."""

    @abstractmethod
    def log_density(self, observation: Observation, action: EncodedAction) -> Float[Array, ""]:
        """Return the log-probability or log-density of an action."""

    def act(
        self, observation: Observation, space: ActionSpace, *, key: PRNGKeyArray
    ) -> EncodedAction:
        """Draw an action."""
        choice_key, draw_key = jax.random.split(key)
        chosen = self.choose(observation, key=choice_key)
        if isinstance(space, Discrete):
            drawn = jax.random.categorical(draw_key, jnp.log(chosen))
            return jax.nn.one_hot(drawn, space.n)
        return chosen


def _load_network(stage: Stage) -> MLP:
    """Return a stage of a deployed policy as a network in JAX, without the outputs it ignores."""
    *hidden, (last, last_bias) = stage.layers
    layers = [Linear(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in hidden]
    kept = slice(stage.outputs)
    layers.append(Linear(jnp.asarray(last[kept]), jnp.asarray(last_bias[kept])))
    sizes = [weight.shape[1] for weight, _ in stage.layers]
    shortcut = None
    if stage.shortcut is not None:
        shortcut = Linear(jnp.asarray(stage.shortcut[kept]), None)
    shapes = eqx.filter_eval_shape(
        MLP, sizes[0], stage.outputs, sizes[1:], stage.activation, key=jax.random.key(0)
    )
    return eqx.tree_at(
        lambda network: (network.layers, network.shortcut),
        shapes,
        (tuple(layers), shortcut),
        is_leaf=lambda leaf: leaf is None,
    )


class NetworkPolicy(AbstractTarget):
    """A deployed policy in JAX; with a `history`, its observations are windows."""

    mean: Float[Array, "*batch state"]
    scale: Float[Array, "*batch state"]
    stages: tuple[MLP, ...]
    space: ActionSpace = eqx.field(static=True)
    history: int = eqx.field(static=True, default=1)

    def normalise(self, observation: Observation) -> Float[Array, " input"]:
        """Return what the first stage reads."""
        layout = WindowLayout(self.history, self.mean.shape[-1], self.space.size)
        return jnp.asarray(layout.normalise(observation, self.mean, self.scale))

    @staticmethod
    def of(policy: DeployedPolicy) -> "NetworkPolicy":
        """Copy a deployed policy."""
        stages = tuple(_load_network(stage) for stage in policy.stages)
        mean, scale = jnp.asarray(policy.mean), jnp.asarray(policy.scale)
        return NetworkPolicy(mean, scale, stages, policy.space, policy.history)

    def choose(self, observation: Observation, *, key: PRNGKeyArray) -> EncodedAction:
        del key
        return self.choose_for(self.normalise(observation))

    def choose_for(self, state: Float[Array, " input"]) -> EncodedAction:
        """Return the action for a standardised state."""
        hidden = state
        for stage in self.stages[:-1]:
            hidden = stage(hidden)
        return self.choose_from(hidden)

    def choose_from(self, latent: Float[Array, " latent"]) -> EncodedAction:
        """Return the action for what the actor itself sees, such as a latent state."""
        out = self.stages[-1](latent)
        if isinstance(self.space, Discrete):
            return jax.nn.one_hot(jnp.argmax(out), self.space.n)
        middle, half = box_of(self.space)
        return middle + half * jnp.tanh(out)

    def log_density(self, observation: Observation, action: EncodedAction) -> Float[Array, ""]:
        chosen = self.choose_for(self.normalise(observation))
        if isinstance(self.space, Discrete):
            return jnp.log(chosen @ action)
        width = _KERNEL * box_of(self.space)[1]
        return jnp.sum(jax.scipy.stats.norm.logpdf(action, chosen, width))


def group_by_shape(policies: Sequence[DeployedPolicy]) -> list[list[int]]:
    """Group the places of policies that one program can evaluate: those with equal shapes."""
    groups: dict[object, list[int]] = {}
    for place, policy in enumerate(policies):
        shapes = [jax.tree.map(np.shape, stage.layers) for stage in policy.stages]
        shortcuts = [stage.shortcut is None for stage in policy.stages]
        kinds = [(stage.activation, stage.outputs) for stage in policy.stages]
        groups.setdefault(str((shapes, shortcuts, kinds, policy.history)), []).append(place)
    return list(groups.values())


def stack_policies(policies: Sequence[DeployedPolicy]) -> NetworkPolicy:
    """Return policies of equal shapes as one pytree; every array gets a first axis."""
    copies = [NetworkPolicy.of(policy) for policy in policies]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *copies)
