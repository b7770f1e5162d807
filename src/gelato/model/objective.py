"""The terms of the evidence lower bound on transitions.

A transition is a trajectory of length two. `z₀` has the prior `N(0, I)`, and `z₁` has the prior
`F(E(z₀, a))`:

    log P(s|z₀) + log P(s′|z₁) + log P(r|E(z₀, a))
    − KL(q(z₀|s) ‖ N(0, I)) − KL(q̄(z₁|s′) ‖ F(E(z₀, a)))

`q̄` is the momentum encoder. We add the *prediction* `log P(s′|x)` with `x ~ F(E(z₀, a))`, which
trains the path that rollouts use (the paper's preset does not have it). The heads of termination
and behaviour policy are trained too, but do not change the latent space.

With several forward networks, each term with `F` or `R` is the mean of the members' own terms:
every member alone predicts all rows. Members differ in their first weights and the noise of `x`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.history import WindowLayout
from gelato.data.observations import ObservationLayout
from gelato.model.gaussian import log_density, make_standard_like
from gelato.model.latent import LatentModel
from gelato.model.networks import AbstractNetwork, GaussianMLP, Mixture, apply_members

_IMAGE_NUMBERS = 64
Terms = dict[str, Float[Array, ""]]
TERMS = (
    "reconstruction",
    "successor",
    "prediction",
    "reward",
    "prior",
    "dynamics",
    "termination",
    "policy",
)


class Batch(eqx.Module):
    """Transitions in the model's units, and their bootstrap weights for each decoder.

    With a history, `windows` are what the encoder reads at each row.
    """

    states: Float[Array, "*n state"]
    actions: Float[Array, "*n action"]
    rewards: Float[Array, "*n 1"]
    next_states: Float[Array, "*n state"]
    terminated: Float[Array, "*n"]
    weights: Float[Array, "*n members"]
    windows: Float[Array, "*n window"] | None = None

    @property
    def inputs(self) -> Float[Array, "*n input"]:
        """What the encoder reads at each row."""
        return self.states if self.windows is None else self.windows

    @property
    def next_inputs(self) -> Float[Array, "*n input"]:
        """What the encoder reads after each row."""
        if self.windows is None:
            return self.next_states
        state_size, action_size = self.states.shape[-1], self.actions.shape[-1]
        history = self.windows.shape[-1] // (state_size + action_size + 1)
        layout = WindowLayout(history, state_size, action_size)
        memory = layout.remember(self.windows, self.actions)
        return jnp.asarray(layout.open(self.next_states, memory))


def compute_objective_terms(
    model: LatentModel,
    target_encoder: GaussianMLP,
    batch: Batch,
    *,
    minimum_variance: float,
    per_dimension: bool,
    predict: bool = True,
    key: PRNGKeyArray,
) -> Terms:
    """Compute each term as a loss (negative log-likelihood or divergence), averaged over the batch.

    Without `predict` the prediction is omitted.
    """
    n, forwards = len(batch.states), model.forwards
    # Draw once for the whole batch: a key for each row would cost as many kernels as a network.
    noise = jax.random.normal(key, ((2 + forwards if predict else 2) * n, model.latent_size))
    posteriors = jax.vmap(model.encode)(jnp.concatenate([batch.inputs, batch.next_inputs]))
    target = jax.lax.stop_gradient(jax.vmap(target_encoder)(batch.next_inputs))
    sampled = posteriors.sample_from_noise(noise[: 2 * n])
    e = jax.vmap(model.embedding)(sampled[:n], batch.actions)
    forward = _apply_network(model.forward, e)
    logits = jax.vmap(model.termination)(jax.lax.stop_gradient(e))[:, 0]
    reward_means = _apply_network(model.reward, e, lambda network: network.mean)
    reward_errors = jnp.square(reward_means - batch.rewards)
    reward_variance = calibrate_variance(
        reward_errors, jnp.ones((forwards, n)), minimum_variance, per_dimension=False
    )
    latents = sampled
    if predict:
        drawn = forward.sample_from_noise(noise[2 * n :].reshape(forwards, n, -1))
        latents = jnp.concatenate([sampled, *drawn])
    means = apply_members(model.decoders.mean, latents)
    weights = batch.weights.T

    def decoder_loss(index: int, states: Float[Array, "n state"]) -> Float[Array, ""]:
        squared = jnp.square(means[:, index * n : (index + 1) * n] - states)
        losses = []
        for part, share in zip(model.observed.parts, _weigh_parts(model.observed), strict=True):
            variance = calibrate_variance(
                squared[..., part], weights, minimum_variance, per_dimension=per_dimension
            )
            losses.append(-share * jnp.mean(weights * log_density(squared[..., part], variance)))
        return jnp.sum(jnp.stack(losses)) if len(losses) > 1 else losses[0]

    terms: Terms = {}
    if predict:
        each = [decoder_loss(2 + member, batch.next_states) for member in range(forwards)]
        terms["prediction"] = jnp.mean(jnp.stack(each))
    return terms | {
        "reconstruction": decoder_loss(0, batch.states),
        "successor": decoder_loss(1, batch.next_states),
        "reward": -jnp.mean(log_density(reward_errors, reward_variance)),
        "prior": jnp.mean(posteriors.divergence(make_standard_like(posteriors))[:n]),
        "dynamics": jnp.mean(target.divergence(forward)),
        "termination": jnp.mean(jax.nn.softplus(logits) - batch.terminated * logits),
        "policy": jnp.mean(
            jax.vmap(_policy_loss, in_axes=(None, 0, 0))(model.policy, batch.states, batch.actions)
        ),
    }


def _weigh_parts(observed: ObservationLayout) -> list[float]:
    """Return the weight of the log-density of the numbers, if there are any, and of each image.

    The errors of neighbouring pixels are almost the same, and their density is no product. As a
    product, thousands of pixels would make all other terms negligible. So an image counts as much
    as `_IMAGE_NUMBERS` numbers.
    """
    images = [min(1.0, _IMAGE_NUMBERS / math.prod(image)) for image in observed.images]
    return [1.0] * bool(observed.numbers) + images


def calibrate_variance(
    squared_errors: Float[Array, "members n dim"],
    weights: Float[Array, "members n"],
    minimum_variance: float,
    *,
    per_dimension: bool,
) -> Float[Array, "members 1 _"]:
    """Compute the maximum-likelihood variance `σ*² = MSE` of each member.

    It is one number for all dimensions, or one for each with `per_dimension`.
    """
    weighted = jnp.sum(weights[..., None] * squared_errors, axis=1, keepdims=True)
    mse = weighted / jnp.maximum(jnp.sum(weights, axis=1), 1e-6)[:, None, None]
    mse = mse if per_dimension else jnp.mean(mse, axis=-1, keepdims=True)
    # At the optimum the derivative of the likelihood with respect to the variance is zero, so no
    # gradient is lost.
    return jnp.maximum(jax.lax.stop_gradient(mse), minimum_variance)


def compute_weighted_sum(terms: Terms, weights: Mapping[str, float]) -> Float[Array, ""]:
    """Compute the loss: the sum of the terms times their weights."""
    return jnp.sum(jnp.stack([weight * terms[name] for name, weight in weights.items()]))


def compute_variance_loss(model: LatentModel, batch: Batch) -> Float[Array, ""]:
    """Compute the loss of phase 2: the negative log-likelihood of `s′` and `r`.

    The model predicts from the means of `z` and `z′`, with every forward network.
    """

    embedded = jax.vmap(lambda state, action: model.embedding(model.encode(state).mean, action))(
        batch.inputs, batch.actions
    )
    latents = _apply_network(model.forward, embedded).mean
    decoded = apply_members(model.decoders, latents.reshape(-1, model.latent_size))
    shape = (model.members, model.forwards, *batch.next_states.shape)
    decoded = jax.tree.map(lambda x: x.reshape(shape), decoded)
    states = decoded.log_density(jnp.broadcast_to(batch.next_states, shape))
    rewards = _apply_network(model.reward, embedded)
    densities = rewards.log_density(jnp.broadcast_to(batch.rewards, rewards.mean.shape))
    return -jnp.mean(batch.weights.T[:, None] * states) - jnp.mean(densities)


def _apply_network(
    network: Any,
    rows: Float[Array, "n _"],
    choose: Callable[[Any], Any] = lambda network: network,
) -> Any:
    """Apply `choose(network)` to every row. The first axis is the member of a mixture, or 1."""
    if isinstance(network, Mixture):
        return apply_members(choose(network.members), rows)
    return jax.tree.map(lambda x: x[None], jax.vmap(choose(network))(rows))


def _policy_loss(
    policy: GaussianMLP | AbstractNetwork,
    state: Float[Array, " state"],
    action: Float[Array, " action"],
) -> Float[Array, ""]:
    """Compute `−log π(a|s)` for a Gaussian, or for a categorical policy with one-hot actions."""
    if isinstance(policy, GaussianMLP):
        return -policy(state).log_density(action)
    return -jnp.sum(action * jax.nn.log_softmax(policy(state)))
