"""Variants of MOPO's agent, trained side by side in one program.

A variant differs from the others in numbers only, so one compiled program serves all of them. The
agent is `gelato.agents.sac` with switches; what a switch is for stands in `Variant`.
"""

from dataclasses import dataclass, fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from experiments.mopo.ensembles import ELITES, Ensemble
from gelato.agents.networks import LOG_STD, Actor, Critic, box_of
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.arrays import copy_arrays, stack, take
from gelato.compilation import compile_training, fuse_small_arrays
from gelato.data.spaces import Continuous
from gelato.model.networks import hold_constant
from gelato.model.split import Split
from gelato.policy.deploy import make_stage
from gelato.policy.policy import DeployedPolicy
from gelato.tasks.task import Rule, find_termination_rule

_BATCH, _CRITICS, _DISCOUNT, _TARGET_RATE = 256, 2, 0.99, 0.005
_HORIZON = 5
_LARGEST_PENALTY = 3.0
_OPTIMISER = fuse_small_arrays(optax.scale_by_adam())
METRICS = ("critic_loss", "value", "entropy", "temperature")


@dataclass(frozen=True)
class Variant:
    """What one policy is trained with. The defaults are ours, with MOPO's penalty in raw units."""

    ensemble: str = "ours"
    """Name of the ensemble's recipe."""
    weight: float = 0.5
    """Penalty weight λ for the largest ‖σ‖ in the data's units."""
    reward_scale: float = 1.0
    """Factor on rewards and penalties."""
    clip: float = 1.0
    """Whether states are kept in the data's box and targets within the reachable values."""
    normalised_critics: float = 1.0
    """Whether the hidden layers of the critics are normalised."""
    raw_observations: float = 0.0
    """Whether actor and critics see states in the data's units instead of standardised ones."""
    actor_rate: float = 1e-4
    """Learning rate of the actor."""
    cosine: float = 1.0
    """Whether the actor's rate falls to zero along a cosine."""
    temperature_rate: float = 3e-4
    """Learning rate of the temperature."""
    soft_targets: float = 1.0
    """Factor of the entropy in targets."""
    bounded_density: float = 0.0
    """Whether the log-density of an action is bounded near the edge of the box."""
    real_fraction: float = 0.05
    """Share of logged transitions in a batch."""


# Everything that OfflineRL-Kit does differently in the agent.
_KIT_AGENT = {
    "clip": 0.0,
    "normalised_critics": 0.0,
    "raw_observations": 1.0,
    "temperature_rate": 1e-4,
    "bounded_density": 1.0,
}
VARIANTS = {
    "ours": Variant(),
    "ours-small": Variant(reward_scale=0.1),
    "decay": Variant("ours-decay"),
    "decay-small": Variant("ours-decay", reward_scale=0.1),
    "kit": Variant("kit"),
    "kit-small": Variant("kit", reward_scale=0.1),
    "kit-critics": Variant("kit", normalised_critics=0.0),
    "kit-critics-small": Variant("kit", normalised_critics=0.0, reward_scale=0.1),
    "kit-critics-strong": Variant("kit", normalised_critics=0.0, weight=2.5),
    "ours-critics": Variant(normalised_critics=0.0),
    "units-critics": Variant("kit-units", normalised_critics=0.0),
    "bounds-critics": Variant("ours-bounds", normalised_critics=0.0),
    "kit-raw": Variant("kit", raw_observations=1.0),
    "kit-agent": Variant("kit", **_KIT_AGENT),
    "kit-agent-small": Variant("kit", **_KIT_AGENT, reward_scale=0.1),
    "kit-constant": Variant("kit", cosine=0.0),
    "kit-free": Variant("kit", weight=0.0),
    "kit-hard": Variant("kit", soft_targets=0.0),
    "ours-agent": Variant(**_KIT_AGENT),
    "decay-agent": Variant("ours-decay", **_KIT_AGENT),
}


class _Switches(eqx.Module):
    """The numbers of a variant as arrays."""

    weight: Array
    reward_scale: Array
    clip: Array
    normalised_critics: Array
    actor_rate: Array
    cosine: Array
    temperature_rate: Array
    soft_targets: Array
    bounded_density: Array
    real_fraction: Array
    observation_shift: Float[Array, "*policies state"]
    observation_scale: Float[Array, "*policies state"]
    seed: Int[Array, "*policies"]
    ensemble: Int[Array, "*policies"]


class Networks(eqx.Module):
    """What is trained."""

    actor: Actor
    critics: Critic
    log_temperature: Array


class Policy(eqx.Module):
    """One policy on its way."""

    networks: Networks
    targets: Critic
    optimiser: optax.OptState
    replay: ReplayBuffer
    step: Int[Array, "*policies"]


class World(eqx.Module):
    """What all policies see: the log, the ensembles, and the units. States are standardised."""

    logged: Float[Array, "n columns"]
    ensembles: Ensemble
    mean: Float[Array, " state"]
    scale: Float[Array, " state"]
    low: Float[Array, " state"]
    high: Float[Array, " state"]
    reward_range: Float[Array, "2"]
    initial: Float[Array, "k state"]
    total: Array
    space: Continuous = eqx.field(static=True)
    branches: int = eqx.field(static=True)
    rule: Rule | None = eqx.field(static=True)


def make_world(split: Split, ensembles: Ensemble, updates: int, branches: int) -> World:
    """Put everything onto the device."""
    data = split.dataset.transitions
    scaling = split.scaling.states
    states, after = scaling(np.asarray(data.states)), scaling(np.asarray(data.next_states))
    rows = Experience(
        *(
            jnp.asarray(column, jnp.float32)
            for column in (states, data.actions, data.rewards, after, data.terminated)
        )
    )
    firsts = [rows.start for rows in data.episode_slices][:1_000]
    space = data.action_space
    assert isinstance(space, Continuous)
    return World(
        pack(rows),
        ensembles,
        jnp.asarray(scaling.mean),
        jnp.asarray(scaling.scale),
        jnp.asarray(np.minimum(states.min(axis=0), after.min(axis=0))),
        jnp.asarray(np.maximum(states.max(axis=0), after.max(axis=0))),
        jnp.array([data.rewards.min(), data.rewards.max()], jnp.float32),
        jnp.asarray(states[firsts]),
        jnp.array(float(updates)),
        space,
        branches,
        find_termination_rule(split.dataset.environment, states.shape[1]),
    )


def begin(
    world: World, chosen: list[tuple[Variant, int, int]], epochs: int
) -> tuple[_Switches, Policy]:
    """Return the switches and untrained policies of `(variant, seed, index of its ensemble)`.

    The replay buffer keeps the imagined steps of `epochs` rollouts.
    """
    switches, policies = [], []
    plain = {field.name for field in fields(Variant)} & {f.name for f in fields(_Switches)}
    capacity = epochs * world.branches * _HORIZON
    for variant, seed, ensemble in chosen:
        shift, scale = jnp.zeros_like(world.mean), jnp.ones_like(world.scale)
        if variant.raw_observations:
            shift, scale = world.mean, world.scale
        values = {name: jnp.float32(getattr(variant, name)) for name in plain - {"ensemble"}}
        switches.append(
            _Switches(
                **values,
                observation_shift=shift,
                observation_scale=scale,
                seed=jnp.array(seed),
                ensemble=jnp.array(ensemble),
            )
        )
        size, space = len(world.mean), world.space
        actor_key, critic_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
        critics = eqx.filter_vmap(
            lambda key: Critic(size, space.size, (256, 256), key=key)  # noqa: B023
        )(jax.random.split(critic_key, _CRITICS))
        networks = Networks(Actor(size, space, (256, 256), key=actor_key), critics, jnp.zeros(()))
        optimiser = _OPTIMISER.init(eqx.filter(networks, eqx.is_array))
        replay = ReplayBuffer.create(capacity, world.logged.shape[1])
        policies.append(Policy(networks, critics, optimiser, replay, jnp.zeros((), jnp.int32)))
    return stack(switches), copy_arrays(stack(policies))


@compile_training
def train(
    constants: tuple[World, _Switches], policies: Policy, *, updates: int
) -> tuple[Policy, dict[str, Array]]:
    """Imagine once, then update every policy."""
    world, switches = constants

    def one(switch: _Switches, policy: Policy) -> tuple[Policy, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(switch.seed), 2)
        rows, penalty = _imagine(world, switch, policy, jax.random.fold_in(key, 2 * policy.step))
        policy = eqx.tree_at(lambda p: p.replay, policy, policy.replay.write(rows))

        def draw(step: Array) -> tuple[Array, Array, Array]:
            keys = jax.random.split(jax.random.fold_in(key, 2 * step + 1), 3)
            size = world.space.size
            return (
                jax.random.randint(keys[0], (_BATCH,), 0, len(world.logged)),
                jax.random.randint(keys[1], (_BATCH,), 0, policy.replay.filled),
                jax.random.normal(keys[2], (2, _BATCH, size)),
            )

        draws = jax.vmap(draw)(policy.step + jnp.arange(updates))
        policy, metrics = jax.lax.scan(lambda p, d: _update(world, switch, p, *d), policy, draws)
        means = dict(zip(METRICS, jnp.mean(metrics, axis=0), strict=True))
        return policy, means | {"penalty": penalty}

    return eqx.filter_vmap(one)(switches, policies)


def _observe(switch: _Switches, states: Float[Array, "n state"]) -> Float[Array, "n state"]:
    return states * switch.observation_scale + switch.observation_shift


def _act(
    actor: Actor,
    switch: _Switches,
    observed: Float[Array, "n state"],
    noise: Float[Array, "n action"],
) -> tuple[Float[Array, "n action"], Float[Array, " n"]]:
    """Sample actions and their log-densities."""
    mean, log_std = jnp.split(jax.vmap(actor.network)(observed), 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD)
    raw = mean + jnp.exp(log_std) * noise
    assert isinstance(actor.space, Continuous)
    middle, half = box_of(actor.space)
    unit = jnp.tanh(raw)
    density = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    slope = jnp.where(switch.bounded_density > 0, jnp.log(1 - unit**2 + 1e-6), slope)
    return middle + half * unit, jnp.sum(density - slope, axis=-1)


def _values(
    critics: Critic,
    switch: _Switches,
    observed: Float[Array, "n state"],
    actions: Float[Array, "n action"],
) -> Float[Array, "critics n"]:
    inputs = jnp.concatenate([observed, actions], axis=1)

    def one(critic: Critic) -> Float[Array, " n"]:
        hidden = inputs
        for layer in critic.layers[:-1]:
            plain = layer(hidden)
            centred = plain - jnp.mean(plain, axis=-1, keepdims=True)
            size = jnp.mean(centred**2, axis=-1, keepdims=True)
            normal = centred * jax.lax.rsqrt(size + 1e-5)
            hidden = jax.nn.relu(jnp.where(switch.normalised_critics > 0, normal, plain))
        return critic.layers[-1](hidden)[:, 0]

    return eqx.filter_vmap(one)(critics)


def _imagine(
    world: World, switch: _Switches, policy: Policy, key: Array
) -> tuple[Float[Array, "n columns"], Array]:
    """Return imagined steps with penalised rewards, and the mean penalty."""
    ensemble = take(world.ensembles, switch.ensemble)
    width = len(world.mean)
    keys = jax.random.split(key, 2 * _HORIZON)

    def restart(key: Array) -> Array:
        return world.logged[
            jax.random.randint(key, (world.branches,), 0, len(world.logged)), :width
        ]

    def step(states: Array, keys: Array) -> tuple[Array, tuple[Array, Array]]:
        act_key, noise_key, which_key = jax.random.split(keys[0], 3)
        noise = jax.random.normal(act_key, (world.branches, world.space.size))
        actions, _ = _act(policy.networks.actor, switch, _observe(switch, states), noise)
        mean, log_variance = ensemble(jnp.concatenate([states, actions], axis=1))
        sigma = jnp.exp(0.5 * log_variance)
        penalty = jnp.max(jnp.linalg.norm(sigma, axis=2), axis=0)
        member = jax.random.randint(which_key, (world.branches,), 0, ELITES)
        rows = jnp.arange(world.branches)
        chosen = mean[member, rows]
        sample = chosen + sigma[member, rows] * jax.random.normal(noise_key, chosen.shape)
        after = states + sample[:, :-1] / world.scale
        if world.rule is None:
            ended = jnp.zeros(world.branches, bool)
        else:
            ended = jax.vmap(world.rule)(after * world.scale + world.mean)
        boxed = jnp.clip(after, world.low, world.high)
        after = jnp.where(switch.clip > 0, boxed, after)
        reward = sample[:, -1] - switch.weight * penalty
        packed = pack(Experience(states, actions, reward, after, ended.astype(jnp.float32)))
        following = jnp.where(ended[:, None], restart(keys[1]), after)
        return following, (packed, jnp.mean(penalty))

    pairs = keys.reshape(_HORIZON, 2)
    start = restart(jax.random.fold_in(key, 0))
    _, (rows, penalties) = jax.lax.scan(step, start, pairs)
    return rows.reshape(-1, rows.shape[-1]), jnp.mean(penalties)


def _update(
    world: World, switch: _Switches, policy: Policy, logged: Array, imagined: Array, noise: Array
) -> tuple[Policy, Float[Array, " metrics"]]:
    from_log = jnp.arange(_BATCH) < jnp.round(switch.real_fraction * _BATCH)
    rows = jnp.where(from_log[:, None], world.logged[logged], policy.replay.rows[imagined])
    batch = unpack(rows, len(world.mean))
    now, after = _observe(switch, batch.latents), _observe(switch, batch.next_latents)
    rewards = switch.reward_scale * batch.rewards
    trainable, static = eqx.partition(policy.networks, eqx.is_array)
    stop = jax.lax.stop_gradient

    def loss(trainable: Networks) -> tuple[Array, Array]:
        networks = eqx.combine(trainable, static)
        temperature = stop(jnp.exp(networks.log_temperature))
        actions, density = _act(networks.actor, switch, after, noise[0])
        best = jnp.min(_values(policy.targets, switch, after, actions), axis=0)
        following = best - switch.soft_targets * temperature * density
        target = rewards + _DISCOUNT * (1 - batch.terminated) * following
        low, high = _bounds(world, switch)
        target = jnp.where(switch.clip > 0, jnp.clip(target, low, high), target)
        target = jax.lax.optimization_barrier(stop(target))
        Q = _values(networks.critics, switch, now, batch.actions)
        critic_loss = jnp.mean((Q - target) ** 2)
        frozen = hold_constant(networks.critics)
        actions, density = _act(networks.actor, switch, now, noise[1])
        best = jnp.min(_values(frozen, switch, now, actions), axis=0)
        actor_loss = jnp.mean(temperature * density - best)
        entropy = -stop(jnp.mean(density))
        surplus = entropy + world.space.size
        total = _CRITICS * critic_loss + actor_loss + networks.log_temperature * surplus
        return total, stop(jnp.stack([critic_loss, jnp.mean(Q), entropy, temperature]))

    gradient, metrics = jax.grad(loss, has_aux=True)(trainable)
    change, optimiser = _OPTIMISER.update(gradient, policy.optimiser, trainable)
    fall = 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(policy.step / world.total, 1)))
    actor_rate = switch.actor_rate * jnp.where(switch.cosine > 0, fall, 1.0)
    change = Networks(
        jax.tree.map(lambda c: -actor_rate * c, change.actor),
        jax.tree.map(lambda c: -3e-4 * c, change.critics),
        -switch.temperature_rate * change.log_temperature,
    )
    networks = eqx.combine(optax.apply_updates(trainable, change), static)
    targets = optax.incremental_update(networks.critics, policy.targets, _TARGET_RATE)
    return Policy(networks, targets, optimiser, policy.replay, policy.step + 1), metrics


def _bounds(world: World, switch: _Switches) -> tuple[Array, Array]:
    low, high = world.reward_range
    low = low - _LARGEST_PENALTY * switch.weight
    ahead = 1 - _DISCOUNT
    bounds = jnp.minimum(low, low / ahead), jnp.maximum(high, high / ahead)
    return switch.reward_scale * bounds[0], switch.reward_scale * bounds[1]


@eqx.filter_jit
def value_first_states(
    constants: tuple[World, _Switches], policies: Policy
) -> Float[Array, " policies"]:
    """Return the critics' mean value of the data's first states, in units of reward."""
    world, switches = constants

    def one(switch: _Switches, networks: Networks) -> Array:
        observed = _observe(switch, world.initial)
        actions = jax.vmap(networks.actor.mode)(observed)
        values = jnp.min(_values(networks.critics, switch, observed, actions), axis=0)
        return jnp.mean(values) / switch.reward_scale

    return eqx.filter_vmap(one)(switches, policies.networks)


def deploy(world: World, switches: _Switches, policies: Policy) -> list[DeployedPolicy]:
    """Return the deterministic policies on observations in the data's units."""
    actors, switches = jax.tree.map(
        lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf,
        (policies.networks.actor, switches),
    )
    found = []
    for index in range(len(switches.seed)):
        actor = jax.tree.map(
            lambda leaf: leaf[index] if isinstance(leaf, np.ndarray) else leaf,  # noqa: B023
            actors,
        )
        # (s − mean) / scale · a + b is what the actor sees.
        a, b = switches.observation_scale[index], switches.observation_shift[index]
        mean, scale = np.asarray(world.mean), np.asarray(world.scale)
        stage = make_stage(actor.network, world.space.size)
        found.append(DeployedPolicy(mean - b * scale / a, scale / a, (stage,), world.space))
    return found
