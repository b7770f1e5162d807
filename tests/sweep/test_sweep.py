"""A sweep on this machine: ordinary runs, resumed, with one table, and bad input in one line."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gelato.cli import main
from gelato.errors import InputError
from gelato.report.page.write import make_report
from gelato.report.policy_table import gather
from gelato.runs.files import hide_name, lock_file
from gelato.runs.folder import Run, open_run
from gelato.runs.sweeps import expand_sweeps
from gelato.sweep import run as sweep_run
from gelato.sweep import run_sweep
from gelato.sweep.jobs import Outcome, Progress, compare_versions, pack_folder, unpack_folder
from gelato.sweep.spec import Sweep, SweepSource, read_sweep
from gelato.sweep.table import LiveSweep
from gelato.sweep.workers import LocalWorker
from gelato.training.policies import trained_policies
from tests.sweep.small import (
    list_policies,
    make_command,
    make_environment,
    run_command,
    write_log,
    write_spec,
)


@pytest.fixture(scope="module", autouse=True)
def environment():
    """Let worker processes import gelato from this checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", make_environment()["PYTHONPATH"])
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    write_log(folder / "one.npz", 1)
    write_spec(folder / "spec.py", [folder / "one.npz"], seeds=2)
    return folder


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    sweep, source = read_sweep(place / "spec.py")
    run_sweep(sweep, place / "done", cores=1, source=source)
    return place / "done"


def test_every_group_is_an_ordinary_run_and_the_table_joins_them(finished: Path, place: Path):
    folders = expand_sweeps([finished])
    assert [folder.name for folder in folders] == ["one-bc", "one-iql"]
    joined = []
    for folder in folders:
        assert Run(folder).description["kind"] == "policies"
        assert len(trained_policies(folder)) == 2
        joined += Run(folder).read_records()
    assert gather([finished]) == joined and len(joined) == 4
    assert all(record["return"] < 0 for record in joined)
    assert expand_sweeps([folders[0]]) == [folders[0]]


def test_a_group_equals_a_training_with_the_same_settings(finished: Path, place: Path, tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom gelato.data.reference import load\n"
        "from gelato.sweep.groups import make_methods, make_parts\n"
        "from gelato.sweep.spec import read_sweep\nfrom gelato.training.train import train\n"
        "sweep, _ = read_sweep(Path(sys.argv[1]))\ndata = load(sweep.datasets[0])\n"
        "parts = make_parts(sweep, data)\nbc = make_methods(sweep, parts)[0]\n"
        "train(data, sys.argv[2], bc, seeds=2, settings=parts.settings, workers=1)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(place / "spec.py"), str(tmp_path / "run")],
        env=make_environment(NPROC="1"),
        check=True,
        capture_output=True,
    )
    alone = (tmp_path / "run/policies/bc/last.npz").read_bytes()
    assert alone == (finished / "groups/one-bc/policies/bc/last.npz").read_bytes()


def test_select_and_report_read_the_groups(finished: Path, tmp_path, capsys):
    path, records = make_report(finished, tmp_path / "page.html")
    assert len(records["runs"]) == 2 and path.exists()
    main(["table", str(finished), "--format", "json"])
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["method"], cell["seeds"]) for cell in cells] == [("bc", 2), ("iql", 2)]


def test_repeating_the_command_runs_no_finished_group_again(finished: Path, place: Path):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    sweep, source = read_sweep(place / "spec.py")
    records = run_sweep(sweep, finished, cores=1, source=source)
    assert records == Run(finished).read_records()
    after = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert after == before


def test_another_sweep_in_the_folder_is_refused(finished: Path, place: Path):
    sweep, source = read_sweep(write_spec(place / "other.py", [place / "one.npz"], seeds=3))
    with pytest.raises(InputError, match="started with another sweep: seeds 2, not 3"):
        run_sweep(sweep, finished, source=source)
    with Run(finished).lock(), pytest.raises(InputError, match="in use by another process"):
        run_sweep(read_sweep(place / "spec.py")[0], finished)


@pytest.mark.slow
def test_a_killed_sweep_continues_and_has_the_same_policies(finished: Path, place: Path, tmp_path):
    run = tmp_path / "run"
    command = make_command(place / "spec.py", "--run", run, "--cores", 1)
    process = subprocess.Popen(command, env=make_environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (run / "results.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = run / "groups/one-bc/policies/bc/last.npz"
    kept = first.stat().st_mtime_ns
    done = run_command(place / "spec.py", "--run", run, "--cores", 1)
    assert done.returncode == 0, done.stderr
    assert first.stat().st_mtime_ns == kept
    assert list_policies(run) == list_policies(finished)
    assert (run / "results.json").read_bytes() == (finished / "results.json").read_bytes()


@pytest.mark.slow
def test_ctrl_c_stores_a_checkpoint(place: Path, tmp_path):
    spec = write_spec(
        tmp_path / "spec.py", [place / "one.npz"], methods=["bc"], updates=20_000_000, evaluations=0
    )
    command = make_command(spec, "--run", tmp_path / "run", "--cores", 1)
    process = subprocess.Popen(
        command,
        env=make_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts programs in the background with this signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    group = tmp_path / "run/groups/one-bc/policies/bc"
    deadline = time.monotonic() + 300
    while not (group / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    # A terminal sends the signal to the whole group of processes.
    os.killpg(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=300)
    assert process.returncode == 130 and "finished work is saved" in text
    assert len(Run(group).checkpoints) == 1


@pytest.mark.slow
def test_a_failed_group_keeps_its_log_and_the_others_run(place: Path, tmp_path, monkeypatch):
    """The first group cannot write its folder; the log says why, and a repeat runs it."""
    sweep, source = read_sweep(place / "spec.py")
    run = tmp_path / "run"
    blocked = run / "groups" / "one-bc"
    _plan_without_running(sweep, source, run)
    blocked.parent.mkdir()
    blocked.write_text("in the way")
    with pytest.raises(InputError) as error:
        run_sweep(sweep, run, cores=1, source=source)
    assert str(error.value).startswith("1 of 2 groups failed: one-bc. Their logs are ")
    assert "is a file" in (run / "groups/one-bc.log").read_text()
    assert {record["method"] for record in Run(run).read_records()} == {"iql"}
    blocked.unlink()
    assert len(run_sweep(sweep, run, cores=1, source=source)) == 4


def _plan_without_running(sweep: Sweep, source: SweepSource, run: Path) -> None:
    with LocalWorker(1) as workers:
        plan = sweep_run._plan(sweep, source, workers)
    with open_run(run, "sweep", sweep=sweep.describe()) as opened:
        opened.record("groups", {"groups": [group.describe() for group in plan]})


def test_data_that_changed_after_planning_is_refused(tmp_path):
    log = write_log(tmp_path / "log.npz")
    spec = write_spec(tmp_path / "spec.py", [log], methods=["bc"])
    sweep, source = read_sweep(spec)
    _plan_without_running(sweep, source, tmp_path / "run")
    write_log(log, 7)
    with pytest.raises(InputError, match="1 of 1 groups failed"):
        run_sweep(sweep, tmp_path / "run", cores=1, source=source)
    text = (tmp_path / "run/groups/log-bc.log").read_text()
    assert "is not the data that this sweep was planned with" in text


def test_mistakes_that_need_the_data_name_their_line_and_leave_no_folder(place: Path, tmp_path):
    for fields, problem in (
        (
            {"settings": ["cloning.hiden=8,"]},
            "line 9, settings: --set cloning.hiden=8,: no setting",
        ),
        ({"penalty_weights": [3.0]}, "line 10, penalty_weights: "),
    ):
        spec = write_spec(tmp_path / "spec.py", [place / "one.npz"], **fields)
        sweep, source = read_sweep(spec)
        with pytest.raises(InputError) as error:
            run_sweep(sweep, tmp_path / "run", cores=1, source=source)
        assert str(error.value).startswith(f"{spec}, {problem}"), str(error.value)
        assert not (tmp_path / "run").exists()
    spec = write_spec(tmp_path / "spec.py", [tmp_path / "missing.npz"])
    sweep, source = read_sweep(spec)
    with pytest.raises(InputError, match=r"line 4, datasets: .*missing.npz"):
        run_sweep(sweep, tmp_path / "run", cores=1, source=source)


def test_a_worker_that_dies_fails_its_job_and_the_next_job_gets_a_new_one(place: Path, tmp_path):
    sweep, source = read_sweep(place / "spec.py")
    jobs = [sweep_run.PlanJob(sweep.datasets[0], sweep, source) for _ in range(2)]
    outcomes = []
    with LocalWorker(1) as workers:
        for event in workers.run(jobs):
            if isinstance(event, Progress) and not outcomes:
                os.kill(workers._process.pid, signal.SIGKILL)
            if isinstance(event, Outcome):
                outcomes.append(event)
    assert outcomes[0].error == "its process was killed, perhaps because memory ran out"
    assert outcomes[1].error is None and len(outcomes[1].value) == 2


def test_a_damaged_result_is_named_and_not_replaced(finished: Path, place: Path, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    damaged = run / "groups/one-bc/results.json"
    damaged.write_text(damaged.read_text().replace("bc", "cb"))
    sweep, source = read_sweep(place / "spec.py")
    with pytest.raises(InputError, match="1 of 2 groups failed: one-bc"):
        run_sweep(sweep, run, cores=1, source=source)
    assert "cb" in damaged.read_text()


def test_ray_that_is_missing_is_one_line(place: Path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    sweep, source = read_sweep(place / "spec.py")
    with pytest.raises(InputError) as error:
        run_sweep(sweep, tmp_path / "run", address="local", source=source)
    install = "pip install 'gelato-rl[ray]'"
    assert str(error.value) == f"ray is not installed. Install it with: {install}"


def test_nodes_with_other_versions_are_named_with_both_versions():
    here = {"gelato-rl": "0.2.0", "jax": "0.10.2"}
    compare_versions("b", here, here)
    with pytest.raises(InputError) as error:
        compare_versions("b", {**here, "jax": "0.11.0"}, here)
    assert "node b has jax 0.11.0, but the sweep was started with jax 0.10.2" in str(error.value)


def test_a_packed_folder_comes_back_whole_and_without_locks(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x.npz").write_bytes(bytes(range(256)))
    (tmp_path / "a/.lock").touch()
    (tmp_path / "c").mkdir()
    unpack_folder(pack_folder(tmp_path / "a"), tmp_path / "c")
    assert [path.name for path in sorted((tmp_path / "c").rglob("*"))] == ["b", "x.npz"]
    assert (tmp_path / "c/b/x.npz").read_bytes() == bytes(range(256))


def _make_running(run: Path, source: SweepSource, sweep: Sweep) -> sweep_run._Running:
    _plan_without_running(sweep, source, run)
    folder = Run(run)
    groups = [sweep_run.read_group(fields) for fields in sweep_run.read_groups(folder)]
    (run / "groups").mkdir()
    return sweep_run._Running(folder, sweep, source, groups, LocalWorker(1), None)


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "no folder", "archive"])
def test_a_group_that_cannot_be_placed_fails_alone_and_leaves_nothing(place, tmp_path, kind):
    """A node returns its folder, and something is in the way, or the archive has a bad link."""
    sweep, source = read_sweep(place / "spec.py")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained/x").write_text("1")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/mine").write_text("2")
    running = _make_running(tmp_path / "run", source, sweep)
    group = running.groups[0]
    target = tmp_path / "run/groups" / group.name
    if kind == "file":
        target.write_text("in the way")
    elif kind == "no folder":
        target.parent.rmdir()
    elif kind == "archive":
        (tmp_path / "trained/y").symlink_to("/")
    else:
        target.symlink_to(tmp_path / ("theirs" if kind == "link" else "missing"))
    packed = pack_folder(tmp_path / "trained")
    outcome = running._keep(group, Outcome(group.name, "node7", packed))
    wanted = {"no folder": "No such file", "archive": "AbsoluteLinkError: "}
    expected = wanted.get(kind, f"{target}: is a file or a link")
    assert outcome.error is not None and outcome.error.startswith(expected)
    assert running.failed == {group.name: outcome.error}
    assert (tmp_path / "theirs/mine").read_text() == "2"
    if kind != "no folder":
        log = target.with_name(f"{group.name}.log")
        assert "failed on node7" in log.read_text()
        assert {entry.name for entry in target.parent.iterdir()} - {target.name} == {log.name}


def test_a_placed_folder_replaces_an_unfinished_run(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    sweep_run._place_folder(pack_folder(tmp_path / "new"), tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_leftovers_of_killed_sweeps_are_removed_unless_they_are_locked(tmp_path):
    file, locked, folder = (tmp_path / hide_name() for _ in range(3))
    file.touch()
    folder.mkdir()
    (folder / "x").touch()
    link = tmp_path / hide_name()
    link.symlink_to(tmp_path)
    with lock_file(locked):
        sweep_run._remove_partial(tmp_path)
        assert set(tmp_path.iterdir()) == {locked, link}


def test_the_live_table_shows_where_a_group_is():
    from rich.console import Console

    table = LiveSweep(["a-bc", "b-bc"], ["b-bc"])
    table.update(Progress("a-bc", "node7", "CPU", "training bc", 40, 100, 61.0, -123.4))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    for part in ("1 finished, 1 running", "node7", "CPU", "40 of 100", "0:01:01", "-123.4"):
        assert part in text
    table.update(Outcome("a-bc", "node7", error="no memory"))
    assert table.describe() == "1 finished, 1 failed"
