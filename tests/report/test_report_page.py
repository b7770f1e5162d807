"""`write_report` on runs: what exists is shown, what is missing is named."""

import json
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gelato import write_report
from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.data.columns import make_dataset
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.model import training
from gelato.model.config import preset
from gelato.report.page.collect.commands import write_commands
from gelato.report.page.collect.source import open_source
from gelato.report.page.collect.verdict import collect_verdict
from gelato.report.page.write import make_report
from gelato.runs.folder import Run, open_run
from gelato.runs.loggers import Block, LoggedRun, Logger
from gelato.training.presets import TrainSettings, choose_parts, clone_like, make_method
from gelato.training.train import train
from tests.report.page_example import make_model


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> str:
    """Six episodes of a point that is pushed around; the file names no environment."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(6):
        place = rng.normal(size=2)
        for step in range(20):
            # Other actions than these are out of distribution.
            push = np.clip(-0.6 * place + 0.05 * rng.normal(size=2), -1, 1)
            after = 0.9 * place + 0.3 * push
            rows.append((place, push, -float(after @ after), after, step == 19))
            place = after
    names = ("observations", "actions", "rewards", "next_observations", "timeouts")
    columns = {name: np.array(values) for name, values in zip(names, zip(*rows), strict=True)}
    path = tmp_path_factory.mktemp("log") / "log.npz"
    np.savez(path, **columns)
    return f"file:{path},low=-1/-1,high=1/1"


@pytest.fixture(scope="module")
def fitted(log, tmp_path_factory) -> Path:
    """The run of a model that is not trained: fast, and as good to describe."""
    dataset = load(log)
    small = replace(
        preset("default", dataset), latent_size=2, decoders=2, hidden=(8,), forward_hidden=(8,)
    )
    run = tmp_path_factory.mktemp("runs") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        training.fit_model(dataset, run, config=replace(small, batch_size=16))
    return run


@pytest.fixture(scope="module")
def cloned(log, tmp_path_factory) -> Path:
    """A finished run of behaviour cloning, which has no model."""
    run = tmp_path_factory.mktemp("runs") / "cloned"
    clone(log, run)
    return run


def clone(log: str, run: Path) -> None:
    """Clone the behaviour of a log for a few updates."""
    dataset = load(log)
    agent = SAC(hidden=(8,), batch_size=8, updates=4, epoch=2, branches=4, horizon=2, replay=16)
    parts = replace(choose_parts(dataset, "small"), sac=agent, cloning=clone_like(agent))
    settings = TrainSettings(neighbours=3, points=50, evaluations=0)
    train(dataset, run, [make_method("bc", parts)], seeds=2, settings=settings)


def write_noise(path: Path, columns: int, rows: int = 40) -> str:
    """Write a log of noise, in episodes of at most 10 steps; return its reference."""
    rng = np.random.default_rng(0)
    np.savez(
        path,
        observations=rng.normal(size=(rows, columns)),
        actions=rng.uniform(-1, 1, size=(rows, 2)),
        rewards=rng.normal(size=rows),
        timeouts=np.arange(rows) % 10 == 9,
    )
    return f"file:{path},low=-1/-1,high=1/1"


@pytest.fixture(scope="module")
def model_report(fitted, log) -> tuple[Path, dict]:
    return make_report(fitted, fitted.parent / "model.html", data=other_log(load(log)))


def other_log(dataset: Dataset) -> Dataset:
    """The same process, recorded far away from the log."""
    data = dataset.transitions
    moved = np.asarray(data.states) + 30
    return make_dataset(
        observations=moved,
        actions=np.asarray(data.actions),
        rewards=np.asarray(data.rewards),
        timeouts=np.asarray(data.ends),
        action_space=data.action_space,
        reference="moved log",
    )


def test_a_page_and_its_records_are_written_next_to_each_other(model_report):
    path, records = model_report
    assert json.loads(path.with_suffix(".json").read_text()) == records
    page = path.read_text()
    assert page.startswith("<!doctype html>") and "https://" not in page.partition("<script>")[0]
    assert page.count("plotly.js v") >= 1


def test_a_model_without_policies_has_data_model_map_and_trust(model_report):
    _, records = model_report
    assert records["policies"] is None and records["verdict"]["word"] == "no verdict"
    assert "holds a model and no policies" in records["verdict"]["missing"][0]
    assert records["data"]["summary"]["episodes"] == 6
    assert len(records["model"]["check"]["seeds"]) == 1
    assert len(records["map"]["points"]["x"]) == 120
    assert len(records["trust"]["thresholds"]) == 201


def test_no_point_of_the_map_is_its_own_neighbour_and_neighbours_are_in_order(model_report):
    found = model_report[1]["map"]
    for place, (neighbours, distances) in enumerate(zip(found["neighbours"], found["distances"])):
        assert place not in neighbours and len(neighbours) == 5
        assert distances == sorted(distances)


def test_the_map_names_the_episode_and_step_of_the_data(model_report, log):
    found, data = model_report[1]["map"], load(log).transitions
    rows = np.array(found["points"]["episode"]) * 20 + np.array(found["points"]["step"])
    states = np.array(found["points"]["states"]).T
    np.testing.assert_allclose(states, np.asarray(data.states)[rows], rtol=1e-2, atol=1e-3)


def test_a_new_log_far_away_is_drawn_and_not_trusted(model_report):
    _, records = model_report
    assert len(records["map"]["overlay"]["x"]) == 120
    assert records["trust"]["new_log"]["trusted_share"] < 0.1


def test_the_threshold_at_the_limit_keeps_the_promise(model_report):
    trust = model_report[1]["trust"]
    place = trust["thresholds"].index(trust["limit"])
    assert trust["false_alarms"][place] <= 0.06
    assert trust["false_alarms"] == sorted(trust["false_alarms"], reverse=True)
    assert trust["misses"] == sorted(trust["misses"])


def test_a_run_without_a_model_says_so(cloned, tmp_path):
    _, records = make_report(cloned, tmp_path / "report.html")
    assert (
        records["model"] is None and "learn without a latent model" in records["missing"]["model"]
    )
    assert [policy["method"] for policy in records["policies"]["policies"]] == ["bc", "bc"]
    assert "gelato select" in records["verdict"]["missing"][0]


def test_an_unfinished_run_shows_what_exists(cloned, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(cloned, run)
    (run / "results.json").unlink()
    shutil.rmtree(run / "policies")
    _, records = make_report(run)
    assert (run / "report.html").exists()
    assert "training is not finished" in records["verdict"]["missing"][0]
    assert records["data"]["summary"]["episodes"] == 6
    assert records["policies"]["curves"] == [] and not records["policies"]["finished"]


def test_metrics_that_are_not_finite_are_left_out_and_counted(cloned, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(cloned, run)
    (run / "policies" / "bc" / "manifest.json").unlink()
    metrics = run / "policies" / "bc" / "metrics.csv"
    head, first, *rest = metrics.read_text().splitlines()
    place = head.split(",").index("loss")
    broken = first.split(",")
    broken[place] = "nan"
    metrics.write_text("\n".join([head, ",".join(broken), *rest]) + "\n")
    _, records = make_report(run, tmp_path / "report.html")
    (curve,) = [each for each in records["policies"]["curves"] if each["metric"] == "loss"]
    assert curve["not_finite"] == 1
    assert "Not finite and left out: 1 value." in (tmp_path / "report.html").read_text()


def test_data_that_is_gone_leaves_curves_and_settings(cloned, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(cloned, run)
    (run / "manifest.json").unlink()
    described = json.loads((run / "run.json").read_text())
    described["data"]["reference"] = f"file:{tmp_path / 'gone.npz'}"
    (run / "run.json").write_text(json.dumps(described))
    _, records = make_report(run, tmp_path / "report.html")
    assert records["data"] is None and "gone.npz" in records["missing"]["data"]
    assert records["policies"]["curves"] and records["reproduce"]["settings"]


def test_two_runs_are_compared_side_by_side(cloned, fitted, tmp_path, capsys):
    out = tmp_path / "both.html"
    main(["report", str(cloned), str(fitted), "--out", str(out), "--json"])
    records = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in records["runs"]] == ["cloned", "model"]
    assert records["same_data"] is True and records["settings"]
    assert "2 runs compared" in out.read_text()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("report.png", "the name of a report must end in .html"),
        ("missing/report.html", "no such folder"),
    ],
)
def test_a_place_that_cannot_hold_a_page_is_refused_before_any_work(tmp_path, out, message):
    with pytest.raises(InputError, match=message):
        write_report(tmp_path / "no run", tmp_path / out)


def test_a_folder_without_write_permission_is_one_line(cloned, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="no permission to write to this folder"):
        write_report(cloned)


def test_a_missing_extra_is_one_line_and_nothing_is_written(cloned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"gelato-rl\[report\]"):
        write_report(cloned, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        write_report(tmp_path)


def test_a_new_log_needs_a_model(cloned, log, tmp_path):
    with pytest.raises(InputError, match="cannot judge"):
        write_report(cloned, tmp_path / "report.html", data=load(log))


def test_the_rows_of_the_parts_are_those_of_the_split(fitted):
    source = open_source(fitted)
    train_rows, held_out_rows = source.rows_of_parts
    states = np.asarray(source.fitted.dataset.transitions.states)
    for part, rows in zip(source.fitted.parts, (train_rows, held_out_rows), strict=True):
        np.testing.assert_array_equal(states[rows], np.asarray(part.states))


def test_the_commands_of_the_page_make_the_same_run_again(cloned, tmp_path):
    command = write_commands(open_source(cloned))[0]
    again = tmp_path / "again"
    main(shlex.split(command.replace(f"{cloned}-again", str(again)))[1:])
    described = [json.loads((run / "run.json").read_text()) for run in (cloned, again)]
    assert described[0] == described[1]
    assert "--set" in command and "cloning.batch_size=8" in command


def test_the_commands_of_a_model_have_its_settings_and_quote_names(fitted):
    fit, report = write_commands(open_source(fitted))
    words = shlex.split(fit)
    assert words[:3] == ["gelato", "model", "fit"]
    assert words[words.index("--latent-size") + 1] == "2"
    assert shlex.split(report) == ["gelato", "report", f"{fitted}-again"]


class Receiver(Logger):
    """A tracker that remembers files."""

    name = "receiver"

    def __init__(self) -> None:
        self.files: list[Path] = []

    def start(self, _: LoggedRun) -> str:
        return "1"

    def log(self, block: Block) -> None:
        pass

    def log_file(self, path: Path) -> None:
        self.files.append(path)


def test_loggers_receive_the_page(cloned, tmp_path):
    run, receiver = tmp_path / "run", Receiver()
    shutil.copytree(cloned, run)
    path = write_report(run, log=receiver)
    assert receiver.files == [path] == [run / "report.html"]


def test_loggers_take_no_comparison_and_no_unfinished_run(cloned, fitted, tmp_path):
    with pytest.raises(InputError, match="sends the report of one run"):
        write_report([cloned, fitted], tmp_path / "both.html", log=Receiver())
    run = tmp_path / "run"
    shutil.copytree(cloned, run)
    (run / "results.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        write_report(run, log=Receiver())
    assert not (run / "report.html").exists()


def test_loggers_take_no_sweep_with_several_groups(cloned, tmp_path):
    sweep, receiver = tmp_path / "sweep", Receiver()
    with open_run(sweep, "sweep") as run:
        run.write_json("groups", {"groups": [{"name": "one"}, {"name": "two"}]})
        run.write_records(open_source(cloned).results)
    for name in ("one", "two"):
        shutil.copytree(cloned, sweep / "groups" / name)
    with pytest.raises(InputError, match="sends the report of one run"):
        write_report(sweep, log=receiver)
    assert receiver.files == [] and not (sweep / "report.html").exists()


def decide(run: Path, copy: Path, word: str = "better than the data") -> Path:
    """Copy a run and write a decision of `gelato select` into the copy."""
    shutil.copytree(run, copy)
    interval = {"mean": 1.0, "estimate": 3.0, "low": 2.0, "high": 4.0}
    decision = {
        "verdict": word,
        "reasons": ["the interval lies above that of the log"],
        "chosen": {"method": "bc", "seed": 0},
        "estimate": interval,
        "behaviour": interval,
        "real_episodes": 0,
        "outside_share": 0.0,
        "agreement": 0.9,
    }
    Run(copy).write_json("selection", decision)
    return copy


def test_a_page_with_a_poor_model_does_not_advise_to_deploy(fitted, tmp_path):
    run = decide(fitted, tmp_path / "run")
    path, records = make_report(run)
    assert records["model"]["check"]["seeds"][0]["delta_r2"] < 0.5
    assert records["verdict"]["advice"].startswith("Do not deploy it yet: the model is poor")
    assert "the model is poor" in records["verdict"]["reasons"][-1]
    assert "Worth a supervised test" not in path.read_text()


def test_the_advice_depends_on_the_model_only_if_the_policy_is_better(cloned, tmp_path):
    poor = make_model()
    poor = replace(poor, check={"seeds": [{**poor.check["seeds"][0], "delta_r2": None}]})
    better = open_source(decide(cloned, tmp_path / "better"))
    worse = open_source(decide(cloned, tmp_path / "worse", "do not deploy"))
    for model in (None, make_model()):
        verdict = collect_verdict(better, None, None, None, model, None)
        assert verdict.advice.startswith("Worth a supervised test.") and len(verdict.reasons) == 1
    assert "model is poor" in collect_verdict(better, None, None, None, poor, None).advice
    verdict = collect_verdict(worse, None, None, None, poor, None)
    assert verdict.advice == "Do not deploy. Keep the present policy."
    assert "the model is poor" in verdict.reasons[-1]


def test_the_commands_of_the_verdict_quote_the_folder(cloned, fitted, tmp_path):
    for run, words in ((cloned, "gelato select"), (fitted, "--model")):
        folder = tmp_path / "my runs" / run.name
        shutil.copytree(run, folder)
        (missing,) = collect_verdict(open_source(folder), None, None, None, None, None).missing
        assert f"`{words} '{folder}'`" in missing


def test_a_log_with_thousands_of_columns_gets_a_page(tmp_path):
    log = write_noise(tmp_path / "wide.npz", columns=2000)
    run = tmp_path / "run"
    clone(log, run)
    path, records = make_report(run)
    assert records["data"]["columns"] == 2000 and len(records["data"]["states"]) == 24
    assert "24 of 2,000 columns" in path.read_text()


def test_a_single_data_point_is_refused_in_one_line_and_leaves_no_run(tmp_path):
    log = write_noise(tmp_path / "single.npz", columns=2, rows=1)
    with pytest.raises(InputError, match="no step has a successor"):
        clone(log, tmp_path / "run")
    with pytest.raises(InputError, match="no such folder"):
        write_report(tmp_path / "run")
