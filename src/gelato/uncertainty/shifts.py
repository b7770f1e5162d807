"""Graded shifts away from the data, on which penalties are judged.

`held-out` is unchanged held-out data. `perturbed` adds noise of growing size to its actions.
`uniform` replaces its actions by uniform ones. `random` and `expert` are states and actions of
other policies in the real simulator. `imagined` and `imagined-expert` contain states that a policy
reaches in the model (Lu et al., ICLR 2022): model rollouts of 1 to 20 steps. `imagined` uses the
cloned behaviour policy, `imagined-expert` uses the expert.

The state of a driving simulator cannot be set, but its current state can be copied.
For driving, `held-out` has new episodes of the behaviour policy, `uniform` has uniform actions in
copies of their states, and `random` has new episodes with random actions. There are no imagined
states.
"""

import copy
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray

from gelato.data.behaviour import load_policy, load_weights
from gelato.data.generate import Episode, run_episodes
from gelato.data.history import encode_actions, find_past
from gelato.data.recipes import Recipe
from gelato.data.spaces import Discrete, to_gymnasium
from gelato.data.transitions import Transitions
from gelato.model.fit import normalise_inputs
from gelato.model.gaussian import Gaussian
from gelato.model.latent import LatentModel, Scaling
from gelato.model.networks import AbstractNetwork, GaussianMLP
from gelato.model.training import FittedModel
from gelato.progress import progress
from gelato.tasks.environments import make_environment
from gelato.tasks.partial import PartialView
from gelato.tasks.task import Task, find_task

DEPTH = 20
# Standard deviations of the noise on actions, as fractions of half the action range.
NOISE = (0.05, 0.1, 0.2, 0.4, 0.8)
# A seed that datasets do not usually use.
_SEED = 1_000
_EPISODES = 10


@dataclass(frozen=True)
class Shift:
    """States and actions in the data's units, and the size of each departure.

    `latents` are the latent states of imagined rows. `successors` are the true next states, if they
    were recorded. `shown` is what the model reads where it is not the state: a window, or a state
    with hidden columns.
    """

    name: str
    states: Float[np.ndarray, "n state"]
    actions: Num[np.ndarray, "n *action"]
    levels: Float[np.ndarray, " n"]
    latents: Float[np.ndarray, "n latent"] | None = None
    successors: Float[np.ndarray, "n state"] | None = None
    shown: Float[np.ndarray, "n input"] | None = None

    @property
    def inputs(self) -> Float[np.ndarray, "n input"]:
        """What the model reads at each row, in the data's units."""
        return self.states if self.shown is None else self.shown

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class Hidden:
    """What observations hide: states of the held-out rows with all columns, and those shown."""

    states: Float[np.ndarray, "n state"]
    view: PartialView


def make_data_shifts(
    held_out: Transitions,
    environment: str | None,
    rows: int,
    seed: int = 0,
    *,
    hidden: Hidden | None = None,
) -> list[Shift]:
    """Make the shifts that need no model: the data, other actions, other policies."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.permutation(len(held_out))[:rows])
    chosen = held_out[places]
    states, actions = np.asarray(chosen.states), np.asarray(chosen.actions)
    shown = None if chosen.past is None else chosen.inputs
    if hidden is not None:
        states, shown, environment = hidden.states[places], chosen.inputs, hidden.view.whole
    uniform = _sample_actions(held_out, len(states), rng)
    shifts = [
        Shift("held-out", states, actions, np.zeros(len(states)), shown=shown),
        Shift("uniform", states, uniform, np.ones(len(states)), shown=shown),
    ]
    if not isinstance(held_out.action_space, Discrete):
        levels = np.resize(NOISE, len(states))
        noisy = _add_noise(held_out, actions, levels, rng)
        shifts.insert(1, Shift("perturbed", states, noisy, levels, shown=shown))
    for name, recipe in _find_policy_recipes(environment).items():
        shifts.append(_run_policy(name, recipe, rows, rng, held_out, hidden))
    return shifts


def make_copied_shifts(
    task: Task, rows: int, held_out: Transitions, seed: int = _SEED
) -> list[Shift]:
    """Make the shifts for a simulator whose state can be copied but not set.

    Every row has its true successor.
    """
    drivers = {"held-out": str(task.behaviour_policy), "random": "random"}
    visited = {}
    for name, driver in drivers.items():
        visited[name] = _record_driving(task, driver, rows, seed, held_out)
    states, actions, successors, others, elsewhere, windows = visited["held-out"]
    ones, random = np.ones(len(states)), visited["random"]
    at = {"shown": windows}
    return [
        Shift("held-out", states, actions, np.zeros(len(states)), successors=successors, **at),
        Shift("uniform", states, others, ones, successors=elsewhere, **at),
        Shift(
            "random",
            random[0],
            random[1],
            np.ones(len(random[0])),
            successors=random[2],
            shown=random[5],
        ),
    ]


def _record_driving(
    task: Task, driver: str, rows: int, seed: int, held_out: Transitions
) -> tuple[np.ndarray, ...]:
    """Drive with a policy and record states, actions, successors and the model's inputs.

    For every state also record a uniform action and its successor in a copy.
    """
    layout, space = held_out.layout, held_out.action_space
    environment = make_environment(task.environment)
    drive, wander = (load_policy(name, environment.action_space) for name in (driver, "random"))
    rng = np.random.default_rng(seed)
    found: list[tuple[Any, ...]] = []
    with progress(f"{task.name}: driving ({driver})", rows) as advance:
        while len(found) < rows:
            before, _ = environment.reset(seed=seed + len(found))
            ended, memory = False, layout.start()
            while not ended and len(found) < rows:
                window = np.asarray(layout.open(before.ravel(), memory))
                other = wander(before, rng)
                elsewhere = copy.deepcopy(environment.unwrapped).step(other)[0]
                action = drive(before, rng)
                after, _, terminated, truncated, _ = environment.step(action)
                columns = (before.ravel(), action, after.ravel(), other, elsewhere.ravel(), window)
                found.append(columns)
                memory = np.asarray(layout.remember(window, encode_actions(space, action)))
                before, ended = after, terminated or truncated
                advance(1)
    environment.close()
    return tuple(np.array(column) for column in zip(*found, strict=True))


def make_imagined_shifts(
    fitted: FittedModel, model: LatentModel, held_out: Transitions, rows: int
) -> list[Shift]:
    """Make the shifts that a policy causes in the model, with a depth for each row."""
    rng = np.random.default_rng(0)
    starts = held_out[np.sort(rng.permutation(len(held_out))[:rows])]
    drivers: dict[str, _Driver] = {"imagined": _ClonedPolicy(model.policy, fitted.scaling)}
    expert = _find_policy_recipes(fitted.dataset.environment).get("expert")
    if expert is not None:
        weights = load_weights(expert.policies[0])
        drivers["imagined-expert"] = _ShippedPolicy(weights, fitted.scaling)
    shifts = []
    for name, driver in drivers.items():
        shifts.append(_imagine(name, model, fitted.scaling, starts, driver))
    return shifts


def _add_noise(
    data: Transitions, actions: np.ndarray, levels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    space = data.action_space
    low = np.asarray(space.low, np.float32)  # type: ignore[union-attr]
    high = np.asarray(space.high, np.float32)  # type: ignore[union-attr]
    noise = levels[:, None] * rng.standard_normal(actions.shape) * (high - low) / 2
    return np.clip(actions + noise, low, high).astype(actions.dtype)


def _sample_actions(data: Transitions, count: int, rng: np.random.Generator) -> np.ndarray:
    policy = load_policy("random", to_gymnasium(data.action_space))
    return np.array([policy(np.empty(0), rng) for _ in range(count)])


def _find_policy_recipes(environment: str | None) -> dict[str, Recipe]:
    """Return recipes of a random and an expert policy, for tasks that come with an expert."""
    task = find_task(environment)
    if task is None or task.expert_policy is None:
        return {}
    return {
        "random": Recipe(f"{task.name}-random", task.environment, ("random",), 0, ""),
        "expert": Recipe(task.expert_policy, task.environment, (task.expert_policy,), 0, ""),
    }


def _run_policy(
    name: str,
    recipe: Recipe,
    rows: int,
    rng: np.random.Generator,
    held_out: Transitions,
    hidden: Hidden | None,
) -> Shift:
    episodes: list[Episode] = []
    # More steps than rows, so that the rows are spread over episodes.
    while len(episodes) < _EPISODES or sum(map(len, episodes)) < 4 * rows:
        episodes += run_episodes(recipe, 0, _SEED, range(len(episodes), len(episodes) + 1))
    states = np.concatenate([episode.observations[:-1] for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
    kept = np.sort(rng.permutation(len(actions))[:rows])
    observed = states if hidden is None else states[:, list(hidden.view.columns)]
    shown = None if hidden is None else observed[kept].astype(np.float32)
    if held_out.past is not None:
        stops = np.cumsum([len(episode) for episode in episodes])
        slices = [slice(stop - len(each), stop) for stop, each in zip(stops, episodes, strict=True)]
        past = find_past(observed, actions, slices, held_out.past.length)
        shown = past.choose(kept).gather(held_out.action_space)
    states = states[kept].astype(np.float32)
    return Shift(name, states, actions[kept], np.ones(len(kept)), shown=shown)


class _ClonedPolicy(eqx.Module):
    """The behaviour policy of the model: samples an action for a normalised state."""

    policy: GaussianMLP | AbstractNetwork
    scaling: Scaling

    def __call__(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Array:
        out = self.policy(state)
        space = self.scaling.action_space
        if isinstance(out, Gaussian):
            low, high = jnp.array(space.low), jnp.array(space.high)  # type: ignore[union-attr]
            return jnp.clip(out.sample(key=key), low, high)
        return jax.nn.one_hot(jax.random.categorical(key, out), out.shape[0])


class _ShippedPolicy(eqx.Module):
    """A policy from the package, deterministic, that takes normalised states."""

    weights: dict[str, np.ndarray]
    scaling: Scaling

    def __call__(self, state: Float[Array, " state"], key: PRNGKeyArray) -> Array:
        del key
        weights, hidden = self.weights, self.scaling.states.inverse(state)
        for layer in ("0", "1"):
            hidden = jax.nn.relu(hidden @ weights[f"w{layer}"] + weights[f"b{layer}"])
        out = hidden @ weights["w2"] + weights["b2"]
        return jnp.tanh(out[: out.shape[0] // 2])


_Driver = _ClonedPolicy | _ShippedPolicy


def _imagine(
    name: str, model: LatentModel, scaling: Scaling, starts: Transitions, act: _Driver
) -> Shift:
    depths = jnp.asarray(np.resize(np.arange(1, DEPTH + 1), len(starts)))
    states = normalise_inputs(starts, scaling)
    keys = jax.random.split(jax.random.key(0), len(starts))
    z, a = _roll_out(model, act, states, depths, keys)
    decoded = jax.vmap(lambda z: model.decode_means(z).mean(axis=0))(z)
    actions = np.asarray(a)
    if isinstance(scaling.action_space, Discrete):
        actions = actions.argmax(axis=1)
    return Shift(
        name,
        np.asarray(scaling.states.inverse(np.asarray(decoded))),
        actions,
        np.asarray(depths, float),
        np.asarray(z),
    )


@eqx.filter_jit
def _roll_out(
    model: LatentModel, act: _Driver, states: Array, depths: Array, keys: Array
) -> tuple[Array, Array]:
    return jax.vmap(lambda s, d, k: _step_to(model, s, d, act, key=k))(states, depths, keys)


def _step_to(
    model: LatentModel, state: Array, depth: Array, act: _Driver, *, key: PRNGKeyArray
) -> tuple[Array, Array]:
    """Return the latent state and action after `depth` imagined steps."""

    def step(
        carry: tuple[Array, Array], given: tuple[Array, PRNGKeyArray]
    ) -> tuple[tuple[Array, Array], None]:
        z, a = carry
        index, key = given
        move_key, act_key = jax.random.split(key)
        after = model.imagine(model.embedding(z, a), key=move_key)
        choice = act(model.decode_means(after).mean(axis=0), act_key)
        deeper = index < depth
        return (jnp.where(deeper, after, z), jnp.where(deeper, choice, a)), None

    first_key, key = jax.random.split(key)
    keys = jax.random.split(key, DEPTH)
    observation = state[: model.observed.size]
    first = (model.encode(state).mean, act(observation, first_key))
    return jax.lax.scan(step, first, (jnp.arange(DEPTH), keys))[0]
