"""Graded departures from the data, on which penalties are judged.

`held-out` is the data itself. `perturbed` adds noise of growing size to its actions, `uniform` replaces them. `random`
and `expert` are states and actions of other policies in the real simulator. `imagined` and `imagined-expert` are the
shift a policy causes in the model (Lu et al., ICLR 2022): rollouts of the model itself, 1 to 20 steps deep, driven by
the cloned behaviour policy and by the expert.

A driving simulator cannot be put into an observed state, but it can be copied where it is: there `held-out` are fresh
episodes of the data's driver, `uniform` other actions in copies of every state on the way, `random` fresh episodes of
random actions; nothing is known of imagined states.
"""

import copy
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from gelato.data.behaviour import load_policy, shipped_weights
from gelato.data.generate import Episode, run_episodes
from gelato.data.recipes import RECIPES, Recipe
from gelato.data.spaces import Discrete, to_gymnasium
from gelato.data.transitions import Transitions
from gelato.envs import make_environment
from gelato.envs.driving import DrivingTask
from gelato.envs.scores import task_of
from gelato.model.gaussian import Gaussian
from gelato.model.latent import LatentModel, Scaling
from gelato.model.training import FittedModel
from gelato.progress import progress

DEPTH = 20
# Standard deviations of the noise on actions, as shares of half the action range.
NOISE = (0.05, 0.1, 0.2, 0.4, 0.8)
# Apart from the seeds that datasets are usually made with.
_SEED = 1_000
_EPISODES = 10


@dataclass(frozen=True)
class Shift:
    """States and actions in the data's units, and how far each departs.

    `latents` are the model's own where it imagined the state, `successors` the truth where it was seen on the way.
    """

    name: str
    states: Float[np.ndarray, "n state"]
    actions: Num[np.ndarray, "n *action"]
    levels: Float[np.ndarray, " n"]
    latents: Float[np.ndarray, "n latent"] | None = None
    successors: Float[np.ndarray, "n state"] | None = None

    def __len__(self) -> int:
        return len(self.states)


def data_shifts(held_out: Transitions, environment: str | None, rows: int, seed: int = 0) -> list[Shift]:
    """The shifts that need no model: the data, other actions, other policies."""
    rng = np.random.default_rng(seed)
    chosen = held_out[np.sort(rng.permutation(len(held_out))[:rows])]
    states, actions = np.asarray(chosen.states), np.asarray(chosen.actions)
    uniform = _uniform_actions(held_out, len(states), rng)
    shifts = [
        Shift("held-out", states, actions, np.zeros(len(states))),
        Shift("uniform", states, uniform, np.ones(len(states))),
    ]
    if not isinstance(held_out.action_space, Discrete):
        levels = np.resize(NOISE, len(states))
        shifts.insert(1, Shift("perturbed", states, _noisy(held_out, actions, levels, rng), levels))
    return [*shifts, *(_of_policy(*pair, rows, rng) for pair in _other_policies(environment).items())]


def driving_shifts(task: DrivingTask, rows: int, seed: int = _SEED) -> list[Shift]:
    """The shifts of a simulator that can only be copied, with the truth of every row."""
    drivers = {"held-out": task.name, "random": "random"}
    visited = {name: _visited(task, driver, rows, seed) for name, driver in drivers.items()}
    states, actions, successors, others, elsewhere = visited["held-out"]
    ones, random = np.ones(len(states)), visited["random"]
    return [
        Shift("held-out", states, actions, np.zeros(len(states)), successors=successors),
        Shift("uniform", states, others, ones, successors=elsewhere),
        Shift("random", random[0], random[1], np.ones(len(random[0])), successors=random[2]),
    ]


def _visited(task: DrivingTask, driver: str, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """States, actions and successors on the way of a driver, and what a uniform action would have led to."""
    environment = make_environment(task.environment)
    drive, wander = (load_policy(name, environment.action_space) for name in (driver, "random"))
    rng = np.random.default_rng(seed)
    found: list[tuple[Any, ...]] = []
    with progress(f"{task.name}: driving ({driver})", rows) as advance:
        while len(found) < rows:
            seen, _ = environment.reset(seed=seed + len(found))
            ended = False
            while not ended and len(found) < rows:
                other = wander(seen, rng)
                elsewhere = copy.deepcopy(environment.unwrapped).step(other)[0]
                action = drive(seen, rng)
                after, _, terminated, truncated, _ = environment.step(action)
                found.append((seen.ravel(), action, after.ravel(), other, elsewhere.ravel()))
                seen, ended = after, terminated or truncated
                advance(1)
    environment.close()
    return tuple(np.array(column) for column in zip(*found, strict=True))


def imagined_shifts(fitted: FittedModel, model: LatentModel, held_out: Transitions, rows: int) -> list[Shift]:
    """The shifts a policy causes in the model, each row at a depth of its own."""
    rng = np.random.default_rng(0)
    starts = held_out[np.sort(rng.permutation(len(held_out))[:rows])]
    drivers = {"imagined": _cloned(model, fitted.scaling)}
    expert = _other_policies(fitted.dataset.environment).get("expert")
    if expert is not None:
        drivers["imagined-expert"] = _networked(expert.policies[0], fitted.scaling)
    return [_imagined(name, model, fitted.scaling, starts, driver) for name, driver in drivers.items()]


def _noisy(data: Transitions, actions: np.ndarray, levels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    low, high = (np.asarray(bound, np.float32) for bound in (data.action_space.low, data.action_space.high))  # type: ignore[union-attr]
    noise = levels[:, None] * rng.standard_normal(actions.shape) * (high - low) / 2
    return np.clip(actions + noise, low, high).astype(actions.dtype)


def _uniform_actions(data: Transitions, count: int, rng: np.random.Generator) -> np.ndarray:
    policy = load_policy("random", to_gymnasium(data.action_space))
    return np.array([policy(np.empty(0), rng) for _ in range(count)])


def _other_policies(environment: str | None) -> dict[str, Recipe]:
    """Recipes of a random and an expert policy for the environments that have a shipped one."""
    task = task_of(environment)
    if task is None:
        return {}
    environment = RECIPES[f"{task}-random"].environment
    return {
        "random": Recipe(f"{task}-random", environment, ("random",), 0, ""),
        "expert": Recipe(f"{task}-expert", environment, (f"{task}-expert",), 0, ""),
    }


def _of_policy(name: str, recipe: Recipe, rows: int, rng: np.random.Generator) -> Shift:
    episodes: list[Episode] = []
    # More steps than rows, so that what is kept is spread over episodes.
    while len(episodes) < _EPISODES or sum(map(len, episodes)) < 4 * rows:
        episodes += run_episodes(recipe, 0, _SEED, range(len(episodes), len(episodes) + 1))
    states = np.concatenate([episode.observations[:-1] for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
    kept = np.sort(rng.permutation(len(actions))[:rows])
    return Shift(name, states[kept].astype(np.float32), actions[kept], np.ones(len(kept)))


def _cloned(model: LatentModel, scaling: Scaling) -> Any:
    """The behaviour head: samples an action for a normalised state."""

    def act(state: Float[Array, " state"], key: PRNGKeyArray) -> Array:
        out = model.policy(state)
        if isinstance(out, Gaussian):
            space = scaling.action_space
            return jnp.clip(out.sample(key=key), jnp.array(space.low), jnp.array(space.high))  # type: ignore[union-attr]
        return jax.nn.one_hot(jax.random.categorical(key, out), out.shape[0])

    return act


def _networked(name: str, scaling: Scaling) -> Any:
    """A shipped policy on normalised states, its noise aside."""
    weights = shipped_weights(name)

    def act(state: Float[Array, " state"], key: PRNGKeyArray) -> Array:
        hidden = scaling.states.inverse(state)
        for layer in ("0", "1"):
            hidden = jax.nn.relu(hidden @ weights[f"w{layer}"] + weights[f"b{layer}"])
        out = hidden @ weights["w2"] + weights["b2"]
        del key
        return jnp.tanh(out[: out.shape[0] // 2])

    return act


def _imagined(name: str, model: LatentModel, scaling: Scaling, starts: Transitions, act: Any) -> Shift:
    depths = jnp.asarray(np.resize(np.arange(1, DEPTH + 1), len(starts)))

    @eqx.filter_jit
    def roll(model: LatentModel, states: Array, keys: Array) -> Any:
        return jax.vmap(lambda s, d, k: _deep(model, s, d, act, key=k))(states, depths, keys)

    states = jnp.asarray(scaling.states(np.asarray(starts.states)))
    z, a = roll(model, states, jax.random.split(jax.random.key(0), len(starts)))
    decoded = jax.vmap(lambda z: model.decoded_means(z).mean(axis=0))(z)
    actions = np.asarray(a)
    if isinstance(scaling.action_space, Discrete):
        actions = actions.argmax(axis=1)
    return Shift(
        name, np.asarray(scaling.states.inverse(np.asarray(decoded))), actions, np.asarray(depths, float), np.asarray(z)
    )


def _deep(model: LatentModel, state: Array, depth: Array, act: Any, *, key: PRNGKeyArray) -> tuple[Array, Array]:
    """The latent state and action after `depth` imagined steps."""

    def step(carry: tuple[Array, Array], given: Any) -> Any:
        z, a = carry
        index, key = given
        move_key, act_key = jax.random.split(key)
        after = model.imagine(model.embedding(z, a), key=move_key)
        choice = act(model.decoded_means(after).mean(axis=0), act_key)
        deeper = index < depth
        return (jnp.where(deeper, after, z), jnp.where(deeper, choice, a)), None

    first_key, key = jax.random.split(key)
    keys = jax.random.split(key, DEPTH)
    first = (model.encode(state).mean, act(state, first_key))
    return jax.lax.scan(step, first, (jnp.arange(DEPTH), keys))[0]
