"""Regression tests for every defect that attacks on run folders found."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gelato
from gelato.cli import main
from gelato.errors import InputError
from gelato.model.training import load_model
from gelato.policy.policy import load_policies
from gelato.runs.files import write_atomically
from gelato.runs.folder import Run, open_run
from gelato.training.method import check_penalty_weight

OLD_RUN = Path(__file__).parents[1] / "golden" / "run-v1"


def make_run(folder: Path) -> Run:
    """Write every kind of file that a training writes."""
    with open_run(folder, "agents", methods=["bc"], seeds=[0]) as run:
        run.record("calibration", {"bc": {"level": 0.5, "unit": 1.25}})
        run.log([{"step": 1, "seed": 0, "return": "12.5"}])
        run.save_checkpoint(1, {"weights": np.arange(4.0)})
        run.log([{"step": 2, "seed": 0, "return": "17.5"}])
        run.close_log()
        run.save("last", {"weights": np.arange(4.0)})
        run.write_records([{"method": "bc", "seed": 0, "return": 17.5}])
    return run


def read_run(run: Run) -> object:
    """Read everything that `make_run` wrote."""
    like = {"weights": np.zeros(4)}
    return (
        run.description,
        run.read_json("calibration"),
        run.metrics,
        run.read_records(),
        run.load("last", like)["weights"].tolist(),
    )


# 2. Two simultaneous refusals delete a user's file.
def test_simultaneous_refusals_delete_no_file(tmp_path: Path) -> None:
    def refuse(_: int) -> None:
        with contextlib.suppress(InputError), Run(tmp_path).lock():
            Run(tmp_path).begin("model")

    user_file = tmp_path / "aaa.tex"
    user_file.write_text("a thesis")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(refuse, range(400)))
    assert user_file.read_text() == "a thesis"


def test_a_refusal_without_its_lock_deletes_no_file(tmp_path: Path) -> None:
    (tmp_path / "aaa.tex").write_text("a thesis")
    run = Run(tmp_path)
    with pytest.raises(InputError, match="contains other files"), run.lock():
        (tmp_path / ".lock").unlink()  # as another refusal does
        run.begin("model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["aaa.tex"]


def test_a_process_with_the_lock_of_a_removed_file_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.lock():
        (tmp_path / ".lock").unlink()
        with run.lock(), pytest.raises(InputError, match="in use"), run.lock():
            raise AssertionError


# 3. A foreign run folder can truncate any file.
def test_a_linked_lock_truncates_nothing(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("precious")
    make_run(folder)
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(InputError, match=r"\.lock: is a symbolic link"), Run(folder).lock():
        raise AssertionError
    (folder / ".lock").unlink()
    os.link(victim, folder / ".lock")
    with Run(folder).lock():
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["checkpoints", "metrics.csv", "policies", "results.json"])
def test_links_inside_a_run_lead_to_no_other_file(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "000000000009.npz").write_text("precious")
    with open_run(folder, "agents", seeds=[0]):
        pass
    (folder / name).symlink_to(outside if "." not in name else outside / "000000000009.npz")
    with pytest.raises(InputError, match="is a symbolic link"):
        open_run(folder, "agents", seeds=[0]).__enter__()
    assert (outside / "000000000009.npz").read_text() == "precious"


def test_a_log_that_is_another_files_second_name_is_not_appended_to(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim.csv", make_run(tmp_path / "run")
    (run.folder / "metrics.csv").rename(victim)
    os.link(victim, run.folder / "metrics.csv")
    before = victim.read_text()
    with run.lock():
        run.forget_metrics_after(2)
        run.log([{"step": 3, "seed": 0, "return": "1"}])
    assert victim.read_text() == before
    assert len(run.metrics) == 3


def test_temporary_files_have_names_that_nobody_can_guess(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".film-{os.getpid()}.gif").symlink_to(victim)
    names = []
    for _ in range(2):
        with write_atomically(tmp_path / "film.gif") as partial:
            names.append(partial.name)
            partial.write_text("new")
    assert victim.read_text() == "precious"
    assert names[0] != names[1] and all(re.search(r"[0-9a-f]{16}", name) for name in names)


# 4. A run killed while its first description is written can never be resumed.
@pytest.mark.parametrize("event", ["open", "os.rename", "os.mkdir", "fcntl.flock"])
def test_a_run_killed_at_its_first_description_can_be_resumed(tmp_path: Path, event: str) -> None:
    script = """
import os, signal, sys
from gelato.runs.folder import open_run
folder, event, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
def kill(name, arguments):
    global left
    path = str(arguments[0]) if arguments else ""
    if name == event and (folder in path or not path.startswith("/")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
with open_run(folder, "model", seeds=[0]) as run:
    pass
"""
    # One process imports, and a fork of it is killed at every event of this kind.
    driver = f"""
import os, sys
import gelato.runs.folder
script = {script!r}
for count in range(40):
    child = os.fork()
    if not child:
        sys.argv = ["", sys.argv[1] + f"/{{count}}", sys.argv[2], str(count)]
        exec(script, {{"__name__": "__main__"}})
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(count)
"""
    command = [sys.executable, "-c", driver, str(tmp_path), event]
    kills = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kills >= (1 if event == "os.mkdir" else 2)
    for folder in tmp_path.iterdir():
        with open_run(folder, "model", seeds=[0]) as run:
            assert run.description["kind"] == "model"
        assert {entry.name for entry in folder.iterdir()} == {
            ".lock",
            "manifest.json",
            "run.json",
        }


def test_leftovers_of_the_dead_are_removed_and_work_of_the_living_is_kept(tmp_path: Path) -> None:
    dead, mine = tmp_path / ".gelato-partial-0123456789abcdef.npz", tmp_path / ".partial-mine"
    dead.write_text("half")
    mine.write_text("a user's file")
    with write_atomically(tmp_path / "a.txt") as living:
        assert not dead.exists()
        with write_atomically(tmp_path / "b.txt") as other:
            other.write_text("b")
        living.write_text("a")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".partial-mine",
        "a.txt",
        "b.txt",
    ]


@pytest.mark.slow
def test_checkpoints_of_a_run_killed_at_its_very_end_are_removed(
    tmp_path: Path, shared_store: Path
) -> None:
    command = ["model", "fit", "four-rooms,transitions=200", "--run", str(tmp_path / "run")]
    command += ["--updates", "2", "--variance-updates", "2", "--batch-size", "8"]
    main(command)
    with open_run(tmp_path / "run", "model", **_settings(tmp_path / "run")) as run:
        run.save_checkpoint(2, {"weights": np.zeros(2)})  # as if it had not been removed yet
    main(command)
    assert run.checkpoints == []


# 5. Text files have no checksum, and a log overrides a result.
def test_a_changed_digit_is_found_in_every_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = read_run(run)
    files = [path for path in run.folder.iterdir() if path.is_file() and path.name != ".lock"]
    names = {path.name for path in files}
    assert {"calibration.json", "manifest.json", "metrics.csv", "results.json"} <= names
    found = 0
    for path in files:
        whole = path.read_bytes()
        for place in [match.start() for match in re.finditer(rb"\d", whole)]:
            digit = b"%d" % ((whole[place] - ord("0") + 1) % 10)
            path.write_bytes(whole[:place] + digit + whole[place + 1 :])
            with pytest.raises(InputError, match=re.escape(path.name)):
                read_run(run)
            found += 1
        path.write_bytes(whole)
    assert found > 100
    assert read_run(run) == before


def test_a_file_of_another_run_is_found(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    other.write_records([{"method": "bc", "seed": 0, "return": 99.0}])
    shutil.copy(other.folder / "results.json", run.folder)
    with pytest.raises(InputError, match=r"results.json: damaged"):
        run.read_records()


def test_a_log_does_not_override_a_result(tmp_path: Path, shared_store: Path, capsys) -> None:
    command = ["train", "four-rooms,transitions=200", "--method", "bc", "--updates", "20"]
    command += ["--run", str(tmp_path / "run"), "--episodes", "1"]
    main(command)
    shown = capsys.readouterr().out
    results = (tmp_path / "run" / "results.json").read_bytes()
    log = tmp_path / "run" / "policies" / "bc" / "metrics.csv"
    log.write_text(re.sub(r"\d", "7", log.read_text()))
    main(command)
    assert capsys.readouterr().out == shown
    assert (tmp_path / "run" / "results.json").read_bytes() == results
    with pytest.raises(InputError, match=r"metrics.csv: damaged"):
        _ = Run(log.parent).metrics


def test_a_kill_between_the_manifest_and_its_file_is_no_damage(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run.folder / "calibration.json"
    contents = []
    for level in (1, 2, 3):
        contents.append(path.read_bytes())
        run.write_json("calibration", {"bc": {"level": level}})
    # The manifest knows the content before the last one, which a killed process leaves.
    path.write_bytes(contents[2])
    assert run.read_json("calibration") == {"bc": {"level": 2}}
    run.write_json("calibration", {"bc": {"level": 4}})
    path.write_bytes(contents[2])
    assert run.read_json("calibration") == {"bc": {"level": 2}}
    path.write_bytes(contents[1])
    with pytest.raises(InputError, match="damaged"):
        run.read_json("calibration")


def test_a_run_of_version_0_1_has_no_manifest_and_is_read(tmp_path: Path, store: Path) -> None:
    folder = Path(shutil.copytree(OLD_RUN, tmp_path / "old"))
    assert len(gelato.trained_policies(folder)) == 8
    with open_run(folder / "clones", "agents", **_settings(folder / "clones")) as run:
        assert run.resumed
        run.write_json("note", {"is": "new"})
    assert not (folder / "clones" / "manifest.json").exists()


def _settings(folder: Path) -> dict:
    described = json.loads((folder / "run.json").read_text())
    return {name: described[name] for name in described if name not in ("format", "kind")}


# 8. Locks reach other containers, where process ids mean nothing.
def test_a_lock_holds_across_process_namespaces(tmp_path: Path) -> None:
    namespace = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("this machine does not let us make a process namespace")
    script = (
        "import sys; from gelato.runs.folder import Run\n"
        "with Run(__import__('pathlib').Path(sys.argv[1])).lock(): pass"
    )
    command = [*namespace, sys.executable, "-c", script, str(tmp_path / "run")]
    with Run(tmp_path / "run").lock():
        refused = subprocess.run(command, capture_output=True, text=True)
    assert "in use by another process" in refused.stderr
    assert subprocess.run(command, capture_output=True).returncode == 0


# 9. Damage in a zip directory is a traceback and blocks the fallback.
def test_every_bit_of_a_checkpoint_falls_back_or_is_harmless(tmp_path: Path, capsys) -> None:
    like = {"weights": np.zeros(4)}
    # Without a manifest, as in version 0.1, the file itself must be read with care.
    run = Run(tmp_path)
    run.save_checkpoint(1, {"weights": np.arange(4.0)})
    path = tmp_path / "checkpoints" / "000000000001.npz"
    whole = path.read_bytes()
    fallbacks = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found = run.load_checkpoint(1, like)
        fallbacks += found is None
        assert found is None or np.array_equal(found["weights"], np.arange(4.0))
    assert fallbacks > 0.5 * 8 * len(whole)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert run.load_checkpoint(1, like) is None
    capsys.readouterr()


# 10. Other tracebacks.
def test_an_unknown_setting_of_a_model_is_one_line(tmp_path: Path, store: Path) -> None:
    folder = Path(shutil.copytree(OLD_RUN, tmp_path / "old"))
    path = folder / "model" / "run.json"
    described = json.loads(path.read_text())
    described["config"]["colour"] = "blue"
    path.write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"model/run.json: the settings .* 'colour'"):
        load_model(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"step,loss\n1,0.5\n\xff\xfe,2\n", "metrics.csv: damaged .*codec"),
        (b"phase,loss\nmeans,0.5\n", "metrics.csv: damaged .no column 'step'"),
        (b"step,loss\none,0.5\n", "metrics.csv: damaged .*'one'"),
        (b"step,loss\n1\n", "metrics.csv: damaged .*too few values"),
        (b'step,loss\n1,"0.5\n', "metrics.csv: damaged"),
    ],
)
def test_a_damaged_log_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Run(tmp_path).forget_metrics_after(5)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"", b"[1]", b'{"format": 1'])
def test_a_damaged_description_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.json: "):
        _ = Run(tmp_path).description


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("['0.mean']", np.zeros(3)),
        ("['0.0.weight0']", np.zeros((2, 2))),
        ("['0.0.weight0']", np.zeros(5)),
        ("['description']", np.array("[{}]")),
        ("['description']", np.array("[" * 10_000)),
        ("['description']", np.array('[{"stages": [], "space": {"n": 3}}]')),
    ],
)
def test_a_damaged_policy_is_one_line(tmp_path: Path, name: str, array: np.ndarray) -> None:
    path = Path(shutil.copy(OLD_RUN / "clones" / "last.npz", tmp_path))
    with np.load(path) as saved:
        arrays = dict(saved)
    assert name in arrays
    np.savez(path, **{**arrays, name: array})
    with pytest.raises(InputError, match=r"last.npz: does not describe policies"):
        load_policies(path)


# 12. λ, threads, and power failures.
@pytest.mark.parametrize("weight", [1e38, 2.0**25])
def test_a_huge_penalty_weight_is_refused_by_its_name(weight: float) -> None:
    with pytest.raises(InputError, match=r"penalty_weight=.* drops the reward"):
        check_penalty_weight(weight)


def record_order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the order of the real flushes and renames."""
    order: list[str] = []
    flush, rename = os.fsync, os.rename

    def watch_flush(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        size = os.fstat(descriptor).st_size if kind == "file" else 0
        order.append(f"flush {kind} {size}" if size else f"flush {kind}")
        flush(descriptor)

    def watch_rename(source: str, target: str) -> None:
        order.append(f"rename {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch_flush)
    monkeypatch.setattr(os, "replace", watch_rename)
    return order


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    order = record_order(monkeypatch)
    with write_atomically(tmp_path / "a.npz") as partial:
        partial.write_text("content")
    assert order == ["flush file 7", "rename a.npz", "flush folder"]


def test_files_of_a_run_and_their_manifest_are_on_the_disk_before_their_names(
    tmp_path: Path, monkeypatch
) -> None:
    with open_run(tmp_path / "run", "model") as run:
        order = record_order(monkeypatch)
        with run.write_together("a.json", "b.json") as partials:
            for partial in partials:
                partial.write_text("{}")
    size = (tmp_path / "run" / "manifest.json").stat().st_size
    manifest = [f"flush file {size}", "rename manifest.json", "flush folder"]
    files = ["rename a.json", "rename b.json", "flush folder"]
    assert order == ["flush file 2", "flush file 2", *manifest, *files]


def test_a_second_thread_is_refused_too(tmp_path: Path) -> None:
    refused: list[str] = []

    def open_again() -> None:
        try:
            with Run(tmp_path).lock():
                pass
        except InputError as error:
            refused.append(str(error))

    with Run(tmp_path).lock():
        thread = threading.Thread(target=open_again)
        thread.start()
        thread.join()
    assert "in use" in refused[0]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    from gelato.runs import files

    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mounts"
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(f"1 1 {number} / /mnt rw - fuse.sshfs host:/ rw\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    monkeypatch.setattr(files, "_warned", set())
    with Run(tmp_path / "run").lock():
        pass
    assert "locks may not work on a file system of type fuse.sshfs" in capsys.readouterr().err
    leftover = tmp_path / "run" / ".gelato-partial-0123456789abcdef.npz"
    leftover.write_text("perhaps the work of another machine")
    with Run(tmp_path / "run").lock():
        assert leftover.exists()


def test_a_lock_of_another_process_keeps_its_partial_file(tmp_path: Path) -> None:
    partial = tmp_path / ".gelato-partial-0123456789abcdef.npz"
    with partial.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with write_atomically(tmp_path / "a.txt") as mine:
            mine.write_text("a")
        assert partial.exists()
