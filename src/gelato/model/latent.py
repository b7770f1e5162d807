"""The latent model, one point at a time and in normalised units.

    z ~ q(z|s)      e = E(z, a)      z′ ~ F(·|e)      r ~ R(·|e)      s′ ~ D_i(·|z′),  i = 1, …, M

There can be several pairs `(F_j, R_j)`, `j = 1, …, N`, in the same latent space. An imagined step
uses a random pair, so a policy cannot exploit the errors of one network. Then `F` and `R` are the
mixtures of all members.

States are standardised, rewards scaled, discrete actions one-hot. `Scaling` converts between the
data's units and the model's. If the data has a history, the encoder reads a window of the last
observations and actions instead of `s` (`data/history.py`). The decoders predict the current
observation either way, so the metric is that of observations.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from gelato.data.disk_columns import find_extremes
from gelato.data.history import WindowLayout
from gelato.data.observations import ImageShape, ObservationLayout
from gelato.data.spaces import ActionSpace, Discrete
from gelato.data.transitions import Rows, Standardiser, Transitions
from gelato.model.coupling import Embedding
from gelato.model.gaussian import Gaussian
from gelato.model.images import ImageDecoder, ImageEncoder, Reading
from gelato.model.networks import (
    MLP,
    AbstractNetwork,
    GaussianMLP,
    Mixture,
    RadialVariance,
    SplitGaussian,
)
from gelato.random_streams import MEMBER

# Kernel width as a fraction of the spacing of the centres. At the midpoint of two adjacent centres,
# the precision is a quarter of its value at a centre. If a centre is missing between them, it falls
# to a thousandth.
_KERNEL_WIDTH = 0.25


class Forward(eqx.Module):
    """`F(z′|e)`. The residual form predicts the change from the embedding's latent coordinates."""

    network: GaussianMLP
    residual: bool = eqx.field(static=True)

    def __call__(self, e: Float[Array, " embedding"]) -> Gaussian:
        change = self.network(e)
        start = e[: change.mean.shape[0]] if self.residual else 0.0
        return Gaussian(start + change.mean, change.variance)


class Support(eqx.Module):
    """The box of latent states that the data reaches.

    Rollouts are clipped to it, because networks extrapolate without bound outside.
    """

    low: Float[Array, "*batch latent"]
    high: Float[Array, "*batch latent"]

    def __call__(self, z: Float[Array, " latent"]) -> Float[Array, " latent"]:
        return jnp.clip(z, self.low, self.high)


class LatentModel(eqx.Module):
    """All networks of the model. Weights of `decoders` have the ensemble member as first axis.

    `forward` and `reward` are mixtures if there are several forward networks.
    """

    encoder: GaussianMLP
    embedding: Embedding
    forward: Forward | Mixture
    reward: SplitGaussian | Mixture
    termination: MLP
    policy: GaussianMLP | AbstractNetwork
    decoders: SplitGaussian
    support: Support
    observed: ObservationLayout = eqx.field(static=True)

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
        history: int = 1,
        forwards: int = 1,
        forward_norm: bool = False,
        images: tuple[ImageShape, ...] = (),
        key: PRNGKeyArray,
    ) -> None:
        keys = jax.random.split(key, 7)
        action_size = action_space.size
        pixels = ObservationLayout(0, images).size
        self.observed = observed_parts = ObservationLayout(state_size - pixels, images)

        def read_images(history: int, outputs: int, key: PRNGKeyArray) -> ImageEncoder | None:
            if not images:
                return None
            reading = Reading(observed_parts, action_size, history)
            return ImageEncoder(reading, outputs, hidden, activation, key=key)

        def draw_images(key: PRNGKeyArray) -> ImageDecoder:
            return ImageDecoder(latent_size, observed_parts, hidden, activation, key=key)

        size = latent_size + action_size
        common = (hidden, activation, minimum_variance)
        observed = (hidden, activation, observation_minimum_variance)
        self.encoder = GaussianMLP(
            WindowLayout(history, state_size, action_size).size,
            latent_size,
            *common,
            shortcut=shortcuts,
            initial_variance=0.05,
            history=history,
            network=read_images(history, 2 * latent_size, keys[0]),
            key=keys[0],
        )
        self.embedding = Embedding(
            latent_size, action_size, couplings, hidden[:1], activation, key=keys[1]
        )

        def make_forward(key: PRNGKeyArray) -> Forward:
            network = GaussianMLP(
                size,
                latent_size,
                forward_hidden,
                activation,
                minimum_variance,
                shortcut=shortcuts,
                initial_variance=0.05,
                input_scale=input_scale,
                normalised=forward_norm,
                key=key,
            )
            return Forward(network, residual=shortcuts)

        def make_reward(key: PRNGKeyArray) -> SplitGaussian:
            return SplitGaussian(
                size, 1, *observed, shortcut=shortcuts, input_scale=input_scale, key=key
            )

        self.forward, self.reward = make_forward(keys[2]), make_reward(keys[3])
        if forwards > 1:
            forward_keys = jax.random.split(keys[2], forwards)
            reward_keys = jax.random.split(keys[3], forwards)
            self.forward = Mixture(eqx.filter_vmap(make_forward)(forward_keys))
            self.reward = Mixture(eqx.filter_vmap(make_reward)(reward_keys))
        self.termination = MLP(size, 1, hidden, activation, input_scale=input_scale, key=keys[4])
        if isinstance(action_space, Discrete):
            network = read_images(1, action_size, keys[5])
            self.policy = network or MLP(state_size, action_size, hidden, activation, key=keys[5])
        else:
            network = read_images(1, 2 * action_size, keys[5])
            self.policy = GaussianMLP(
                state_size, action_size, *common, network=network, key=keys[5]
            )
        self.decoders = eqx.filter_vmap(
            lambda k: SplitGaussian(
                latent_size,
                state_size,
                *observed,
                shortcut=shortcuts,
                centres=variance_centres,
                make=draw_images if images else None,
                key=k,
            )
        )(jax.random.split(keys[6], decoders))
        self.support = Support(jnp.full(latent_size, -jnp.inf), jnp.full(latent_size, jnp.inf))

    def encode(self, state: Float[Array, " input"]) -> Gaussian:
        """Return the posterior `q(z|s)`; with a history, `s` is a window."""
        return self.encoder(state)

    def decode(self, z: Float[Array, " latent"]) -> Gaussian:
        """Return `D_i(·|z)` of every member, stacked."""
        return eqx.filter_vmap(lambda member: member(z))(self.decoders)

    def decode_means(self, z: Float[Array, " latent"]) -> Float[Array, "members state"]:
        """Return `μ_D^i(z)` of every member."""
        return eqx.filter_vmap(lambda mean: mean(z))(self.decoders.mean)

    def decode_variances(self, z: Float[Array, " latent"]) -> Float[Array, "members state"]:
        """Return `(σ_D^i)²(z)` of every member."""
        return eqx.filter_vmap(lambda member: member.variance(z))(self.decoders)

    def predict_latents(self, e: Float[Array, " embedding"]) -> Gaussian:
        """Return `F_j(·|e)` of every forward network, stacked."""
        if isinstance(self.forward, Mixture):
            return self.forward.predict_all(e)
        return jax.tree.map(lambda x: x[None], self.forward(e))

    def predict_states(self, e: Float[Array, " embedding"]) -> Gaussian:
        """Return `D_i(·|μ_F^j(e))` of every decoder at the mean of every forward network, stacked.

        The decoder is the fastest index.
        """
        if not isinstance(self.forward, Mixture):
            return self.decode(self.forward(e).mean)
        decoded = jax.vmap(self.decode)(self.predict_latents(e).mean)
        return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), decoded)

    def predict_state_means(self, e: Float[Array, " embedding"]) -> Float[Array, "pairs state"]:
        """Return the means of `predict_states` without the variances."""
        if not isinstance(self.forward, Mixture):
            return self.decode_means(self.forward(e).mean)
        means = jax.vmap(self.decode_means)(self.predict_latents(e).mean)
        return means.reshape(-1, means.shape[-1])

    def draw_outcome(
        self, e: Float[Array, " embedding"], *, key: PRNGKeyArray
    ) -> tuple[Gaussian, Gaussian]:
        """Return `F_j(·|e)` and `R_j(·|e)` of one random member `j`.

        The member depends on `key`, which can also be used for other random numbers.
        """
        if not isinstance(self.forward, Mixture) or not isinstance(self.reward, Mixture):
            return self.forward(e), self.reward(e)
        # Compute all members and choose: with the weights of one member, every point of a batch
        # would need its own copy of them.
        both = self.forward.predict_all(e), self.reward.predict_all(e)
        member = jax.random.randint(jax.random.fold_in(key, MEMBER), (), 0, self.forwards)
        return jax.tree.map(lambda x: x[member], both)

    def imagine(
        self, e: Float[Array, " embedding"], *, key: PRNGKeyArray
    ) -> Float[Array, " latent"]:
        """Sample `z′ ~ F_j(·|e)` of a random member, clipped to the box that the data reaches."""
        forward, _ = self.draw_outcome(e, key=key)
        return self.support(forward.sample(key=key))

    def termination_probability(self, e: Float[Array, " embedding"]) -> Float[Array, ""]:
        """Return the learned probability that the episode ends here."""
        return jax.nn.sigmoid(self.termination(e)[0])

    @property
    def latent_size(self) -> int:
        """Number of latent dimensions, `d_Z`."""
        return self.embedding.latent_size

    @property
    def members(self) -> int:
        """Number of decoders, `M`."""
        return len(jax.tree.leaves(eqx.filter(self.decoders.mean, eqx.is_array))[0])

    @property
    def forwards(self) -> int:
        """Number of forward networks, `N`."""
        return len(self.forward) if isinstance(self.forward, Mixture) else 1

    @property
    def reward_networks(self) -> SplitGaussian:
        """The reward network. Of several networks, the member is the first axis."""
        return self.reward.members if isinstance(self.reward, Mixture) else self.reward


class Scaling(eqx.Module):
    """Conversion between the data's units and the model's."""

    states: Standardiser
    rewards: Standardiser
    action_space: ActionSpace = eqx.field(static=True)
    history: int = eqx.field(static=True, default=1)

    @property
    def layout(self) -> WindowLayout:
        """The columns of the encoder's input."""
        return WindowLayout(self.history, self.states.mean.shape[-1], self.action_space.size)

    def inputs(self, raw: Num[Rows, "*batch input"]) -> Float[Rows, "*batch input"]:
        """Normalise what the encoder reads: states, or windows of them."""
        return self.layout.normalise(raw, self.states.mean, self.states.scale)

    def restore(self, normalised: Float[Rows, "*batch input"]) -> Float[Rows, "*batch input"]:
        """Convert what `inputs` returned back to the data's units."""
        return self.layout.restore(normalised, self.states.mean, self.states.scale)

    @staticmethod
    def fit(train: Transitions, *, rewards_to_unit_range: bool) -> "Scaling":
        """Fit to the training transitions; rewards are standardised, or mapped to [−1, 1]."""
        states = Standardiser.fit_observations(train)
        rewards = _fit_rewards(train, rewards_to_unit_range)
        return Scaling(states, rewards, train.action_space, train.layout.history)

    def scale_rewards(self, train: Transitions, *, to_unit_range: bool) -> "Scaling":
        """Return this scaling with the scaling of rewards fitted again."""
        rewards = _fit_rewards(train, to_unit_range)
        return Scaling(self.states, rewards, self.action_space, self.history)


def _fit_rewards(train: Transitions, to_unit_range: bool) -> Standardiser:
    if not to_unit_range:
        rewards = train.rewards if train.on_disk else np.asarray(train.rewards)[:, None]
        return Standardiser.fit(rewards)
    low, high = map(float, find_extremes(train.rewards, None))
    half = (high - low) / 2 or 1.0
    return Standardiser(np.array([(high + low) / 2], np.float32), np.array([half], np.float32))


class Prediction(eqx.Module):
    """The model's prediction for one state and action, in normalised units.

    `z` and `z′` are at their means. `next_states` holds the prediction of every decoder at the mean
    of every forward network.
    """

    next_states: Gaussian
    reward: Gaussian
    termination: Float[Array, ""]
    embedding: Float[Array, " embedding"]

    def next_state(self) -> Gaussian:
        """Return mean and variance of the mixture."""
        return self.next_states.merge()

    def log_density(self, next_state: Float[Array, " state"]) -> Float[Array, ""]:
        """Return `log 1/M Σ_i N(s′; μ_i, σ_i²)`, the log-density of the mixture."""
        each = self.next_states.log_density(
            jnp.broadcast_to(next_state, self.next_states.mean.shape)
        )
        return jax.nn.logsumexp(each) - jnp.log(each.shape[0])


@eqx.filter_jit
def set_support(
    models: LatentModel, states: Float[Array, "n input"], chunk_size: int | None = None
) -> LatentModel:
    """Set the box that the data reaches, and place the centres of radial variances in it.

    Arrays of `models` have the seed as first axis. The box bounds the posterior means of `states`,
    or of windows if the model reads a history. With a `chunk_size`, so many are encoded together.
    """

    def one(model: LatentModel) -> LatentModel:
        def encode(state: Float[Array, " input"]) -> Float[Array, " latent"]:
            return model.encode(state).mean

        if chunk_size is None:
            means = jax.vmap(encode)(states)
        else:
            means = jax.lax.map(encode, states, batch_size=min(chunk_size, len(states)))
        model = eqx.tree_at(
            lambda m: m.support, model, Support(means.min(axis=0), means.max(axis=0))
        )
        variance = model.decoders.raw_variance
        if not isinstance(variance, RadialVariance):
            return model
        centres, width = _choose_centres(means, variance.centres.shape[-2])
        return eqx.tree_at(
            lambda m: (m.decoders.raw_variance.centres, m.decoders.raw_variance.width),
            model,
            (
                jnp.broadcast_to(centres, variance.centres.shape),
                jnp.broadcast_to(width, variance.width.shape),
            ),
        )

    return eqx.filter_vmap(one)(models)


def _choose_centres(
    points: Float[Array, "n latent"], count: int
) -> tuple[Float[Array, "count latent"], Float[Array, ""]]:
    """Choose points far from each other, greedily, and a kernel width for their spacing."""

    def step(
        nearest: Float[Array, " n"], _: None
    ) -> tuple[Float[Array, " n"], Float[Array, " latent"]]:
        point = points[jnp.argmax(nearest)]
        return jnp.minimum(nearest, jnp.linalg.norm(points - point, axis=1)), point

    _, chosen = jax.lax.scan(step, jnp.linalg.norm(points - points[0], axis=1), length=count)
    gaps = jnp.linalg.norm(chosen[:, None] - chosen, axis=-1)
    # With fewer distinct points than centres, later centres coincide with earlier ones.
    apart = jnp.where(gaps > 1e-3 * jnp.max(gaps), gaps, jnp.inf)
    return chosen, _KERNEL_WIDTH * jnp.median(jnp.min(apart, axis=1))


def predict(
    model: LatentModel, state: Float[Array, " input"], action: Float[Array, " action"]
) -> Prediction:
    """Predict one step without sampling; with a history, `state` is a window."""
    e = model.embedding(model.encode(state).mean, action)
    return Prediction(model.predict_states(e), model.reward(e), model.termination_probability(e), e)
