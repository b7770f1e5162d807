"""A whole run on images: everything that reads a run works, and refuses what it must."""

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

import gelato
from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.policy.onnx_export import export_onnx
from gelato.policy.policy import load_policies, pack_policies
from gelato.tasks.environments import make_environment
from gelato.training.policies import trained_policies
from gelato.training.presets import choose_parts, make_method
from tests.images.systems import ENVIRONMENT, SIZE, TINY, save_swings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> gelato.Dataset:
    return gelato.load(save_swings(tmp_path_factory.mktemp("log") / "log.npz") + ",history=2")


@pytest.fixture(scope="module")
def run(dataset: gelato.Dataset, tmp_path_factory) -> Path:
    parts = choose_parts(dataset, "small")
    agent = SAC(hidden=(16,), batch_size=16, updates=4, epoch=2, branches=8, horizon=2, replay=32)
    parts = replace(parts, latent=LatentFit(TINY, 0.01), sac=agent, ppo=None)
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = gelato.TrainSettings(neighbours=3, points=100, evaluations=1, episodes=1)
    method = make_method("gelato", parts)
    (record,) = gelato.train(dataset, folder, method, settings=settings, workers=1)
    assert np.isfinite(record["return"])
    return folder


def test_a_policy_acts_on_the_frames_of_an_episode(run: Path, tmp_path: Path) -> None:
    (policy,) = (found.policy for found in trained_policies(run))
    np.savez(tmp_path / "p.npz", **{f"['{k}']": v for k, v in pack_policies([policy]).items()})
    environment, acting = make_environment(ENVIRONMENT), policy.begin()
    observation, _ = environment.reset(seed=0)
    for _ in range(3):
        assert observation.dtype == np.uint8
        action = acting(observation)
        assert environment.action_space.contains(action.astype(np.float32))
        observation, *_ = environment.step(action)
    read = load_policies(tmp_path / "p.npz")[0]
    np.testing.assert_array_equal(read(acting.window), policy(acting.window))


def test_the_deployed_encoder_equals_the_models(run: Path, dataset: gelato.Dataset) -> None:
    (policy,) = (found.policy for found in trained_policies(run))
    fitted = gelato.load_model(run, dataset)
    windows = dataset.transitions[:5].inputs
    normalised = fitted.scaling.inputs(windows)
    for window in normalised:
        expected = fitted.seed(0).encode(jnp.asarray(window)).mean
        np.testing.assert_allclose(policy.stages[0](window), expected, rtol=1e-4, atol=1e-4)


def test_the_exported_graph_acts_like_the_policy(run: Path, tmp_path: Path) -> None:
    (policy,) = (found.policy for found in trained_policies(run))
    assert export_onnx(policy, tmp_path / "p.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    shapes = {each.name: each.shape[1] for each in session.get_inputs()}
    assert shapes == {"observation": SIZE**2, "window": SIZE**2 + 2}
    # The graph holds no dense matrix of pixels by pixels.
    assert (tmp_path / "p.onnx").stat().st_size < 4 * (SIZE**2 + 2) ** 2


def test_the_commands_work_on_a_run_or_refuse_it_in_one_line(
    run: Path, dataset: gelato.Dataset, tmp_path: Path, capsys
) -> None:
    main(["data", "info", dataset.reference])
    assert "image 16×16, mean" in capsys.readouterr().out
    main(["data", "check", dataset.reference])
    main(["model", "check", str(run)])
    main(["evaluate", str(run), "--episodes", "1"])
    main(["trust", str(run), dataset.reference, "--rows", "20"])
    main(["report", str(run), "--out", str(tmp_path / "report.html")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["map"] is not None
    main(["export", str(run), "--onnx", str(tmp_path / "p.onnx"), "--no-guard"])
    for command, problem in (
        (["select", str(run)], "returns cannot be estimated from images yet"),
        (["uncertainty", str(run)], "penalties cannot be judged on images yet"),
        (["export", str(run), "--onnx", str(tmp_path / "g.onnx")], "--no-guard"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(command)
        assert stopped.value.code == 2
        assert problem in capsys.readouterr().err


def test_methods_without_the_latent_model_refuse_images(
    dataset: gelato.Dataset, tmp_path: Path
) -> None:
    for name in ("bc", "mopo", "iql"):
        with pytest.raises(InputError, match=f"method {name}.* cannot read images"):
            gelato.train(dataset, tmp_path / "run", name)
    assert not (tmp_path / "run").exists()
