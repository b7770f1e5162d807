"""The evidence lower bound on transitions, term by term.

A transition is a trajectory of length two (`z₀` has the prior `N(0, I)`, `z₁` the prior `F(E(z₀, a))`):

    log P(s|z₀) + log P(s′|z₁) + log P(r|E(z₀, a)) − KL(q(z₀|s) ‖ N(0, I)) − KL(q̄(z₁|s′) ‖ F(E(z₀, a)))

`q̄` is the momentum encoder. Beside it stand the *prediction* `log P(s′|x)` with `x ~ F(E(z₀, a))`, which trains the
very path that is used later (weight 0 in the paper's preset), and two heads that leave the latent space alone: the
termination's and the behaviour policy's.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.model.gaussian import log_density, standard_like
from gelato.model.latent import LatentModel
from gelato.model.networks import MLP, GaussianMLP

Terms = dict[str, Float[Array, ""]]
TERMS = ("reconstruction", "successor", "prediction", "reward", "prior", "dynamics", "termination", "policy")


class Batch(eqx.Module):
    """Transitions in the model's units, and the bootstrap weight of each for each decoder."""

    states: Float[Array, "*n state"]
    actions: Float[Array, "*n action"]
    rewards: Float[Array, "*n 1"]
    next_states: Float[Array, "*n state"]
    terminated: Float[Array, "*n"]
    weights: Float[Array, "*n members"]


class _Parts(eqx.Module):
    """What one transition contributes before its latents are decoded and the batch's variances are known."""

    latents: Float[Array, "*n 3 latent"]
    reward: Float[Array, "*n 1"]
    prior: Float[Array, "*n"]
    dynamics: Float[Array, "*n"]
    termination: Float[Array, "*n"]
    policy: Float[Array, "*n"]


def objective_terms(
    model: LatentModel,
    target_encoder: GaussianMLP,
    batch: Batch,
    *,
    minimum_variance: float,
    per_dimension: bool,
    key: PRNGKeyArray,
) -> Terms:
    """Each term as a loss (negative log-likelihood or divergence), averaged over the batch."""
    # One draw for the whole batch: a key for each row would cost as many kernels as a network.
    noise = jax.random.normal(key, (batch.rewards.shape[0], 3, model.latent_size))
    parts = jax.vmap(_parts, in_axes=(None, None, 0, 0))(model, target_encoder, batch, noise)
    # The member is the outer axis: one batched product a layer, which is over twice as fast as the other way round.
    means = eqx.filter_vmap(lambda mean: jax.vmap(jax.vmap(mean))(parts.latents))(model.decoders.mean)
    weights = batch.weights.T

    def decoder_loss(index: int, states: Float[Array, "n state"]) -> Float[Array, ""]:
        squared = jnp.square(means[:, :, index] - states)
        variance = calibrated_variance(squared, weights, minimum_variance, per_dimension=per_dimension)
        return -jnp.mean(weights * log_density(squared, variance))

    reward_variance = calibrated_variance(
        parts.reward[None], jnp.ones((1, parts.reward.shape[0])), minimum_variance, per_dimension=False
    )
    return {
        "reconstruction": decoder_loss(0, batch.states),
        "successor": decoder_loss(1, batch.next_states),
        "prediction": decoder_loss(2, batch.next_states),
        "reward": -jnp.mean(log_density(parts.reward, reward_variance[0])),
        "prior": jnp.mean(parts.prior),
        "dynamics": jnp.mean(parts.dynamics),
        "termination": jnp.mean(parts.termination),
        "policy": jnp.mean(parts.policy),
    }


def calibrated_variance(
    squared_errors: Float[Array, "members n dim"],
    weights: Float[Array, "members n"],
    minimum_variance: float,
    *,
    per_dimension: bool,
) -> Float[Array, "members 1 _"]:
    """The variance of maximum likelihood, `σ*² = MSE`, of each member: one for all dimensions, or one for each."""
    weighted = jnp.sum(weights[..., None] * squared_errors, axis=1, keepdims=True)
    mse = weighted / jnp.maximum(jnp.sum(weights, axis=1), 1e-6)[:, None, None]
    mse = mse if per_dimension else jnp.mean(mse, axis=-1, keepdims=True)
    # At its optimum the likelihood does not change with the variance, so nothing flows through it.
    return jnp.maximum(jax.lax.stop_gradient(mse), minimum_variance)


def weighted_sum(terms: Terms, weights: Mapping[str, float]) -> Float[Array, ""]:
    """The loss: each term times its weight."""
    return jnp.sum(jnp.stack([weights[name] * terms[name] for name in TERMS]))


def variance_loss(model: LatentModel, batch: Batch) -> Float[Array, ""]:
    """Phase 2: the likelihood of `s′` and `r` under the full Gaussians, where the model predicts from means."""

    embedded = jax.vmap(lambda state, action: model.embedding(model.encode(state).mean, action))(
        batch.states, batch.actions
    )
    latents = jax.vmap(lambda e: model.forward(e).mean)(embedded)
    decoded = eqx.filter_vmap(lambda member: jax.vmap(member)(latents))(model.decoders)
    states = decoded.log_density(jnp.broadcast_to(batch.next_states, decoded.mean.shape))
    rewards = jax.vmap(model.reward)(embedded).log_density(batch.rewards)
    return -jnp.mean(batch.weights.T * states) - jnp.mean(rewards)


def _parts(
    model: LatentModel, target_encoder: GaussianMLP, transition: Batch, noise: Float[Array, "3 latent"]
) -> _Parts:
    posteriors = jax.vmap(model.encode)(jnp.stack([transition.states, transition.next_states]))
    target = jax.lax.stop_gradient(target_encoder(transition.next_states))
    z0, z1 = posteriors.at(noise[:2])
    e = model.embedding(z0, transition.actions)
    forward = model.forward(e)
    logit = model.termination(jax.lax.stop_gradient(e))[0]
    return _Parts(
        latents=jnp.stack([z0, z1, forward.at(noise[2])]),
        reward=jnp.square(model.reward.mean(e) - transition.rewards),
        prior=posteriors.divergence(standard_like(posteriors))[0],
        dynamics=target.divergence(forward),
        termination=jax.nn.softplus(logit) - transition.terminated * logit,
        policy=_policy_loss(model.policy, transition.states, transition.actions),
    )


def _policy_loss(
    policy: GaussianMLP | MLP, state: Float[Array, " state"], action: Float[Array, " action"]
) -> Float[Array, ""]:
    """`−log π(a|s)`, of a Gaussian or of a categorical distribution over one-hot actions."""
    if isinstance(policy, MLP):
        return -jnp.sum(action * jax.nn.log_softmax(policy(state)))
    return -policy(state).log_density(action)
