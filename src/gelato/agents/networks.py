"""Actor and critics, one latent state at a time."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.model.networks import MLP, Linear, linear_layers, normalise

LOG_STD = (-5.0, 2.0)
# An action before it is squashed into its box, and its log-density.
DrawnAction = tuple[Float[Array, "*batch action"], Float[Array, "*batch"]]


class Actor(eqx.Module):
    """`π(a|z)`: a Gaussian squashed into the action box, or a distribution over discrete actions.

    Actions have the form that the model expects: in their original units, or one-hot.
    """

    network: MLP
    space: ActionSpace = eqx.field(static=True)

    def __init__(
        self,
        latent_size: int,
        space: ActionSpace,
        hidden: Sequence[int],
        activation: str = "relu",
        *,
        key: PRNGKeyArray,
    ) -> None:
        outputs = space.n if isinstance(space, Discrete) else 2 * space.size
        self.network = MLP(latent_size, outputs, hidden, activation, key=key)
        self.space = space

    def sample(
        self, z: Float[Array, " latent"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " action"], DrawnAction]:
        """Sample an action. Return it with its choice (see `draw`) and the log-density."""
        choice, log_density = self.draw(z, key=key)
        return self.action(choice), (choice, log_density)

    def sample_with_density(
        self, z: Float[Array, " latent"], noise: Float[Array, " action"]
    ) -> tuple[Float[Array, " action"], Float[Array, ""]]:
        """Return `a ~ π(·|z)` and its log-density from standard noise, for continuous actions.

        Both are differentiable in π. The density is that of the action scaled to [−1, 1], so that
        entropies do not depend on the units of actions.
        """
        mean, log_std = self._gaussian(z)
        raw = mean + jnp.exp(log_std) * noise
        return self._scale_to_box(jnp.tanh(raw)), _squash_density(raw, mean, log_std)

    def mode(self, z: Float[Array, " latent"]) -> Float[Array, " action"]:
        """Return the action of the deterministic policy."""
        if isinstance(self.space, Discrete):
            return jax.nn.one_hot(jnp.argmax(self.network(z)), self.space.n)
        return self._scale_to_box(jnp.tanh(self._gaussian(z)[0]))

    def log_probabilities(self, z: Float[Array, " latent"]) -> Float[Array, " actions"]:
        """Return `log π(·|z)` of every discrete action."""
        return jax.nn.log_softmax(self.network(z))

    def draw(
        self, z: Float[Array, " latent"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " action"], Float[Array, ""]]:
        """Draw a choice and its log-density.

        A discrete choice is one-hot. A continuous choice is the action before tanh. The Jacobian of
        tanh cancels in density ratios.
        """
        if isinstance(self.space, Discrete):
            log_pi = self.log_probabilities(z)
            choice = jax.nn.one_hot(jax.random.categorical(key, log_pi), self.space.n)
            return choice, log_pi @ choice
        mean, log_std = self._gaussian(z)
        raw = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return raw, jnp.sum(_gaussian_density(raw, mean, log_std))

    def action(self, choice: Float[Array, " action"]) -> Float[Array, " action"]:
        """Convert a choice (one-hot, or the action before tanh) to an action."""
        return choice if isinstance(self.space, Discrete) else self._scale_to_box(jnp.tanh(choice))

    def compute_density_and_entropy(
        self, z: Float[Array, " latent"], choice: Float[Array, " action"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the log-density of a choice, and the entropy of its distribution."""
        if isinstance(self.space, Discrete):
            log_pi = self.log_probabilities(z)
            return log_pi @ choice, -jnp.sum(jnp.exp(log_pi) * log_pi)
        mean, log_std = self._gaussian(z)
        density = jnp.sum(_gaussian_density(choice, mean, log_std))
        return density, jnp.sum(log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))

    def _gaussian(
        self, z: Float[Array, " latent"]
    ) -> tuple[Float[Array, " action"], Float[Array, " action"]]:
        mean, log_std = jnp.split(self.network(z), 2)
        return mean, jnp.clip(log_std, *LOG_STD)

    def _scale_to_box(self, unit: Float[Array, " action"]) -> Float[Array, " action"]:
        assert isinstance(self.space, Continuous)
        middle, half = box_of(self.space)
        return middle + half * unit


def box_of(space: Continuous) -> tuple[Float[Array, " action"], Float[Array, " action"]]:
    """Return the middle and the half width of an action box."""
    low, high = jnp.array(space.low), jnp.array(space.high)
    return (low + high) / 2, (high - low) / 2


def _squash_density(raw: Array, mean: Array, log_std: Array) -> Float[Array, ""]:
    """Return `log N(u; μ, σ²) − Σ log(1 − tanh² u)`."""
    # log(1 − tanh²u) in a form that does not underflow.
    slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return jnp.sum(_gaussian_density(raw, mean, log_std) - slope)


def _gaussian_density(raw: Array, mean: Array, log_std: Array) -> Float[Array, " action"]:
    return -0.5 * ((raw - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)


class Critic(eqx.Module):
    """`Q(z, a)`; with `normalised`, hidden layers have mean 0 and deviation 1."""

    layers: tuple[Linear, ...]
    normalised: bool = eqx.field(static=True)

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        hidden: Sequence[int],
        *,
        normalised: bool = True,
        key: PRNGKeyArray,
    ) -> None:
        self.layers = linear_layers([latent_size + action_size, *hidden, 1], key=key)
        self.normalised = normalised

    def __call__(
        self, z: Float[Array, " latent"], action: Float[Array, " action"]
    ) -> Float[Array, ""]:
        hidden = jnp.concatenate([z, action])
        for layer in self.layers[:-1]:
            plain = layer(hidden)
            hidden = jax.nn.relu(normalise(plain) if self.normalised else plain)
        return self.layers[-1](hidden)[0]
