"""The command of the page repeats a training: it makes the same description again."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gelato
from gelato.data.reference import load
from gelato.options import set_options
from gelato.report.page.collect.commands import write_commands
from gelato.report.page.collect.source import open_source
from gelato.runs.folder import open_run
from gelato.tasks import task
from gelato.training.method import Method
from gelato.training.plan import make_plan
from gelato.training.presets import Parts, choose_parts
from gelato.training.variants import choose_methods, refuse_unused_settings


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log whose environment is not installed."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(600, 2)),
        actions=rng.uniform(-1, 1, size=(600, 1)),
        rewards=rng.normal(size=600),
        timeouts=np.arange(600) % 10 == 9,
    )
    return f"file:{tmp_path / 'log.npz'},environment=tests/Glide-v0,low=-1,high=1"


def register(monkeypatch: pytest.MonkeyPatch, **parts: dict[str, object]) -> None:
    """Register a task for the environment of the log; its preset changes these parts."""
    monkeypatch.setattr(task, "_TASKS", dict(task._TASKS))
    gelato.register_task(gelato.Task("glide", ("tests/Glide-v0",), presets={"default": parts}))


def describe(log: str, parts: Parts, methods: list[Method]) -> dict[str, object]:
    """Return what a training with these methods records, without the training."""
    plan = make_plan(load(log), methods, settings=parts.settings)
    described: dict[str, object] = json.loads(json.dumps(plan.describe()))
    return described


def repeat(log: str, command: str) -> dict[str, object]:
    """Return what a training with the options of a command records."""
    options: dict[str, list[str]] = {}
    for word in shlex.split(command):
        if word.startswith("--"):
            options[word] = values = []
        elif options:
            values.append(word)
    (preset,) = options.get("--preset", ["default"])
    parts = choose_parts(load(log), preset)
    parts = set_options(parts, tuple(options.get("--set", ())))
    weights = tuple(map(float, options.get("--penalty-weight", ()))) or None
    fractions = tuple(map(float, options.get("--real-fraction", ())))
    methods = choose_methods(tuple(options["--method"]), parts, None, weights, fractions)
    refuse_unused_settings(tuple(options.get("--set", ())), parts, methods)
    return describe(log, parts, methods)


def write_command(log: str, run: Path, parts: Parts, methods: list[Method]) -> tuple[str, object]:
    """Return the command that the page shows, and the description of the run."""
    described = describe(log, parts, methods)
    with open_run(run, "policies", **described):
        pass
    return write_commands(open_source(run))[0], described


@pytest.mark.parametrize(
    "settings",
    [
        ("sac.truncation=0.9", "sac.temperature=0.3", "sac.horizon=4"),
        ("latent.model.forwards=3", "latent.model.forward_norm=True"),
    ],
)
def test_settings_that_are_recorded_only_if_changed_are_in_the_command(log, tmp_path, settings):
    parts = set_options(choose_parts(load(log)), settings)
    methods = choose_methods(("gelato",), parts, None, (1.0,), ())
    command, described = write_command(log, tmp_path / "run", parts, methods)
    assert set(settings) <= set(shlex.split(command))
    assert repeat(log, command) == described


def test_a_default_that_the_preset_changes_is_in_the_command(log, tmp_path, monkeypatch):
    register(monkeypatch, sac={"truncation": 1.0}, latent={"state_noise": 0.0})
    parts = set_options(choose_parts(load(log)), ("sac.truncation=none",))
    methods = choose_methods(("gelato",), parts, None, (1.0,), ())
    assert "truncation" not in methods[0].describe()["agent"]
    command, described = write_command(log, tmp_path / "run", parts, methods)
    assert "sac.truncation=none" in shlex.split(command)
    assert repeat(log, command) == described


@pytest.mark.parametrize(
    ("names", "has_fraction"),
    [(("gelato",), False), (("gelato", "bc"), False), (("gelato", "mobile"), True)],
)
def test_the_command_of_ppo_has_no_fraction_of_real_data(
    log, tmp_path, monkeypatch, names, has_fraction
):
    register(monkeypatch, ppo={"updates": 2000})
    parts = choose_parts(load(log))
    parts = replace(parts, mobile=replace(parts.mobile, updates=400))
    methods = choose_methods(names, parts, None, (1.0, 3.0), ())
    command, described = write_command(log, tmp_path / "run", parts, methods)
    assert ("--real-fraction" in shlex.split(command)) == has_fraction
    assert repeat(log, command) == described
