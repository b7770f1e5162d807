"""Driving from five episodes: train, judge and draw drivers, and refuse bad input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.figures import driving, embedding
from experiments.replay import replay_episode
from experiments.tables import driving_table
from gelato.agents.ppo import PPO
from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.model import training
from gelato.model.config import preset
from gelato.model.training import load_model
from gelato.report import FigureRequest
from gelato.tasks import find_task
from gelato.training.presets import TrainSettings, choose_parts, clone_like, make_method
from gelato.training.train import train
from gelato.uncertainty.judge import judge_penalties
from gelato.uncertainty.shifts import make_copied_shifts

pytestmark = pytest.mark.slow

METHODS = ("gelato", "gelato-none", "sac", "bc")


@pytest.fixture(scope="module")
def dataset(shared_store: Path) -> Dataset:
    return load("roundabout,episodes=2")


@pytest.fixture(scope="module")
def finished(dataset: Dataset, tmp_path_factory) -> Path:
    """Train drivers for a moment; they learn almost nothing."""
    run = tmp_path_factory.mktemp("runs") / "roundabout"
    model = replace(
        preset("default", dataset), decoders=2, hidden=(8,), forward_hidden=(8,), batch_size=8
    )
    sac = SAC(hidden=(8,), batch_size=8, updates=2, epoch=1)
    ppo = PPO(hidden=(8,), updates=8, episodes=2, steps=2, minibatches=2, passes=1, horizon=2)
    settings = TrainSettings(neighbours=3, evaluations=2, episodes=1)
    parts = replace(
        choose_parts(dataset),
        latent=LatentFit(model),
        sac=sac,
        cloning=clone_like(sac),
        ppo=ppo,
    )
    methods = [make_method(name, parts) for name in METHODS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        train(dataset, run, methods, settings=settings, workers=1)
    return run


def test_ppo_drives_in_models_sac_learns_from_logged_steps_and_all_are_evaluated(
    finished: Path,
) -> None:
    records = json.loads((finished / "results.json").read_text())
    assert {r["method"]: r["steps"] for r in records} == {
        "gelato": 8,
        "gelato-none": 8,
        "sac": 2,
        "bc": 2,
    }
    assert all(r["crash_rate"] in (0.0, 1.0) and 1 <= r["length"] <= 11 for r in records)
    assert {path.parent.name for path in finished.glob("policies/*/last.npz")} == {
        "gelato",
        "sac",
        "bc",
    }
    assert (
        "value_loss"
        in (finished / "policies" / "gelato" / "metrics.csv").read_text().splitlines()[0]
    )


def test_a_driver_can_be_watched(finished: Path, tmp_path: Path, capsys) -> None:
    from PIL import Image

    main(
        [
            "evaluate",
            str(finished),
            "--episodes",
            "1",
            "--video",
            str(tmp_path / "drive.gif"),
            "--json",
        ]
    )
    records = json.loads(capsys.readouterr().out)["records"]
    assert [r["method"] for r in records] == list(METHODS) and all(
        r["crash_rate"] in (0.0, 1.0) for r in records
    )
    with Image.open(tmp_path / "drive.gif") as picture:
        # Fifteen frames per second are more than one per decision.
        assert picture.n_frames > records[0]["length"]
    main(["evaluate", str(finished), "--episodes", "1", "--method", "gelato-none", "--json"])
    assert json.loads(capsys.readouterr().out)["records"] == [
        r for r in records if r["method"] == "gelato-none"
    ]


def test_copied_simulators_tell_what_other_actions_would_have_led_to(finished: Path) -> None:
    _, log = load_model(finished).parts
    held_out, uniform, random = make_copied_shifts(find_task("gelato/Roundabout-v0"), 12, log)
    assert [shift.name for shift in (held_out, uniform, random)] == [
        "held-out",
        "uniform",
        "random",
    ]
    np.testing.assert_array_equal(held_out.states, uniform.states)
    within = np.flatnonzero((held_out.successors[:-1] == held_out.states[1:]).all(axis=1))
    assert len(within) >= 8
    same = held_out.actions == uniform.actions
    agree = (held_out.successors == uniform.successors).all(axis=1)
    # Another action may have the same effect: there is not always a lane to change to.
    assert agree[same].all() and not agree[~same].all()


def test_penalties_are_judged_on_the_road(finished: Path) -> None:
    (report,) = judge_penalties(load_model(finished), penalties=("ensemble", "geodesic"), rows=20)
    records = report.records()
    assert {r["shift"] for r in records} == {"held-out", "uniform", "random"}
    assert all(
        r["truth"] == "simulator" and r["rows"] == 20 and np.isfinite(r["spearman"])
        for r in records
    )


def test_an_episode_of_the_data_can_be_driven_again(
    dataset: Dataset, finished: Path, tmp_path: Path
) -> None:
    turn = replay_episode(dataset)
    assert (
        turn is not None
        and len(turn.frames) == len(turn.rows) == 5
        and turn.frames[0].shape == (600, 600, 3)
    )
    assert np.abs(turn.frames[0].astype(int) - turn.frames[-1]).max() > 50
    out = tmp_path / "embedding.png"
    embedding.main(["--run", str(finished / "model"), "--out", str(out)])
    assert out.stat().st_size > 20_000


def records_of(task: str) -> list[dict]:
    def record(method: str, seed: int, steps: int, value: float) -> dict:
        crash = None if method == "data" else 0.25
        return {
            "dataset": task,
            "method": method,
            "seed": seed,
            "steps": steps,
            "return": value,
        } | {
            "crash_rate": crash,
            "length": 9.0,
            "episodes": 50,
        }

    curves = [
        record(method, seed, steps, value + seed)
        for method, value in (("gelato", 5.0), ("gelato-l2", 3.0), ("gelato-none", -5.0))
        for seed in (0, 1)
        for steps in (100, 200)
    ]
    return [*curves, record("bc", 0, 2, 4.0), record("data", 0, 0, 4.5)]


def test_table_and_figure_show_the_last_policies_and_mark_the_best_and_what_ties_with_it(
    tmp_path: Path,
) -> None:
    records = records_of("intersection") + records_of("racetrack")
    table = driving_table(records)
    assert "| racetrack | gelato | **5.50 ± 0.71** | 25% | 9.0 | 2 | 50 |" in table
    # Welch's p of gelato-l2 is 0.11, of gelato-none 0.005.
    assert "| racetrack | gelato-l2 | *3.50 ± 0.71* | 25% | 9.0 | 2 | 50 |" in table
    assert "| racetrack | gelato-none | -4.50 ± 0.71 | 25% | 9.0 | 2 | 50 |" in table
    assert "| racetrack | the data itself | 4.50 | – | 9.0 | 1 | 50 |" in table
    source, out = tmp_path / "driving.json", tmp_path / "a.png"
    source.write_text(json.dumps(records))
    driving.main(["--run", str(source), "--out", str(out)])
    assert out.stat().st_size > 20_000
    source.write_text(json.dumps([{**record, "dataset": "other"} for record in records]))
    with pytest.raises(InputError, match="no records of driving"):
        driving.draw_driving(FigureRequest(source, out))
    with pytest.raises(SystemExit) as ended:
        driving.main(["--run", str(tmp_path / "nothing.json"), "--out", str(out)])
    assert ended.value.code == 2


def test_data_of_other_observations_than_the_environments_is_refused(
    dataset: Dataset, tmp_path: Path
) -> None:
    elsewhere = replace(dataset, environment="gelato/Intersection-v0")
    with pytest.raises(
        InputError, match=r"has observations \(15, 7\) .* or install the recorded version"
    ):
        train(elsewhere, tmp_path / "run", "bc", preset="small")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "make", "roundabout", "--transitions", "50"], "has its size in episodes"),
        (["data", "make", "roundabout", "--episodes", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_line(
    shared_store, tmp_path, monkeypatch, capsys, arguments, message
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and "Traceback" not in error
