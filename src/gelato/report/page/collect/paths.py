"""Episodes of the selected policy in the real environment, drawn on the map."""

from typing import Any

import numpy as np
from jaxtyping import Float

from gelato.data.history import encode_actions
from gelato.data.spaces import Discrete
from gelato.data.summary import episode_lengths
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.policy.evaluate import FIRST_SEED, find_environment
from gelato.policy.policy import DeployedPolicy
from gelato.progress import working
from gelato.report.latent_space import encode_states
from gelato.report.page.collect.data import MOST_COLUMNS, choose_shown_columns
from gelato.report.page.collect.map import MapPoints
from gelato.report.page.collect.source import Source
from gelato.report.page.records import PathsSection
from gelato.tasks.environments import make_environment
from gelato.tasks.task import find_task
from gelato.training.policy_trust import ask_policy

_MOST_EPISODES, _LONGEST = 8, 1_000
# Seconds to spend in slow simulators, at most.
_SECONDS = 5.0
# Steps of a path that the page draws.
_DRAWN = 120
# Returns are not comparable if the paths are this many times longer than all logged episodes.
_MUCH_LONGER = 2


def collect_paths(source: Source, points: MapPoints | None) -> PathsSection | None:
    """Run the selected policy in its environment, if there is one."""
    chosen, fitted = source.chosen, source.fitted
    if chosen is None or fitted is None or points is None:
        return None
    policy = chosen.policy
    try:
        environment = find_environment(chosen.environment, policy.layout.state_size, policy.space)
    except InputError as error:
        source.missing["paths"] = f"{error}."
        return None
    if environment is None:
        source.missing["paths"] = (
            "The data names no environment that is installed, so the policy was not run."
        )
        return None
    columns = choose_shown_columns(points.states, MOST_COLUMNS)
    with working(f"running the selected policy in {environment}"):
        paths = []
        for number in range(_count_episodes(environment)):
            walk = _walk(environment, policy, FIRST_SEED + number)
            paths.append(_describe(source, points, walk, columns))
    longest = int(episode_lengths(fitted.dataset.transitions).max())
    comparable = max(path["length"] for path in paths) < _MUCH_LONGER * longest
    names = tuple(points.names[column] for column in columns)
    return PathsSection(environment, tuple(paths), names, comparable)


def _count_episodes(environment: str) -> int:
    """Return how many episodes are cheap: fewer in slow simulators."""
    task = find_task(environment)
    if task is None or not task.step_seconds:
        return _MOST_EPISODES
    episodes = _SECONDS / (task.step_seconds * (task.steps or _LONGEST))
    return int(np.clip(episodes, 2, _MOST_EPISODES))


def _walk(environment: str, policy: DeployedPolicy, seed: int) -> dict[str, Any]:
    """Run one episode; return its states, actions, return and end."""
    simulator = make_environment(environment)
    observation, _ = simulator.reset(seed=seed)
    inputs: list[np.ndarray] = []
    layout, memory = policy.layout, policy.layout.start()
    actions: list[Any] = []
    total, ended, terminated = 0.0, False, False
    info: dict[str, Any] = {}
    while not ended and len(inputs) < _LONGEST:
        window = np.asarray(layout.open(np.asarray(observation, np.float32).ravel(), memory))
        action = policy(window)
        inputs.append(window)
        actions.append(action)
        memory = np.asarray(layout.remember(window, encode_actions(policy.space, action)))
        observation, reward, terminated, truncated, info = simulator.step(action)
        total, ended = total + float(reward), terminated or truncated
    simulator.close()
    has_crashed = getattr(find_task(environment), "has_crashed", None)
    return {
        "inputs": np.array(inputs),
        "actions": np.array(actions),
        "return": total,
        "terminated": bool(terminated),
        "crashed": None if has_crashed is None else bool(has_crashed(info)),
    }


def _describe(
    source: Source, points: MapPoints, walk: dict[str, Any], columns: list[int]
) -> dict[str, Any]:
    """Place a walk on the map and judge its steps."""
    fitted, trust = source.fitted, source.trust
    assert fitted is not None and source.policy is not None
    inputs: Float[np.ndarray, "n input"] = walk["inputs"]
    states = inputs[:, : source.policy.layout.state_size]
    drawn = choose_evenly(states, _DRAWN)
    places = points.plane(encode_states(fitted, fitted.seed(source.model_index), inputs[drawn]))
    described: dict[str, Any] = {
        "x": places[:, 0],
        "y": places[:, 1],
        "step": drawn,
        "states": states[drawn][:, columns].T,
        "return": walk["return"],
        "length": len(states),
        "terminated": walk["terminated"],
        "crashed": walk["crashed"],
    }
    if trust is not None:
        actions = walk["actions"]
        if not isinstance(source.policy.space, Discrete):
            actions = ask_policy(source.policy, inputs)
        verdict = trust(inputs, actions.reshape(len(states), *actions.shape[1:]))
        described["trusted_share"] = float(verdict.trusted.mean())
        outside = np.flatnonzero(~verdict.trusted)
        described["first_outside"] = int(outside[0]) if len(outside) else None
        described["first_place"] = states[outside[0], columns] if len(outside) else None
        described["trusted"] = verdict.trusted[drawn].astype(int)
        described["penalty"] = verdict.penalty[drawn]
    return described
