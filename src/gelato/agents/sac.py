"""Soft actor–critic on logged and imagined steps (Algorithm "GELATO with Soft Learning").

An epoch imagines steps from the data with the current policy, penalises them, writes them into the
replay buffer and then updates on batches of both. Everything here is for one policy.

    target = clip(r + γ (1 − end) V(z′)),      V(z) = E_{a~π} [minᵢ Qᵢ(z, a) − α log π(a|z)]

Targets are clipped to the values that the range of rewards allows. This stops an overestimated
value from growing through its own targets.
"""

import math
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gelato.agents.agent import AbstractAgent, Metrics, View
from gelato.agents.logged import (
    check_discount,
    check_truncation,
    cosine_decay,
    make_critics,
    slow_actor,
)
from gelato.agents.networks import Actor, Critic
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.compilation import Work, count_products, fuse_small_arrays
from gelato.data.spaces import ActionSpace, Discrete
from gelato.dynamics.interface import Latent
from gelato.errors import require_positive
from gelato.mdp.pessimistic import Step, rollout, start_episodes
from gelato.model.networks import apply_members, descend, hold_constant
from gelato.random_streams import IMAGINE, INIT, LEARN, NOISE, derive_key
from gelato.runs.description import ADDED_LATER

METRICS = ("critic_loss", "value", "entropy", "temperature")
# The target entropy for discrete actions, as a share of the largest possible entropy.
_DISCRETE_ENTROPY = 0.1
# The largest penalty assumed for the bound on values. Out-of-distribution pairs have U = 1.
_LARGEST_PENALTY = 3.0


class SACNetworks(eqx.Module):
    """The trained networks and the temperature."""

    actor: Actor
    critics: Critic
    log_temperature: Float[Array, "*batch"]


class SACState(eqx.Module):
    """State of the training between updates. A checkpoint stores exactly this."""

    networks: SACNetworks
    target_critics: Critic
    optimiser: optax.OptState
    replay: ReplayBuffer
    step: Int[Array, "*batch"]


class Draws(eqx.Module):
    """The random numbers of an update: rows of the log and of the buffer, noise for actions.

    `key` is for further random numbers of a subclass.
    """

    logged: Int[Array, "*updates size"]
    imagined: Int[Array, "*updates size"]
    noise: Float[Array, "*updates 2 size action"]
    key: PRNGKeyArray


@dataclass(frozen=True)
class SAC(AbstractAgent):
    """Soft actor–critic. The paper uses `replay` 50,000 and `horizon` 5."""

    imagines = True

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    actor_rate: float = 1e-4
    """Learning rate of the actor. It decays to zero on a cosine schedule."""
    critic_rate: float = 3e-4
    """Learning rate of the critics and the temperature."""
    discount: float = 0.99
    """Discount factor γ."""
    target_rate: float = 0.005
    """Weight of the critics in each update of the target critics (Polyak averaging)."""
    initial_temperature: float = 1.0
    """Initial entropy temperature α."""
    batch_size: int = 256
    """Transitions per update."""
    updates: int = 300_000
    """Total number of updates."""
    epoch: int = 1_000
    """Updates between two rollouts, and between two rows of metrics."""
    branches: int = 2_000
    """Number of imagined episodes in each rollout phase."""
    horizon: int = 5
    """Steps of an imagined episode."""
    replay: int = 50_000
    """Capacity of the replay buffer, in imagined steps."""
    critics: int = 2
    """Number of critics. Of more than two, targets use the smaller of two random ones, and the
    actor uses the mean of all."""
    critic_norm: bool = True
    """Whether the hidden layers of the critics are normalised."""
    soft_targets: bool = True
    """Whether the targets of the critics contain the entropy of the policy."""
    temperature: float | None = field(default=None, metadata=ADDED_LATER)
    """Fixed entropy temperature α; none: it is tuned, from `initial_temperature` on."""
    truncation: float | None = field(default=None, metadata=ADDED_LATER)
    """Quantile of U over held-out data. Imagined episodes end where U exceeds it, with the lowest
    value of the known region. 1: the maximum; none: never."""

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "actor_rate", "critic_rate", "target_rate", "batch_size")
        require_positive(self, "updates", "epoch", "branches", "horizon", "replay")
        check_discount(self.discount)
        check_truncation(self.truncation)
        if self.temperature is not None:
            require_positive(self, "temperature")

    @property
    def updates_per_rollout(self) -> int:
        return self.epoch

    def init(self, view: View, *, key: PRNGKeyArray) -> SACState:
        latent_size, space = view.latent_size, view.action_space
        actor_key, critic_key = jax.random.split(derive_key(key, INIT))
        critics = make_critics(
            view, self.hidden, self.critics, normalised=self.critic_norm, key=critic_key
        )
        networks = SACNetworks(
            Actor(latent_size, space, self.hidden, key=actor_key),
            critics,
            jnp.full((), math.log(self.temperature or self.initial_temperature), jnp.float32),
        )
        return SACState(
            networks,
            critics,
            self._optimiser().init(eqx.filter(networks, eqx.is_array)),
            ReplayBuffer.create(self.replay, 2 * latent_size + space.size + 2),
            jnp.zeros((), jnp.int32),
        )

    def imagine(
        self, view: View, state: SACState, *, key: PRNGKeyArray
    ) -> tuple[SACState, Step] | None:
        if view.dynamics is None:
            return None
        mdp = view.make_imagined_mdp(self.horizon)
        start_key, step_key = jax.random.split(derive_key(key, IMAGINE, state.step))
        episodes = start_episodes(mdp, self.branches, key=start_key)
        act = state.networks.actor.sample
        steps, _ = rollout(mdp, episodes, act, self.horizon, key=step_key)
        return state, steps

    def learn(
        self, view: View, state: SACState, steps: Step | None, updates: int, *, key: PRNGKeyArray
    ) -> tuple[SACState, Metrics]:
        if steps is not None:
            valid = None if steps.valid is None else jnp.ravel(steps.valid)
            replay = state.replay.write(_pack_steps(steps), valid)
            state = eqx.tree_at(lambda s: s.replay, state, replay)

        def draw(step: Int[Array, ""]) -> Draws:
            return self._draw(view, state.replay, key=derive_key(key, LEARN, step))

        def update(state: SACState, draws: Draws) -> tuple[SACState, Array]:
            return self.update(view, state, draws)

        # Draw the random numbers of a whole block at once: on an accelerator every draw costs one
        # kernel.
        draws = jax.vmap(draw)(state.step + jnp.arange(updates))
        state, metrics = jax.lax.scan(update, state, draws)
        return state, dict(zip(METRICS, jnp.mean(metrics, axis=0), strict=True))

    def actor(self, state: SACState) -> Actor:
        return state.networks.actor

    def value(self, state: SACState, z: Latent) -> Float[Array, ""]:
        networks = state.networks
        return estimate_value(networks.critics, z[None], networks.actor.mode(z)[None])[0]

    def estimate_work(self, latent_size: int, action_size: int, step_products: float) -> Work:
        critic = count_products((latent_size + action_size, *self.hidden, 1))
        actor = count_products((latent_size, *self.hidden, 2 * action_size))
        learning = self.batch_size * (7 * self.critics * critic + 4 * actor)
        imagining = self.branches * self.horizon / self.epoch * step_products
        return Work(self.updates * (learning + imagining), self.updates, programs=1)

    def update(
        self, view: View, state: SACState, draws: Draws
    ) -> tuple[SACState, Float[Array, " metrics"]]:
        """Update critics, actor and temperature on one batch of logged and imagined steps."""
        from_log = self.choose_real_rows(view)
        rows = jnp.where(
            from_log[:, None], view.logged[draws.logged], state.replay.rows[draws.imagined]
        )
        batch = self.prepare_batch(view, state, unpack(rows, view.latent_size), from_log, draws)
        target_critics = self._choose_target_critics(state.target_critics, key=draws.key)
        networks, optimiser, metrics = descend(
            self._optimiser(),
            state.optimiser,
            state.networks,
            lambda networks: self._loss(view, networks, target_critics, batch, draws.noise),
            slow_actor(self.actor_rate / self.critic_rate * self.compute_actor_decay(state)),
        )
        targets = optax.incremental_update(networks.critics, state.target_critics, self.target_rate)
        return SACState(networks, targets, optimiser, state.replay, state.step + 1), metrics

    def choose_real_rows(self, view: View) -> Bool[Array, " size"]:
        """Return which rows of a batch come from the log: the first ones.

        Both kinds are gathered, since the fraction of real data differs between policies of one
        program.
        """
        return jnp.arange(self.batch_size) < jnp.round(view.real_fraction * self.batch_size)

    def prepare_batch(
        self,
        view: View,
        state: SACState,
        batch: Experience,
        from_log: Bool[Array, " size"],
        draws: Draws,
    ) -> Experience:
        """Return the batch to learn from. A subclass can change it, for example its rewards."""
        del view, state, from_log, draws
        return batch

    def compute_actor_decay(self, state: SACState) -> Float[Array, ""]:
        """Return the share of the actor's first rate that is left."""
        return cosine_decay(state.step, self.updates)

    def compute_value_bounds(self, view: View) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the lowest and the highest possible value.

        The upper bound is `max(r, r / (1 − γ))` for the largest logged reward `r`. The lower bound
        is `min(r, r / (1 − γ))` for the smallest logged reward minus the largest assumed penalty,
        or the value of a step beyond the limit if that is lower.
        """
        low, high = view.reward_range
        lowest = low - _LARGEST_PENALTY * view.penalty_weight
        ahead = 1 - self.discount
        least = jnp.minimum(lowest, lowest / ahead)
        if view.limit is not None:
            least = jnp.minimum(least, view.limit.value)
        return least, jnp.maximum(high, high / ahead)

    def _draw(self, view: View, replay: ReplayBuffer, *, key: PRNGKeyArray) -> Draws:
        real_key, replay_key, noise_key = jax.random.split(key, 3)
        size = self.batch_size
        return Draws(
            jax.random.randint(real_key, (size,), 0, len(view.logged)),
            jax.random.randint(replay_key, (size,), 0, jnp.maximum(replay.filled, 1)),
            jax.random.normal(noise_key, (2, size, view.action_space.size)),
            jax.random.fold_in(key, NOISE),
        )

    def _loss(
        self,
        view: View,
        networks: SACNetworks,
        target_critics: Critic,
        batch: Experience,
        noise: Float[Array, "2 size action"],
    ) -> tuple[Float[Array, ""], Float[Array, " metrics"]]:
        """Return the sum of three losses. Each loss has gradients only for its own parameters."""
        actor = networks.actor
        temperature = jax.lax.stop_gradient(jnp.exp(networks.log_temperature))
        weight = temperature if self.soft_targets else jnp.zeros(())
        after, _ = compute_soft_values(actor, target_critics, batch.next_latents, weight, noise[0])
        target = batch.rewards + self.discount * (1 - batch.terminated) * after
        target = jax.lax.stop_gradient(jnp.clip(target, *self.compute_value_bounds(view)))
        # Without the barrier XLA computes all of it inside the reduction of a metric, which takes
        # 37 µs of an update's 240 for five policies (H200).
        target = jax.lax.optimization_barrier(target)
        Q = apply_members(networks.critics, batch.latents, batch.actions)
        critic_loss = jnp.mean((Q - target) ** 2)
        frozen = hold_constant(networks.critics)
        now, entropies = compute_soft_values(actor, frozen, batch.latents, temperature, noise[1])
        entropy = jnp.mean(entropies)
        surplus = jax.lax.stop_gradient(entropy) - compute_target_entropy(actor.space)
        total = self.critics * critic_loss - jnp.mean(now)
        if self.temperature is None:
            total += networks.log_temperature * surplus
        metrics = jnp.stack([critic_loss, jnp.mean(Q), entropy, temperature])
        return total, jax.lax.stop_gradient(metrics)

    def _choose_target_critics(self, critics: Critic, *, key: PRNGKeyArray) -> Critic:
        """Return two random ones of many target critics. Their minimum is the target."""
        if self.critics <= 2:
            return critics
        chosen = jax.random.choice(key, self.critics, (2,), replace=False)
        return jax.tree.map(lambda x: x[chosen] if eqx.is_array(x) else x, critics)

    def _optimiser(self) -> optax.GradientTransformation:
        return fuse_small_arrays(optax.adam(self.critic_rate))


def _pack_steps(steps: Step) -> Float[Array, "n columns"]:
    """Pack steps `[steps, episodes]` as rows of the replay buffer."""
    rows = Experience(
        steps.latent,
        steps.action,
        steps.reward,
        steps.next_latent,
        steps.terminated.astype(jnp.float32),
    )
    return pack(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows))


def compute_soft_values(
    actor: Actor,
    critics: Critic,
    latents: Float[Array, "n latent"],
    temperature: Float[Array, ""],
    noise: Float[Array, "n action"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return `V(z)` and the policy's entropy at every `z`.

    Discrete actions: exactly. Continuous actions: from one sample.
    """
    if isinstance(actor.space, Discrete):
        log_pi = jax.vmap(actor.log_probabilities)(latents)
        Q = jax.vmap(
            lambda a: estimate_value(critics, latents, jnp.broadcast_to(a, log_pi.shape)),
            out_axes=1,
        )(jnp.eye(actor.space.n))
        entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=1)
        return jnp.sum(jnp.exp(log_pi) * Q, axis=1) + temperature * entropy, entropy
    actions, log_density = jax.vmap(actor.sample_with_density)(latents, noise)
    return estimate_value(critics, latents, actions) - temperature * log_density, -log_density


def estimate_value(
    critics: Critic, latents: Float[Array, "n latent"], actions: Float[Array, "n action"]
) -> Float[Array, " n"]:
    """Return the smaller value of two critics, or the mean of more than two."""
    Q = apply_members(critics, latents, actions)
    return jnp.min(Q, axis=0) if len(Q) <= 2 else jnp.mean(Q, axis=0)


def compute_target_entropy(space: ActionSpace) -> float:
    """Return the target entropy: `−d_A` for a box, a tenth of the maximum for discrete actions."""
    if isinstance(space, Discrete):
        return _DISCRETE_ENTROPY * math.log(space.n)
    return -float(space.size)
