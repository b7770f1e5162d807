"""A task from outside the library: registered, refused, trained with, and evaluated in workers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import gelato
from gelato.errors import InputError
from gelato.tasks import check_environment, environments, find_task, list_tasks, task


class Corridor(gymnasium.Env[np.ndarray, np.ndarray]):
    """The state has two numbers; an episode ends when the first one exceeds 1."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("the constructor has a bug")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self.state, {}

    def step(self, action: np.ndarray) -> Any:
        self.state = self.state + np.array([0.1 * action[0], 0.0], np.float32)
        info = {"hit": bool(self.state[0] > 0.8)}
        return self.state, float(self.state[0]), bool(self.state[0] > 1), False, info


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(task, "_TASKS", dict(task._TASKS))
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


CORRIDOR = gelato.Task(
    "corridor",
    ("tests/Corridor-v0",),
    entry_point=Corridor,
    steps=20,
    reference_returns=(0.0, 10.0),
    termination=lambda state: state[0] > 1,
    state_size=2,
    has_crashed=lambda info: info["hit"],
    presets={
        "default": {"sac": {"discount": 0.9}},
        "small": {
            "model": {
                "batch_size": 32,
                "hidden": (8, 8),
                "forward_hidden": (8, 8),
                "updates": 20,
                "variance_updates": 5,
            },
            "ensemble": {"batch_size": 32, "hidden": (8, 8), "updates": 20},
            "sac": {"hidden": (8, 8), "batch_size": 16, "updates": 10, "epoch": 5, "branches": 8},
            "train": {"points": 50, "neighbours": 3, "evaluations": 1, "episodes": 2},
        },
    },
)


def record() -> gelato.Dataset:
    environment = gymnasium.make(CORRIDOR.environment)
    environment.action_space.seed(0)
    rows: list[tuple[Any, ...]] = []
    for seed in range(10):
        state, _ = environment.reset(seed=seed)
        over = False
        while not over:
            action = environment.action_space.sample()
            after, reward, ended, late, _ = environment.step(action)
            rows.append((state, action, reward, after, ended, late))
            state, over = after, ended or late
    states, actions, rewards, successors, ends, stops = zip(*rows)
    return gelato.make_dataset(
        states,
        actions,
        rewards,
        next_observations=successors,
        terminals=ends,
        timeouts=stops,
        environment=CORRIDOR.environment,
    )


def always_push(observation: np.ndarray) -> np.ndarray:
    del observation
    return np.ones(1, np.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("clean_registry")
def test_a_registered_task_gives_presets_scores_rules_and_crashes_in_worker_processes(
    tmp_path: Path,
) -> None:
    assert gelato.register_task(CORRIDOR) is find_task("tests/Corridor-v0")
    dataset = record()
    parts = gelato.choose_parts(dataset, "small")
    assert (parts.sac.discount, parts.sac.updates, parts.latent.model.updates) == (0.9, 10, 20)
    assert gelato.choose_parts(dataset).sac.discount == 0.9
    records = gelato.train(dataset, tmp_path / "run", ["gelato", "mopo"], preset="small", workers=2)
    for found in records:
        assert found["score"] == pytest.approx(10 * found["return"], rel=1e-3)
    outcomes = []
    for workers in (1, 2):
        outcomes.append(
            gelato.evaluate_policy(always_push, CORRIDOR.environment, episodes=3, workers=workers)
        )
    np.testing.assert_array_equal(outcomes[0].returns, outcomes[1].returns)
    assert outcomes[0].crash_rate == outcomes[1].crash_rate == 1.0


@pytest.mark.usefixtures("clean_registry")
def test_a_task_is_refused_if_it_is_registered_twice_or_incomplete() -> None:
    gelato.register_task(CORRIDOR)
    wrong = {
        "'corridor' is already registered": CORRIDOR,
        "belongs to the task 'corridor'": replace(CORRIDOR, name="other"),
        "Gymnasium already has": replace(CORRIDOR, name="p", environments=("Pendulum-v1",)),
        "termination needs state_size": gelato.Task(
            "a", ("b-v0",), termination=CORRIDOR.termination
        ),
        "at least one environment id": gelato.Task("a", ()),
        "random < expert": gelato.Task("a", ("b-v0",), reference_returns=(1.0, 1.0)),
        "preset 'tiny' is not one of": gelato.Task("a", ("b-v0",), presets={"tiny": {}}),
        "part 'actor' is not one of": gelato.Task("a", ("b-v0",), presets={"small": {"actor": {}}}),
    }
    before = list_tasks()
    for message, value in wrong.items():
        with pytest.raises(InputError, match=message):
            gelato.register_task(value)
    assert list_tasks() == before


@pytest.mark.usefixtures("clean_registry")
def test_an_unknown_setting_in_a_preset_names_the_task_and_the_part() -> None:
    gelato.register_task(replace(CORRIDOR, presets={"default": {"sac": {"speed": 1}}}))
    with pytest.raises(InputError, match=r"task 'corridor': preset 'default' cannot change sac"):
        gelato.choose_parts(record())


@pytest.mark.usefixtures("clean_registry")
def test_a_bug_in_a_constructor_is_not_reported_as_not_installed() -> None:
    gelato.register_task(replace(CORRIDOR, options={"broken": True}))
    with pytest.raises(InputError, match="is installed, but making it failed") as caught:
        check_environment(CORRIDOR.environment)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(environments.NotInstalledError, match="Nothing-v0: this environment is not"):
        check_environment("Nothing-v0")


def test_every_built_in_task_is_complete_and_found_by_its_ids() -> None:
    for value in list_tasks().values():
        task._check_task(value)
        for name in value.environments:
            assert find_task(name) is value
    assert find_task("Pendulum-v1") is None and find_task(None) is None
