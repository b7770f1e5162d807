"""Learned dynamics as a policy meets them, one step at a time:

    z = start(s)      e = embed(z, a)      (z′, r, end) ~ imagine(e)

Everything a policy sees is `z`; penalties see `e`. Rewards are in the data's units, states normalised.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gelato.envs.termination import Rule
from gelato.model.gaussian import Gaussian
from gelato.model.latent import LatentModel, Scaling

Latent = Float[Array, " latent"]
Action = Float[Array, " action"]
Embedded = Float[Array, " embedding"]


class Imagined(eqx.Module):
    """The outcome of one imagined step."""

    latent: Float[Array, "*batch latent"]
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]


class AbstractDynamics(eqx.Module):
    """A learned model of an environment; MOPO swaps it, GELATO's is latent."""

    @abstractmethod
    def start(self, state: Float[Array, " state"]) -> Latent:
        """What the policy sees of a normalised state."""

    @abstractmethod
    def embed(self, latent: Latent, action: Action) -> Embedded:
        """The state-action as penalties see it."""

    @abstractmethod
    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        """A sampled step."""


class Blur(eqx.Module):
    """How far an imagined state is blurred where a decoder deviates by `σ`: `min(factor·σ, most)`.

    Away from the data a σ may be hundreds of times what it is there; as large a blur would throw states out of it.
    """

    factor: Float[Array, "*batch"]
    most: Float[Array, "*batch"]

    def __call__(self, deviation: Float[Array, " state"]) -> Float[Array, " state"]:
        return jnp.minimum(self.factor * deviation, self.most)


class LatentDynamics(AbstractDynamics):
    """The variational latent model; episodes end by the known rule on decoded states, else by the learned head.

    With `blur`, an imagined state is drawn around the mean of a decoder chosen by chance, and encoded again: what a
    policy gains by trusting the model to the last decimal it loses here first.
    """

    model: LatentModel
    scaling: Scaling
    rule: Rule | None = eqx.field(static=True)
    blur: Blur | None = None

    def start(self, state: Float[Array, " state"]) -> Latent:
        return self.model.encode(state).mean

    def embed(self, latent: Latent, action: Action) -> Embedded:
        return self.model.embedding(latent, action)

    def imagine(self, embedding: Embedded, *, key: PRNGKeyArray) -> Imagined:
        step_key, reward_key, end_key, blur_key = jax.random.split(key, 4)
        z = self.model.imagine(embedding, key=step_key)
        state = self.decode(z, key=blur_key)
        reward = self.scaling.rewards.inverse(self.model.reward(embedding).sample(key=reward_key))[0]
        if self.rule is None:
            ended = jax.random.bernoulli(end_key, self.model.termination_probability(embedding))
        else:
            ended = self.rule(jnp.asarray(self.scaling.states.inverse(state)))
        return Imagined(z if self.blur is None else self.model.support(self.start(state)), reward, ended)

    def decode(self, latent: Latent, *, key: PRNGKeyArray) -> Float[Array, " state"]:
        """The normalised state a latent one stands for: the decoders' mean, or with `blur` a draw from one of them."""
        if self.blur is None:
            return jnp.mean(self.model.decoded_means(latent), axis=0)
        member_key, noise_key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, self.model.members)
        decoded = self.model.decode(latent)
        deviation = self.blur(jnp.sqrt(decoded.variance[member]))
        return Gaussian(decoded.mean[member], deviation**2).sample(key=noise_key)
