"""A whole run with a history: everything that reads a run works, and refuses what it must."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import gelato
from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.policy.policy import RunningPolicy
from gelato.tasks.environments import open_simulator
from gelato.training.policies import trained_policies
from gelato.training.presets import Parts, choose_parts, clone_like, make_method, vary_method
from gelato.uncertainty.judge import _find_hidden, judge_penalties
from gelato.uncertainty.shifts import make_data_shifts

pytestmark = pytest.mark.slow

LOG = Path(__file__).parent.parent / "golden" / "hopper.npz"
REFERENCE = f"file:{LOG},environment=Hopper-v5"
WITH_HISTORY = f"{REFERENCE},history=3"


def choose_tiny(dataset: gelato.Dataset) -> Parts:
    parts = choose_parts(dataset, "small")
    model = replace(
        parts.latent.model,
        decoders=2,
        hidden=(16,),
        forward_hidden=(16,),
        batch_size=32,
        updates=40,
        variance_updates=10,
    )
    agent = SAC(hidden=(16,), batch_size=16, updates=4, epoch=2, branches=8, horizon=2, replay=32)
    return replace(
        parts, latent=LatentFit(model, 0.01), sac=agent, cloning=clone_like(agent), ppo=None
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two variants of gelato and of behaviour cloning, which has no encoder."""
    dataset = gelato.load(WITH_HISTORY)
    parts = choose_tiny(dataset)
    methods = [*vary_method(make_method("gelato", parts), (0.3, 3.0)), make_method("bc", parts)]
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = gelato.TrainSettings(neighbours=3, points=200, evaluations=1, episodes=1)
    records = gelato.train(dataset, folder, methods, seeds=2, settings=settings, workers=1)
    assert all(np.isfinite(record["return"]) for record in records)
    return folder


def test_policies_with_and_without_an_encoder_read_the_history(run: Path) -> None:
    found = trained_policies(run)
    assert {policy.policy.history for policy in found} == {3}
    assert len({len(policy.policy.stages) for policy in found}) == 2
    assert isinstance(found[0].policy.begin(), RunningPolicy)


def test_evaluate_trust_select_report_and_export_work(run: Path, tmp_path: Path) -> None:
    main(["evaluate", str(run), "--episodes", "1"])
    main(["model", "check", str(run)])
    main(["trust", str(run), WITH_HISTORY, "--rows", "50"])
    main(["trust", str(run), "--policy", "--rows", "50"])
    main(["select", str(run)])
    assert "chosen" in json.loads((run / "selection.json").read_text())
    main(["report", str(run), "--out", str(tmp_path / "report.html")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert "hopper.npz" in json.dumps(report) and (tmp_path / "report.html").exists()
    main(["export", str(run), "--onnx", str(tmp_path / "p.onnx"), "--method", "gelato λ=3"])
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    assert {"action", "next_window", "penalty", "trusted"} <= {
        each.name for each in session.get_outputs()
    }
    main(["export", str(run), "--onnx", str(tmp_path / "bc.onnx"), "--method", "bc", "--no-guard"])


def test_the_instrument_judges_windows_with_the_simulator(run: Path) -> None:
    fitted = gelato.load_model(run).of_seeds((0,))
    (report,) = judge_penalties(fitted, penalties=["euclidean"], rows=20, points=200)
    assert report.truth == "simulator"
    assert {each.shift for each in report.judged} >= {"held-out", "uniform", "random", "imagined"}


@pytest.mark.parametrize("options", ["", ",history=3"])
def test_the_instrument_sets_the_simulator_to_the_hidden_state(
    options: str, tmp_path: Path
) -> None:
    reference = f"hopper-random,transitions=600,observe=positions{options}"
    dataset = gelato.load(reference)
    config = replace(choose_tiny(dataset).latent.model, updates=10, variance_updates=2)
    fitted = gelato.fit_model(dataset, tmp_path, config=config)
    hidden = _find_hidden(fitted)
    assert hidden is not None and hidden.states.shape[1] == 11
    held_out = fitted.parts[1]
    np.testing.assert_array_equal(hidden.states[:, :5], held_out.states)
    simulator = open_simulator("Hopper-v5", 11)
    assert simulator is not None
    shift = make_data_shifts(held_out, dataset.environment, 30, hidden=hidden)[0]
    rows = np.flatnonzero(np.isin(hidden.states[:, 0], shift.states[:, 0]))
    found = np.array([simulator.successor(*pair) for pair in zip(shift.states, shift.actions)])
    known = np.isfinite(found).all(axis=1)
    expected = np.asarray(held_out.next_states)[rows]
    assert known.sum() > 10
    np.testing.assert_allclose(found[known, :5], expected[known], atol=1e-3)
    np.testing.assert_array_equal(shift.inputs, held_out[rows].inputs)
    (report,) = judge_penalties(fitted, penalties=["euclidean"], rows=20, points=100)
    assert report.truth == "simulator"
    assert {each.shift for each in report.judged} == {
        "held-out",
        "perturbed",
        "uniform",
        "random",
        "expert",
    }


def test_a_pessimistic_environment_starts_from_encoded_windows(run: Path) -> None:
    environment = gelato.pessimistic_env(run, points=200, penalty="euclidean", state_noise=0.01)
    observation, _ = environment.reset(seed=0)
    step = environment.step(environment.action_space.sample())
    assert observation.shape == step[0].shape and np.isfinite(step[1])


def test_judging_data_without_the_history_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["trust", str(run), REFERENCE])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "history of 1, but the model reads 3. Add ,history=3 to the reference" in message
    with pytest.raises(InputError, match="fingerprints differ"):
        gelato.load_model(run, gelato.load(REFERENCE))


def test_an_ensemble_in_state_space_refuses_a_history(tmp_path: Path) -> None:
    dataset = gelato.load(WITH_HISTORY)
    with pytest.raises(InputError, match=r"single observations. Use a method with a latent model"):
        gelato.train(dataset, tmp_path / "run", "mopo")
    assert not (tmp_path / "run").exists()
