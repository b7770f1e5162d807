"""Train PPO in real environments on all cores.

The behaviour policies of the driving datasets were made with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from jaxtyping import Array, Float, PRNGKeyArray

from gelato.agents.networks import Actor
from gelato.agents.ppo import PPO, PPONetworks, PPORows
from gelato.data.spaces import Discrete, from_gymnasium
from gelato.tasks.environments import make_environment


@dataclass(frozen=True)
class Progress:
    """The mean return and length of the episodes that ended in the last iteration."""

    steps: int
    episode_return: float
    length: float
    learner: PPONetworks


def train_online(
    environment: str,
    config: PPO,
    *,
    steps: int,
    seed: int = 0,
    learner: PPONetworks | None = None,
    should_continue: Callable[[Progress], bool] = lambda _: True,
) -> PPONetworks:
    """Train in `config.episodes` environments for `steps`, while `should_continue` returns True."""
    keys = jax.random.split(jax.random.key(seed), 2)
    environments = _open_environments(environment, config.episodes)
    try:
        space = from_gymnasium(environments.single_action_space, environment)
        shape = environments.single_observation_space.shape
        assert shape is not None
        learner = learner or config.init_networks(int(np.prod(shape)), space, key=keys[0])
        optimiser = config.optimiser().init(eqx.filter(learner, eqx.is_array))
        drive = _Driver(environments, config, seed)
        for iteration in range(-(-steps // config.updates_per_rollout)):
            act_key, improve_key = jax.random.split(jax.random.fold_in(keys[1], iteration))
            rollout = drive(learner, act_key)
            learner, optimiser, _ = _improve(config, learner, optimiser, rollout, improve_key)
            done = (iteration + 1) * config.updates_per_rollout
            if not should_continue(Progress(done, *drive.summarise_ended_episodes(), learner)):
                break
        return learner
    finally:
        environments.close()


class _Driver:
    """Steps the environments with a policy and remembers their states between iterations."""

    def __init__(self, environments: AsyncVectorEnv, config: PPO, seed: int) -> None:
        self._environments, self._config = environments, config
        observations, _ = environments.reset(
            seed=[seed + index for index in range(config.episodes)]
        )
        self._seen = _flatten(observations)
        self._returns, self._lengths = np.zeros(config.episodes), np.zeros(config.episodes)
        self._ended: list[tuple[float, float]] = []

    def __call__(self, learner: PPONetworks, key: PRNGKeyArray) -> PPORows:
        """Return steps of all environments, `[steps, environments]`."""
        keys = jax.random.split(key, self._config.steps)
        return jax.tree.map(
            lambda *rows: jnp.stack(rows), *(self._step(learner.actor, k) for k in keys)
        )

    def _step(self, actor: Actor, key: PRNGKeyArray) -> PPORows:
        seen = self._seen
        choices, densities, actions = _draw_actions(actor, jnp.asarray(seen), key)
        if isinstance(actor.space, Discrete):
            actions = actions.argmax(axis=1)
        observations, rewards, terminated, truncated, info = self._environments.step(
            np.asarray(actions)
        )
        ended = terminated | truncated
        after = self._seen = _flatten(observations)
        if ended.any():
            after = after.copy()
            after[ended] = _flatten(np.stack(list(info["final_obs"][ended])))
        self._returns += rewards
        self._lengths += 1
        self._ended += list(zip(self._returns[ended], self._lengths[ended]))
        self._returns[ended] = self._lengths[ended] = 0
        given = (seen, choices, densities, rewards.astype(np.float32), after, terminated, ended)
        return PPORows(*(jnp.asarray(x) for x in given))

    def summarise_ended_episodes(self) -> tuple[float, float]:
        """Return the mean return and length of episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        return tuple(np.mean(ended, axis=0).tolist()) if ended else (np.nan, np.nan)


@eqx.filter_jit
def _draw_actions(actor: Actor, seen: Float[Array, "n state"], key: PRNGKeyArray) -> Any:
    choices, densities = jax.vmap(lambda s, k: actor.draw(s, key=k))(
        seen, jax.random.split(key, len(seen))
    )
    return choices, densities, jax.vmap(actor.action)(choices)


@eqx.filter_jit
def _improve(
    agent: PPO,
    networks: PPONetworks,
    optimiser: optax.OptState,
    rows: PPORows,
    key: PRNGKeyArray,
) -> tuple[PPONetworks, optax.OptState, Float[Array, " metrics"]]:
    return agent.update(networks, optimiser, rows, key=key)


def _open_environments(environment: str, count: int) -> AsyncVectorEnv:
    made = [partial(_make, environment)] * count
    return AsyncVectorEnv(made, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)


def _make(environment: str) -> gymnasium.Env[Any, Any]:
    return make_environment(environment)


def _flatten(observations: np.ndarray) -> Float[np.ndarray, "n state"]:
    return observations.reshape(len(observations), -1).astype(np.float32)
