import os
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

from gelato.agents.networks import Actor
from gelato.cli import main
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Standardiser
from gelato.errors import InputError
from gelato.model.latent import Scaling
from gelato.model.networks import GaussianMLP
from gelato.policy import evaluate as evaluation
from gelato.policy.deploy import deploy
from gelato.policy.evaluate import (
    evaluate_policy,
    find_environment,
    open_evaluator,
    run_episode,
)
from gelato.policy.onnx_export import export_onnx
from gelato.policy.policy import DeployedPolicy, load_policies, pack_policies
from gelato.runs.folder import Run
from gelato.tasks.workers import worker_pool

SPACES = {"box": Continuous((-2.0, 0.0, -1.0), (2.0, 1.0, 1.0)), "discrete": Discrete(4)}


@pytest.fixture(params=SPACES)
def space(request: pytest.FixtureRequest) -> ActionSpace:
    return SPACES[request.param]


def parts(space: ActionSpace, activation: str = "silu") -> tuple[Actor, GaussianMLP, Scaling]:
    states = Standardiser(np.array([0.1, -1.0], np.float32), np.array([2.0, 0.5], np.float32))
    rewards = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    encoder = GaussianMLP(2, 5, (16, 16), activation, 1e-4, shortcut=True, key=jax.random.key(0))
    return (
        Actor(5, space, (16, 16), key=jax.random.key(1)),
        encoder,
        Scaling(states, rewards, space),
    )


def unit(size: int) -> tuple[Standardiser, Standardiser]:
    one = Standardiser(np.zeros(size, np.float32), np.ones(size, np.float32))
    return one, one


@pytest.mark.parametrize("activation", ["silu", "tanh", "gelu", "softplus"])
def test_the_deployed_policy_is_the_trained_one(space: ActionSpace, activation: str) -> None:
    actor, encoder, scaling = parts(space, activation)
    policy = deploy(actor, encoder, scaling)
    for observation in np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32):
        action = actor.mode(encoder(jnp.asarray(scaling.states(observation))).mean)
        expected = int(jnp.argmax(action)) if isinstance(space, Discrete) else action
        np.testing.assert_allclose(policy(observation), expected, atol=1e-5)


def test_policies_survive_their_file(space: ActionSpace, tmp_path: Path) -> None:
    policies = [deploy(*parts(space)), deploy(parts(space)[0], None, parts(space)[2])]
    policies[1] = DeployedPolicy(
        np.zeros(5, np.float32), np.ones(5, np.float32), policies[1].stages, space
    )
    Run(tmp_path).save("p", pack_policies(policies))
    found = load_policies(tmp_path / "p.npz")
    for policy, other, size in zip(policies, found, (2, 5), strict=True):
        x = np.linspace(-1, 1, size, dtype=np.float32)
        np.testing.assert_array_equal(policy(x), other(x))


def test_episodes_depend_on_their_seed_alone() -> None:
    space = Discrete(4)
    actor = Actor(2, space, (8,), key=jax.random.key(2))
    unit = Standardiser(np.zeros(2, np.float32), np.ones(2, np.float32))
    policy = deploy(
        actor,
        None,
        Scaling(unit, Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32)), space),
    )
    with open_evaluator("gelato/FourRooms-v0", 1) as evaluate:
        first, second = evaluate([policy, policy], 3)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert first.lengths[0] == run_episode("gelato/FourRooms-v0", policy, 100_000)[1] == 100


def test_episodes_that_dead_workers_leave_are_run_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = deploy(
        Actor(2, Discrete(4), (8,), key=jax.random.key(2)), None, Scaling(*unit(2), Discrete(4))
    )
    with (
        open_evaluator("gelato/FourRooms-v0", 2) as evaluate,
        open_evaluator("gelato/FourRooms-v0", 1) as alone,
    ):
        (whole,) = evaluate([policy], 4)
        for worker in list(evaluate._executor._processes.values()):
            worker.kill()
        (rest,) = evaluate([policy], 4)
        (expected,) = alone([policy], 4)
    np.testing.assert_array_equal(whole.returns, rest.returns)
    np.testing.assert_array_equal(expected.returns, rest.returns)
    assert "a worker process died" in capsys.readouterr().err


def test_workers_are_not_of_the_group_that_is_asked_to_end() -> None:
    with worker_pool(2) as pool:
        assert pool is not None
        assert os.getpgrp() not in {pool.submit(os.getpgrp).result() for _ in range(4)}


def test_an_environment_with_other_spaces_is_refused() -> None:
    assert find_environment("Hopper-v5", 11, Continuous((-1.0,) * 3, (1.0,) * 3)) == "Hopper-v5"
    with pytest.raises(ValueError, match="Hopper-v5 has observations"):
        find_environment("Hopper-v5", 12, Continuous((-1.0,) * 3, (1.0,) * 3))
    assert find_environment(None, 3, Discrete(2)) is None


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_the_onnx_graph_equals_the_policy(
    space: ActionSpace, activation: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    actor, encoder, scaling = parts(space, activation)
    policy = deploy(actor, encoder, scaling)
    assert export_onnx(policy, tmp_path / "policy.onnx", {"method": "gelato"}) <= 1e-5
    stored = onnx.load(tmp_path / "policy.onnx")
    assert stored.producer_name == "gelato" and stored.producer_version
    assert {(entry.key, entry.value) for entry in stored.metadata_props} == {("method", "gelato")}
    session = onnxruntime.InferenceSession(
        str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"]
    )
    observation = np.array([[0.3, -0.4]], np.float32)
    action = actor.mode(encoder(jnp.asarray(scaling.states(observation[0]))).mean)
    expected = int(jnp.argmax(action)) if isinstance(space, Discrete) else action
    np.testing.assert_allclose(
        session.run(None, {"observation": observation})[0][0], expected, atol=1e-5
    )


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_an_export_without_its_packages_names_the_extra(package, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    policy = deploy(*parts(Discrete(3)))
    with pytest.raises(InputError, match=rf"^{package} is not installed.*gelato-rl\[onnx\]"):
        export_onnx(policy, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stop:
        main(["export", str(tmp_path / "no-run"), "--onnx", str(tmp_path / "policy.onnx")])
    assert stop.value.code == 2


def test_a_wide_box_of_actions_is_exported_to_the_precision_of_its_width(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert (
        1e-9
        < export_onnx(deploy(*parts(Continuous((-1000.0,), (3000.0,)))), tmp_path / "policy.onnx")
        <= 1e-5
    )


def test_a_film_of_an_environment_without_a_time_limit_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = gymnasium.spec("gelato/FourRooms-v0").make(
        max_episode_steps=-1, render_mode="rgb_array"
    )
    monkeypatch.setattr(evaluation, "make_environment", lambda *_, **__: endless)
    monkeypatch.setattr(evaluation, "_LONGEST_FILM", 150)
    actor = Actor(2, Discrete(4), (8,), key=jax.random.key(2))
    policy = deploy(actor, None, Scaling(*unit(2), Discrete(4)))
    assert len(evaluation.record_frames("gelato/FourRooms-v0", policy)) == 150


def test_a_batch_of_observations_gives_the_actions_of_its_rows(space: ActionSpace) -> None:
    policy = deploy(*parts(space))
    batch = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    rows = np.array([policy(row) for row in batch])
    np.testing.assert_allclose(policy(batch), rows, rtol=1e-5, atol=1e-6)
    assert policy(batch[:1]).shape == rows[:1].shape
    with pytest.raises(ValueError, match=r"shape \(3,\); the policy expects 2 values"):
        policy(np.zeros(3))


def test_any_function_can_be_evaluated_and_its_errors_stay_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = evaluate_policy(lambda _: 0, "gelato/FourRooms-v0", episodes=2)
    assert found.returns.shape == (2,) and found.mean == 0.0

    def broken(observation: np.ndarray) -> int:
        raise ZeroDivisionError("my bug")

    with pytest.raises(ZeroDivisionError, match="my bug"):
        evaluation.record_frames("gelato/FourRooms-v0", broken)
