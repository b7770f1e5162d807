"""The terms of the evidence lower bound on transitions.

A transition is a trajectory of length two. `z₀` has the prior `N(0, I)`, and `z₁` has the prior
`F(E(z₀, a))`:

    log P(s|z₀) + log P(s′|z₁) + log P(r|E(z₀, a))
    − KL(q(z₀|s) ‖ N(0, I)) − KL(q̄(z₁|s′) ‖ F(E(z₀, a)))

`q̄` is the momentum encoder. We add the *prediction* `log P(s′|x)` with `x ~ F(E(z₀, a))`, which
trains the path that rollouts use (the paper's preset does not have it). The heads of termination
and behaviour policy are trained too, but do not change the latent space.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.data.history import Layout
from gelato.model.gaussian import log_density, make_standard_like
from gelato.model.latent import LatentModel
from gelato.model.networks import MLP, GaussianMLP, apply_members

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
        layout = Layout(history, state_size, action_size)
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
    n = len(batch.states)
    # Draw once for the whole batch: a key for each row would cost as many kernels as a network.
    noise = jax.random.normal(key, ((3 if predict else 2) * n, model.latent_size))
    posteriors = jax.vmap(model.encode)(jnp.concatenate([batch.inputs, batch.next_inputs]))
    target = jax.lax.stop_gradient(jax.vmap(target_encoder)(batch.next_inputs))
    sampled = posteriors.sample_from_noise(noise[: 2 * n])
    e = jax.vmap(model.embedding)(sampled[:n], batch.actions)
    forward = jax.vmap(model.forward)(e)
    logits = jax.vmap(model.termination)(jax.lax.stop_gradient(e))[:, 0]
    reward_errors = jnp.square(jax.vmap(model.reward.mean)(e) - batch.rewards)
    reward_variance = calibrate_variance(
        reward_errors[None], jnp.ones((1, n)), minimum_variance, per_dimension=False
    )
    latents = (
        jnp.concatenate([sampled, forward.sample_from_noise(noise[2 * n :])])
        if predict
        else sampled
    )
    means = apply_members(model.decoders.mean, latents)
    weights = batch.weights.T

    def decoder_loss(index: int, states: Float[Array, "n state"]) -> Float[Array, ""]:
        squared = jnp.square(means[:, index * n : (index + 1) * n] - states)
        variance = calibrate_variance(
            squared, weights, minimum_variance, per_dimension=per_dimension
        )
        return -jnp.mean(weights * log_density(squared, variance))

    return ({"prediction": decoder_loss(2, batch.next_states)} if predict else {}) | {
        "reconstruction": decoder_loss(0, batch.states),
        "successor": decoder_loss(1, batch.next_states),
        "reward": -jnp.mean(log_density(reward_errors, reward_variance[0])),
        "prior": jnp.mean(posteriors.divergence(make_standard_like(posteriors))[:n]),
        "dynamics": jnp.mean(target.divergence(forward)),
        "termination": jnp.mean(jax.nn.softplus(logits) - batch.terminated * logits),
        "policy": jnp.mean(
            jax.vmap(_policy_loss, in_axes=(None, 0, 0))(model.policy, batch.states, batch.actions)
        ),
    }


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

    The model predicts from the means of `z` and `z′`.
    """

    embedded = jax.vmap(lambda state, action: model.embedding(model.encode(state).mean, action))(
        batch.inputs, batch.actions
    )
    latents = jax.vmap(lambda e: model.forward(e).mean)(embedded)
    decoded = apply_members(model.decoders, latents)
    states = decoded.log_density(jnp.broadcast_to(batch.next_states, decoded.mean.shape))
    rewards = jax.vmap(model.reward)(embedded).log_density(batch.rewards)
    return -jnp.mean(batch.weights.T * states) - jnp.mean(rewards)


def _policy_loss(
    policy: GaussianMLP | MLP, state: Float[Array, " state"], action: Float[Array, " action"]
) -> Float[Array, ""]:
    """Compute `−log π(a|s)` for a Gaussian, or for a categorical policy with one-hot actions."""
    if isinstance(policy, MLP):
        return -jnp.sum(action * jax.nn.log_softmax(policy(state)))
    return -policy(state).log_density(action)
