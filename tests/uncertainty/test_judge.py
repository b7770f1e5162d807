"""Judging penalties: true successors from the simulator, scores, and checks of the input."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from gelato.cli import main
from gelato.cli.uncertainty import print_records
from gelato.data.generate import run_episodes
from gelato.data.recipes import Recipe
from gelato.data.reference import load
from gelato.errors import InputError
from gelato.model import training
from gelato.model.config import preset
from gelato.model.training import FittedModel
from gelato.tasks.environments import open_simulator
from gelato.tasks.four_rooms import FOUR_ROOMS, FREE, encode_position, list_free_cells
from gelato.uncertainty.judge import judge_penalties
from gelato.uncertainty.penalty import Ensemble
from gelato.uncertainty.scores import auroc, compute_excess_risk, compute_risk_coverage, spearman
from gelato.uncertainty.shifts import make_data_shifts, make_imagined_shifts
from gelato.uncertainty.trust import Trust

SIZES = {"Hopper-v5": 11, "Walker2d-v5": 17, "HalfCheetah-v5": 17}


@pytest.fixture(scope="module")
def hopper(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> FittedModel:
    """Make an untrained model of Hopper; its quality does not matter here."""
    del shared_store
    dataset = load("hopper-medium,transitions=2000")
    small = dataclasses.replace(
        preset("default", dataset),
        latent_size=4,
        decoders=3,
        hidden=(16,),
        forward_hidden=(16,),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        return training.fit_model(dataset, tmp_path_factory.mktemp("runs") / "hopper", config=small)


@pytest.mark.parametrize("environment", ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"])
def test_the_simulator_put_into_a_recorded_state_goes_where_the_recording_went(
    environment: str,
) -> None:
    simulator = open_simulator(environment, SIZES[environment])
    assert simulator is not None
    episode = run_episodes(Recipe("test", environment, ("random",), 0, ""), 0, 0, range(1))[0]
    found = np.array(
        [
            simulator.successor(s, a)
            for s, a in zip(episode.observations, episode.actions, strict=False)
        ]
    )
    known = np.isfinite(found).all(axis=1)
    assert known.mean() > 0.2
    np.testing.assert_allclose(found[known], episode.observations[1:][known], atol=1e-4)


def test_the_simulator_does_not_remember() -> None:
    simulator = open_simulator("Hopper-v5", 11)
    assert simulator is not None
    state, action = np.array([1.25, *np.zeros(10)]), np.array([0.5, -0.5, 0.1])
    first = simulator.successor(state, action)
    for _ in range(3):
        simulator.successor(state + 0.01, -action)
    np.testing.assert_array_equal(simulator.successor(state, action), first)


def test_four_rooms_answers_with_the_mean_over_move_lengths() -> None:
    simulator = open_simulator(FOUR_ROOMS.environment, 2)
    assert simulator is not None
    cells = encode_position(list_free_cells())
    assert np.isfinite([simulator.successor(cell, np.array(0)) for cell in cells]).all()
    # To the right of the upper left corner, 1, 2 and 3 cells are free.
    np.testing.assert_allclose(
        simulator.successor(encode_position(np.array([0, 0])), np.array(3)),
        encode_position(np.array([0, 2])),
    )
    wall = np.argwhere(~FREE)[0]
    assert np.isnan(simulator.successor(encode_position(wall), np.array(0))).all()


def test_an_environment_that_cannot_be_set_has_no_simulator() -> None:
    assert open_simulator("CartPole-v1", 4) is None
    assert open_simulator(None, 4) is None


def test_data_of_another_version_gets_this_simulator_and_states_of_another_size_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert open_simulator("hopper_medium-v2", 11) is not None
    assert "using the simulator of Hopper-v5" in " ".join(capsys.readouterr().err.split())
    assert open_simulator("Hopper-v5", 12) is None
    assert "cannot be used" in capsys.readouterr().err


def test_a_state_that_blows_the_simulator_up_has_no_successor() -> None:
    simulator = open_simulator("HalfCheetah-v5", 17)
    assert simulator is not None
    wild = np.concatenate([np.zeros(8), np.full(9, 1e4)])
    assert np.isnan(simulator.successor(wild, np.zeros(6))).all()
    assert np.isfinite(simulator.successor(np.zeros(17), np.zeros(6))).all()


def test_scores_agree_with_scipy_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    errors, values = rng.random(100), np.round(rng.random(100), 1)
    assert spearman(values, errors) == pytest.approx(stats.spearmanr(values, errors).statistic)
    assert auroc(values, errors > 0.8) == pytest.approx(roc_auc_score(errors > 0.8, values))


def test_risk_at_full_coverage_is_the_mean_error_and_the_true_order_has_no_excess() -> None:
    rng = np.random.default_rng(0)
    errors = rng.random(50)
    assert compute_risk_coverage(rng.random(50), errors)[-1] == pytest.approx(errors.mean())
    assert compute_excess_risk(errors, errors) == pytest.approx(0)
    assert compute_excess_risk(np.zeros(50), errors) == pytest.approx(1)


def test_shifts_leave_what_they_say_they_leave(hopper: FittedModel) -> None:
    held_out = hopper.parts[1]
    shifts = {shift.name: shift for shift in make_data_shifts(held_out, "Hopper-v5", 40)}
    assert list(shifts) == ["held-out", "perturbed", "uniform", "random", "expert"]
    np.testing.assert_array_equal(shifts["perturbed"].states, shifts["held-out"].states)
    moved = np.abs(shifts["perturbed"].actions - shifts["held-out"].actions).max(axis=1)
    assert (
        moved[shifts["perturbed"].levels == 0.8].mean()
        > moved[shifts["perturbed"].levels == 0.05].mean()
    )
    imagined = make_imagined_shifts(hopper, hopper.seed(0), held_out, 40)
    assert [shift.name for shift in imagined] == ["imagined", "imagined-expert"]
    assert set(imagined[0].levels) == set(range(1, 21))
    assert np.isfinite(imagined[0].latents).all()


def test_shifts_that_are_imagined_again_compile_nothing(
    hopper: FittedModel, count_compilations: Callable[[Callable[[], object]], int]
) -> None:
    def imagine() -> object:
        return make_imagined_shifts(hopper, hopper.seed(0), hopper.split.held_out, 40)

    imagine()
    assert count_compilations(imagine) == 0


def test_the_instrument_judges_every_penalty_on_every_shift_and_the_command_prints_it(
    hopper: FittedModel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "u.png"
    arguments = [
        "uncertainty",
        str(hopper.run.folder),
        "--penalties",
        "euclidean",
        "ensemble",
        "--rows",
        "60",
    ]
    main([*arguments, "--json", "--plot", str(plot)])
    records = json.loads(capsys.readouterr().out)["records"]
    assert {(r["penalty"], r["shift"]) for r in records} >= {
        ("euclidean", "held-out"),
        ("ensemble", "imagined-expert"),
    }
    assert len(records) == 2 * 7
    for record in records:
        assert record["truth"] == "simulator"
        assert -1 <= record["spearman_low"] <= record["spearman"] <= record["spearman_high"] <= 1
        assert record["microseconds"] > 0
    assert plot.stat().st_size > 10_000


def test_without_a_simulator_the_truth_is_held_out_transitions_and_said_to_be(
    hopper: FittedModel,
) -> None:
    extra = {"mine": lambda inputs: Ensemble(inputs.model)}
    (report,) = judge_penalties(
        hopper, penalties=("ensemble",), extra=extra, rows=50, simulate=False
    )
    record, mine = report.records()
    assert (mine["penalty"], mine["spearman"]) == ("mine", record["spearman"])
    assert 0.9 < record["trusted"] <= 1
    assert (record["shift"], record["truth"]) == ("held-out", "held-out transitions")


def test_trust_tells_data_from_foreign_inputs_and_refuses_bad_ones(hopper: FittedModel) -> None:
    trust = Trust(hopper, penalty="euclidean")
    held_out = hopper.parts[1]
    states, actions = np.asarray(held_out.states[:50]), np.asarray(held_out.actions[:50])
    assert trust(states, actions).trusted.mean() > 0.8
    assert trust(states + 20 * states.std(axis=0), actions).trusted.mean() < 0.2
    for bad, message in [
        ((states[:, :5], actions), "rows? of 11 numbers"),
        ((states, actions[:, :2]), r"need \(50, 3\)"),
        ((states * np.nan, actions), "NaN or infinity in row 0"),
        ((states, actions + 3), "outside the action range"),
    ]:
        with pytest.raises(InputError, match=message):
            trust(*bad)
    with pytest.raises(InputError, match="has no model for seed 7"):
        Trust(hopper, seed=7)


def test_trust_judges_rows_of_other_data_by_episode_and_step(
    hopper: FittedModel, tmp_path: Path, capsys
) -> None:
    other = load("hopper-medium,transitions=1000,seed=3")
    judged = Trust(hopper, penalty="euclidean").of_data(other, 40)
    states, actions = np.asarray(other.transitions.states), np.asarray(other.transitions.actions)
    starts = [rows.start for rows in other.transitions.episode_slices]
    rows = [starts[int(row["episode"] or 0)] + int(row["step"] or 0) for row in judged]
    assert rows == np.linspace(0, len(states) - 1, 40).astype(int).tolist()
    verdict = Trust(hopper, penalty="euclidean")(states[rows], actions[rows])
    assert [row["penalty"] for row in judged] == verdict.penalty.tolist()
    table, arguments = tmp_path / "rows.csv", ["--penalty", "euclidean", "--rows", "40"]
    command = ["trust", str(hopper.run.folder), "hopper-medium,transitions=1000,seed=3", *arguments]
    main([*command, "--json", "--out", str(table)])
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"] == judged and answer["trusted"] == np.mean(
        [row["trusted"] for row in judged]
    )
    assert len(table.read_text().splitlines()) == 41
    main(command)
    assert "episodes with the largest penalty" in capsys.readouterr().out


def test_trust_refuses_data_of_other_actions_and_a_penalty_that_cannot_tell(
    hopper: FittedModel,
) -> None:
    with pytest.raises(InputError, match=r"four-rooms.*: its action space is Discrete"):
        Trust(hopper, penalty="euclidean").of_data(load("four-rooms,transitions=100"), 10)
    with pytest.raises(InputError, match="none cannot tell out-of-distribution pairs"):
        Trust(hopper, penalty="none")
    other = load("hopper-medium,transitions=1000,seed=3")
    away = dataclasses.replace(other.transitions, states=other.transitions.states * 1e30)
    with pytest.raises(InputError, match="row 0 is too far from the model's data"):
        Trust(hopper, penalty="euclidean").of_data(dataclasses.replace(other, transitions=away), 10)


@pytest.mark.parametrize(
    ("where", "message"), [(".", "is a folder; name a file"), ("no/rows.csv", "does not exist")]
)
def test_trust_refuses_a_file_it_cannot_write_before_any_work(
    where: str, message: str, tmp_path: Path, capsys
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["trust", "nowhere", "hopper-medium", "--out", str(tmp_path / where)])
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_a_file_relative_to_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = {
        "dataset": f"file:{tmp_path}/log.npz",
        "model_seed": 0,
        "penalty": "euclidean",
        "shift": "held-out",
        "truth": "held-out transitions",
        "spearman": 0.5,
        "auroc": None,
        "microseconds": 3.0,
    }
    print_records([record])
    printed = capsys.readouterr().out
    assert "file:log.npz" in printed and str(tmp_path) not in printed
    assert "0.50 / -" in printed
