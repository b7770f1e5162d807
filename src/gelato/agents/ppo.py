"""Proximal policy optimisation in the pessimistic MDP, discrete and continuous: the paper's agent for driving.

    A = Σ (γτ)ᵗ δₜ,   δ = r + γ (1 − end) V(z′) − V(z),      max E min(ρ A, clip(ρ, 1 ± ε) A),   ρ = π/π_old

Everything here is for one policy; `ppo_learner.py` runs many at once. A horizon truncates: the trace stops there, but
the value of the state reached still counts.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gelato.agents.networks import Actor
from gelato.data.spaces import ActionSpace
from gelato.errors import InputError
from gelato.mdp.dynamics import AbstractDynamics, Latent
from gelato.mdp.pessimistic import State, draw
from gelato.model.networks import MLP
from gelato.optimise import in_few_kernels

PPO_METRICS = ("value_loss", "entropy", "clipped")


@dataclass(frozen=True)
class PPOConfig:
    """Settings every policy of one program shares; an iteration takes `episodes` × `steps` steps, out of `total`.

    Orthogonal first weights, a policy that begins nearly uniform, and tanh are worth a tenth of the return on CartPole.
    """

    total: int = 350_000
    hidden: tuple[int, ...] = (64, 64)
    rate: float = 3e-4
    epsilon: float = 1e-8
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    gradient_norm: float = 0.5
    episodes: int = 50
    steps: int = 20
    passes: int = 4
    minibatches: int = 4
    horizon: int = 10
    activation: str = "tanh"
    orthogonal: bool = True

    def __post_init__(self) -> None:
        for name in ("total", "episodes", "steps", "passes", "minibatches", "horizon"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.steps_taken % self.minibatches:
            raise InputError(f"{self.minibatches} minibatches do not divide {self.episodes} × {self.steps} steps")

    @property
    def steps_taken(self) -> int:
        """Steps of one iteration."""
        return self.episodes * self.steps

    @property
    def whole_iterations(self) -> int:
        """Iterations until there were `total` steps."""
        return -(-self.total // self.steps_taken)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        adam = optax.adam(self.rate, eps=self.epsilon)
        return in_few_kernels(optax.chain(optax.clip_by_global_norm(self.gradient_norm), adam))


class Learner(eqx.Module):
    """What is trained: policy and value."""

    actor: Actor
    value: MLP


class PPOState(eqx.Module):
    """What training carries from iteration to iteration; everything a checkpoint needs."""

    learner: Learner
    optimiser: Any
    episodes: State
    step: Int[Array, "*batch"]

    def values(self, latents: Float[Array, "n latent"]) -> Float[Array, " n"]:
        """`V(z)` of one policy."""
        return jax.vmap(self.learner.value)(latents)[:, 0]


class Rollout(eqx.Module):
    """Steps of many episodes, `[steps, episodes]`; `choices` are actions as the policy drew them (`Actor.draw`)."""

    latents: Float[Array, "*n latent"]
    choices: Float[Array, "*n action"]
    log_densities: Float[Array, "*n"]
    rewards: Float[Array, "*n"]
    next_latents: Float[Array, "*n latent"]
    terminated: Bool[Array, "*n"]
    ended: Bool[Array, "*n"]


def new_learner(config: PPOConfig, latent_size: int, space: ActionSpace, *, key: PRNGKeyArray) -> Learner:
    """An untrained policy and value."""
    actor_key, value_key = jax.random.split(key)
    actor = Actor(latent_size, space, config.hidden, config.activation, key=actor_key)
    value = MLP(latent_size, 1, config.hidden, "tanh", key=value_key)
    if config.orthogonal:
        actor = eqx.tree_at(lambda a: a.network, actor, _orthogonal(actor.network, 0.01, key=actor_key))
        value = _orthogonal(value, 1.0, key=value_key)
    return Learner(actor, value)


def _orthogonal(network: MLP, last: float, *, key: PRNGKeyArray) -> MLP:
    """The network with orthogonal weights, those of the last layer of that scale, and no biases."""
    scales = [*(2**0.5 for _ in network.layers[1:]), last]
    layers = tuple(
        eqx.tree_at(
            lambda one: (one.weight, one.bias),
            layer,
            (jax.nn.initializers.orthogonal(scale)(key, layer.weight.shape), jnp.zeros(len(layer.weight))),
        )
        for layer, scale, key in zip(network.layers, scales, jax.random.split(key, len(scales)), strict=True)
    )
    return eqx.tree_at(lambda whole: whole.layers, network, layers)


def begin_ppo(
    config: PPOConfig, starts: Float[Array, "n latent"], space: ActionSpace, *, key: PRNGKeyArray
) -> PPOState:
    """An untrained policy, its episodes at states of the data."""
    key, start_key = jax.random.split(key)
    learner = new_learner(config, starts.shape[1], space, key=key)
    latents = jax.vmap(lambda key: draw(starts, key=key))(jax.random.split(start_key, config.episodes))
    optimiser = config.optimiser.init(eqx.filter(learner, eqx.is_array))
    elapsed = jnp.zeros(config.episodes, jnp.int32)
    return PPOState(learner, optimiser, State(latents, elapsed), jnp.zeros((), jnp.int32))


def collect(
    state: PPOState,
    dynamics: AbstractDynamics,
    starts: Float[Array, "n latent"],
    config: PPOConfig,
    *,
    key: PRNGKeyArray,
) -> tuple[Rollout, Float[Array, "steps episodes embedding"], State]:
    """Steps of the current policy, rewards not penalised yet; an episode that ends starts anew from the data."""

    def step(episode: State, key: PRNGKeyArray) -> tuple[State, tuple[Rollout, Array]]:
        act_key, step_key, start_key = jax.random.split(key, 3)
        choice, log_density = state.learner.actor.draw(episode.latent, key=act_key)
        e = dynamics.embed(episode.latent, state.learner.actor.action(choice))
        outcome = dynamics.imagine(e, key=step_key)
        elapsed = episode.elapsed + 1
        ended = outcome.terminated | (elapsed >= config.horizon)
        row = Rollout(episode.latent, choice, log_density, outcome.reward, outcome.latent, outcome.terminated, ended)
        after: Latent = jnp.where(ended, draw(starts, key=start_key), outcome.latent)
        return State(after, jnp.where(ended, 0, elapsed)), (row, e)

    keys = jax.random.split(key, (config.steps, config.episodes))
    episodes, (rollout, embeddings) = jax.lax.scan(lambda s, k: jax.vmap(step)(s, k), state.episodes, keys)
    return rollout, embeddings, episodes


def advantages(
    rewards: Float[Array, " steps"],
    values: Float[Array, " steps"],
    next_values: Float[Array, " steps"],
    terminated: Bool[Array, " steps"],
    ended: Bool[Array, " steps"],
    config: PPOConfig,
) -> Float[Array, " steps"]:
    """Generalised advantages of one sequence of steps."""
    errors = rewards + config.discount * jnp.where(terminated, 0.0, next_values) - values

    def step(later: Float[Array, ""], given: tuple[Array, Array]) -> tuple[Array, Array]:
        error, end = given
        now = error + config.discount * config.trace * jnp.where(end, 0.0, later)
        return now, now

    return jax.lax.scan(step, jnp.zeros(()), (errors, ended), reverse=True)[1]


def improve(
    learner: Learner, optimiser: Any, rollout: Rollout, config: PPOConfig, *, key: PRNGKeyArray
) -> tuple[Learner, Any, Float[Array, " metrics"]]:
    """Several passes over the rollout in minibatches."""

    def value(z: Latent) -> Float[Array, ""]:
        return learner.value(z)[0]

    values, next_values = (jax.vmap(jax.vmap(value))(z) for z in (rollout.latents, rollout.next_latents))
    over_episodes = jax.vmap(advantages, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    gains = over_episodes(rollout.rewards, values, next_values, rollout.terminated, rollout.ended, config)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rollout, gains, gains + values))
    count = config.steps_taken

    def minibatch(carry: tuple[Learner, Any], rows: Int[Array, " rows"]) -> Any:
        learner, optimiser = carry
        trainable, static = eqx.partition(learner, eqx.is_array)
        batch = jax.tree.map(lambda x: x[rows], flat)

        def loss(trainable: Learner) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
            return _loss(eqx.combine(trainable, static), batch, config)

        gradient, metrics = jax.grad(loss, has_aux=True)(trainable)
        change, optimiser = config.optimiser.update(gradient, optimiser, trainable)
        return (eqx.combine(optax.apply_updates(trainable, change), static), optimiser), metrics

    orders = jax.vmap(lambda key: jax.random.permutation(key, count))(jax.random.split(key, config.passes))
    rows = orders.reshape(config.passes * config.minibatches, -1)
    arrays, static = eqx.partition((learner, optimiser), eqx.is_array)

    def step(arrays: Any, rows: Int[Array, " rows"]) -> tuple[Any, Array]:
        carry, metrics = minibatch(eqx.combine(arrays, static), rows)
        return eqx.filter(carry, eqx.is_array), metrics

    arrays, metrics = jax.lax.scan(step, arrays, rows)
    learner, optimiser = eqx.combine(arrays, static)
    return learner, optimiser, jnp.mean(metrics, axis=0)


def _loss(
    learner: Learner, batch: tuple[Rollout, Float[Array, " n"], Float[Array, " n"]], config: PPOConfig
) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
    rollout, gains, returns = batch
    gains = (gains - jnp.mean(gains)) / (jnp.std(gains) + 1e-8)
    log_densities, entropies = jax.vmap(learner.actor.density_and_entropy)(rollout.latents, rollout.choices)
    ratio = jnp.exp(log_densities - rollout.log_densities)
    clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
    gain = jnp.mean(jnp.minimum(ratio * gains, clipped * gains))
    value_loss = jnp.mean((jax.vmap(lambda z: learner.value(z)[0])(rollout.latents) - returns) ** 2)
    entropy = jnp.mean(entropies)
    total = -gain + config.value_weight * value_loss - config.entropy_weight * entropy
    return total, jnp.stack([value_loss, entropy, jnp.mean(ratio != clipped)])
