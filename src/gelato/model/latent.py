"""The latent model, one point at a time and in normalised units.

    z ~ q(z|s)      e = E(z, a)      z′ ~ F(·|e)      r ~ R(·|e)      s′ ~ D_i(·|z′),  i = 1, …, M

States are standardised, rewards scaled, actions one-hot or as they are; `Scaling` holds the way there and back.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.spaces import ActionSpace, Discrete
from gelato.data.transitions import Standardiser, Transitions
from gelato.model.coupling import Embedding
from gelato.model.gaussian import Gaussian
from gelato.model.networks import MLP, GaussianMLP, RadialVariance, SplitGaussian

# Of the spacing of the centres. Half a spacing from two neighbours the precision has fallen to a quarter, a whole one
# away to a thousandth: a gap of a single missing point shows.
_KERNEL_WIDTH = 0.25


class Forward(eqx.Module):
    """`F(z′|e)`; the residual form predicts the change from the embedding's own latent coordinates."""

    network: GaussianMLP
    residual: bool = eqx.field(static=True)

    def __call__(self, e: Float[Array, " embedding"]) -> Gaussian:
        change = self.network(e)
        start = e[: change.mean.shape[0]] if self.residual else 0.0
        return Gaussian(start + change.mean, change.variance)


class Support(eqx.Module):
    """The box of latent states the data reaches. Rollouts stay inside: beyond it a network extrapolates without end."""

    low: Float[Array, "*batch latent"]
    high: Float[Array, "*batch latent"]

    def __call__(self, z: Float[Array, " latent"]) -> Float[Array, " latent"]:
        return jnp.clip(z, self.low, self.high)


class LatentModel(eqx.Module):
    """All pieces of the model; `decoders` is an ensemble with the member as the first axis of every weight."""

    encoder: GaussianMLP
    embedding: Embedding
    forward: Forward
    reward: SplitGaussian
    termination: MLP
    policy: GaussianMLP | MLP
    decoders: SplitGaussian
    support: Support

    def __init__(
        self,
        state_size: int,
        action_space: ActionSpace,
        *,
        latent_size: int,
        decoders: int,
        hidden: Sequence[int],
        forward_hidden: Sequence[int],
        couplings: int,
        activation: str,
        minimum_variance: float,
        observation_minimum_variance: float,
        shortcuts: bool,
        variance_centres: int = 0,
        input_scale: float = 1.0,
        key: PRNGKeyArray,
    ) -> None:
        keys = jax.random.split(key, 7)
        action_size = action_space.size
        size = latent_size + action_size
        common = (hidden, activation, minimum_variance)
        observed = (hidden, activation, observation_minimum_variance)
        self.encoder = GaussianMLP(
            state_size, latent_size, *common, shortcut=shortcuts, initial_variance=0.05, key=keys[0]
        )
        self.embedding = Embedding(latent_size, action_size, couplings, hidden[:1], activation, key=keys[1])
        forward = GaussianMLP(
            size,
            latent_size,
            forward_hidden,
            activation,
            minimum_variance,
            shortcut=shortcuts,
            initial_variance=0.05,
            input_scale=input_scale,
            key=keys[2],
        )
        self.forward = Forward(forward, residual=shortcuts)
        self.reward = SplitGaussian(size, 1, *observed, shortcut=shortcuts, input_scale=input_scale, key=keys[3])
        self.termination = MLP(size, 1, hidden, activation, input_scale=input_scale, key=keys[4])
        if isinstance(action_space, Discrete):
            self.policy = MLP(state_size, action_size, hidden, activation, key=keys[5])
        else:
            self.policy = GaussianMLP(state_size, action_size, *common, key=keys[5])
        self.decoders = eqx.filter_vmap(
            lambda k: SplitGaussian(
                latent_size, state_size, *observed, shortcut=shortcuts, centres=variance_centres, key=k
            )
        )(jax.random.split(keys[6], decoders))
        self.support = Support(jnp.full(latent_size, -jnp.inf), jnp.full(latent_size, jnp.inf))

    def encode(self, state: Float[Array, " state"]) -> Gaussian:
        """`q(z|s)`."""
        return self.encoder(state)

    def decode(self, z: Float[Array, " latent"]) -> Gaussian:
        """`D_i(·|z)` of every member, stacked."""
        return eqx.filter_vmap(lambda member: member(z))(self.decoders)

    def decoded_means(self, z: Float[Array, " latent"]) -> Float[Array, "members state"]:
        """`μ_D^i(z)` of every member."""
        return eqx.filter_vmap(lambda mean: mean(z))(self.decoders.mean)

    def decoded_variances(self, z: Float[Array, " latent"]) -> Float[Array, "members state"]:
        """`(σ_D^i)²(z)` of every member."""
        return eqx.filter_vmap(lambda member: member.variance(z))(self.decoders)

    def imagine(self, e: Float[Array, " embedding"], *, key: PRNGKeyArray) -> Float[Array, " latent"]:
        """`z′ ~ F(·|e)`, kept where the data reaches."""
        return self.support(self.forward(e).sample(key=key))

    def termination_probability(self, e: Float[Array, " embedding"]) -> Float[Array, ""]:
        """The learned head's probability that the episode ends here."""
        return jax.nn.sigmoid(self.termination(e)[0])

    @property
    def latent_size(self) -> int:
        """`d_Z`."""
        return self.embedding.latent_size

    @property
    def members(self) -> int:
        """`M`."""
        return int(self.decoders.mean.layers[0].weight.shape[0])


class Scaling(eqx.Module):
    """From the data's units to the model's and back."""

    states: Standardiser
    rewards: Standardiser
    action_space: ActionSpace = eqx.field(static=True)

    @staticmethod
    def fit(train: Transitions, *, rewards_to_unit_range: bool) -> "Scaling":
        """Statistics of the training transitions; rewards standardised, or mapped to [−1, 1] as in the paper."""
        states = Standardiser.fit(np.asarray(train.states))
        rewards = Standardiser.fit(np.asarray(train.rewards)[:, None])
        if rewards_to_unit_range:
            low, high = float(np.min(train.rewards)), float(np.max(train.rewards))
            half = (high - low) / 2 or 1.0
            rewards = Standardiser(np.array([(high + low) / 2], np.float32), np.array([half], np.float32))
        return Scaling(states, rewards, train.action_space)


class Prediction(eqx.Module):
    """What the model says of one state and action, in normalised units, with `z` and `z′` at their means."""

    next_states: Gaussian
    reward: Gaussian
    termination: Float[Array, ""]
    embedding: Float[Array, " embedding"]

    def next_state(self) -> Gaussian:
        """The mixture over decoders by its two moments: `σ² = mean σ_i² + var μ_i`."""
        mean = self.next_states.mean.mean(axis=0)
        return Gaussian(mean, self.next_states.variance.mean(axis=0) + self.next_states.mean.var(axis=0))

    def log_density(self, next_state: Float[Array, " state"]) -> Float[Array, ""]:
        """`log 1/M Σ_i N(s′; μ_i, σ_i²)`: the mixture itself."""
        each = self.next_states.log_density(jnp.broadcast_to(next_state, self.next_states.mean.shape))
        return jax.nn.logsumexp(each) - jnp.log(each.shape[0])


@eqx.filter_jit
def with_support(models: LatentModel, states: Float[Array, "n state"]) -> LatentModel:
    """Models of several seeds with the box of the posterior means of these states, and radial variances among them."""

    def one(model: LatentModel) -> LatentModel:
        means = jax.vmap(lambda state: model.encode(state).mean)(states)
        model = eqx.tree_at(lambda m: m.support, model, Support(means.min(axis=0), means.max(axis=0)))
        variance = model.decoders.raw_variance
        if not isinstance(variance, RadialVariance):
            return model
        placed = _spread(means, variance.centres.shape[-2])
        everywhere = [jnp.broadcast_to(new, old.shape) for new, old in zip(placed, (variance.centres, variance.width))]
        return eqx.tree_at(
            lambda m: (m.decoders.raw_variance.centres, m.decoders.raw_variance.width), model, everywhere
        )

    return eqx.filter_vmap(one)(models)


def _spread(points: Float[Array, "n latent"], count: int) -> tuple[Float[Array, "count latent"], Float[Array, ""]]:
    """Points as far from each other as can be, one after the other, and a kernel's width for their spacing."""

    def step(nearest: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Float[Array, " latent"]]:
        point = points[jnp.argmax(nearest)]
        return jnp.minimum(nearest, jnp.linalg.norm(points - point, axis=1)), point

    _, chosen = jax.lax.scan(step, jnp.linalg.norm(points - points[0], axis=1), length=count)
    gaps = jnp.linalg.norm(chosen[:, None] - chosen, axis=-1)
    # Where the data has fewer distinct points than there are centres, the later ones coincide with earlier ones.
    apart = jnp.where(gaps > 1e-3 * jnp.max(gaps), gaps, jnp.inf)
    return chosen, _KERNEL_WIDTH * jnp.median(jnp.min(apart, axis=1))


def predict(model: LatentModel, state: Float[Array, " state"], action: Float[Array, " action"]) -> Prediction:
    """One step of the model without sampling."""
    e = model.embedding(model.encode(state).mean, action)
    return Prediction(model.decode(model.forward(e).mean), model.reward(e), model.termination_probability(e), e)
