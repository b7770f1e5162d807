"""What a second round of attacks found, as a test each: by other means than the first round."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest

import gelato
from gelato.cli import main
from gelato.errors import InputError
from gelato.model.training import load_model
from gelato.runs import manifest
from gelato.runs.files import digest_file
from gelato.runs.folder import Run, open_run
from gelato.runs.loggers import Block, LoggedRun
from gelato.runs.npz import read_arrays
from gelato.runs.outbox import open_loggers
from gelato.runs.records import read_records
from gelato.runs.trackers import TensorBoard
from gelato.selection.run import choose_settings
from gelato.selection.select import find_selected
from gelato.training.policies import trained_policies
from tests.safety.test_data import import_log, make_log

OLD_RUN = Path(__file__).parents[1] / "golden" / "run-v1"


def change(path: Path, *places: str | int, to: object) -> None:
    """Change a value in a JSON file, and the digest in the manifest, as an attacker would."""
    fields = json.loads(path.read_text())
    inner = fields
    for place in places[:-1]:
        inner = inner[place]
    inner[places[-1]] = to
    path.write_text(json.dumps(fields))
    listed = manifest.read_manifest(path.parent)
    if listed is not None:
        listed.files[path.name] = [digest_file(path)]
        manifest.write_manifest(path.parent, listed)


@pytest.fixture
def old_run(tmp_path: Path, store: Path) -> Path:
    return Path(shutil.copytree(OLD_RUN, tmp_path / "old"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", {"reference": 3, "environment": None}),
        ("data", {"environment": None}),
        ("seeds", -1),
        ("seeds", ["0", "\x1b[2J"]),
        ("methods", [None]),
        ("methods", [{"name": "mopo", "penalty_weight": []}]),
        ("methods", [{"name": "mopo", "fit": 3}]),
        ("model", 10**30),
        ("versions", []),
        ("config", [[[]]]),
        ("kind", {}),
    ],
)
def test_a_hostile_description_is_one_line(old_run: Path, field: str, value: object) -> None:
    change(old_run / "run.json", field, to=value)
    for read in (trained_policies, load_model, find_selected):
        with pytest.raises(InputError, match=rf"run\.json: damaged .the field {field} "):
            read(old_run)


def test_methods_that_the_training_does_not_have_are_one_line(old_run: Path) -> None:
    change(old_run / "run.json", "methods", 0, "name", to="other")
    with pytest.raises(InputError, match=r"run\.json: damaged"):
        trained_policies(old_run)


def test_more_labels_than_policies_are_one_line(old_run: Path) -> None:
    change(old_run / "clones" / "run.json", "seeds", to=[0, 1, 2])
    with pytest.raises(InputError, match=r"last.npz: damaged \(2 policies for 3 labels\)"):
        trained_policies(old_run)


@pytest.mark.parametrize("value", [True, [], ["a"], [-1], [[[1]]], "x"])
def test_hostile_settings_of_a_model_are_one_line(old_run: Path, value: object) -> None:
    change(old_run / "model" / "run.json", "config", "hidden", to=value)
    with pytest.raises(InputError):
        load_model(old_run)


@pytest.mark.parametrize("chosen", [None, [], "x", {}, {"method": "bc", "seed": "x", "run": "."}])
def test_a_hostile_selection_is_one_line(old_run: Path, chosen: object) -> None:
    (old_run / "selection.json").write_text(json.dumps({"chosen": chosen}))
    with pytest.raises(InputError, match=r"selection\.json: damaged"):
        find_selected(old_run)


def test_hostile_results_are_one_line(old_run: Path, tmp_path: Path, capsys) -> None:
    path = old_run / "results.json"
    change(path, 0, "steps", to="many")
    with pytest.raises(InputError, match=r"results\.json: damaged"):
        choose_settings(old_run)
    for value in ([], {"a": 1}, [[1]]):
        change(path, 0, "return", to=value)
        with pytest.raises(InputError, match=r"results\.json: not a list of records"):
            read_records(path)


# Links, devices and names.
@pytest.mark.parametrize("name", ["run.json", "results.json", "clones/last.npz"])
def test_a_run_is_not_read_through_links(old_run: Path, tmp_path: Path, name: str) -> None:
    private = tmp_path / "private"
    path = old_run / name
    shutil.move(path, private) if path.exists() else private.write_text("{}")
    path.symlink_to(private)
    with pytest.raises(InputError, match=r"is a symbolic link"):
        trained_policies(old_run)
        _ = Run(old_run).results


def test_a_dataset_is_not_read_through_links(store: Path, tmp_path: Path) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path = store / "mine" / "log-v0" / "data" / "main_data.hdf5"
    shutil.move(path, tmp_path / "private.hdf5")
    path.symlink_to(tmp_path / "private.hdf5")
    with pytest.raises(InputError, match="is a symbolic link"):
        gelato.load("minari:mine/log-v0")


def test_a_file_with_two_fields_of_one_name_is_refused(tmp_path: Path) -> None:
    """Other programs would read the other one."""
    path, rewards = make_log(tmp_path / "log.npz"), BytesIO()
    np.save(rewards, np.full(8, 99.0))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rewards", rewards.getvalue())
    with pytest.raises(InputError, match="two fields rewards"):
        gelato.load(f"file:{path}")


def test_members_that_share_their_bytes_cost_no_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    body = BytesIO()
    np.save(body, np.zeros(4_000_000))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", body.getvalue())
        first = archive.infolist()[0]
        for name in ("b", "c", "d"):
            copy = zipfile.ZipInfo(f"{name}.npy")
            for field in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(copy, field, getattr(first, field))
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True
    with pytest.raises(InputError, match=r"claims 128 MB, but the file stores"):
        read_arrays(path)


def test_groups_nested_a_thousand_times_cost_nothing(store: Path, tmp_path: Path) -> None:
    with h5py.File(make_log(tmp_path / "log.npz").with_suffix(".hdf5"), "w") as file:
        group = file
        for _ in range(1_000):
            group = group.create_group("a")
        group["rewards"] = np.zeros(3)
    with pytest.raises(InputError, match="nested more than 100 levels deep"):
        gelato.load(f"file:{tmp_path / 'log.hdf5'}")


def test_a_repeated_option_is_refused(capsys) -> None:
    """The parser used the last one and said nothing."""
    with pytest.raises(SystemExit, match="2"):
        main(["train", "four-rooms", "--run", "x", "--set", "sac.epoch=1", "--set", "sac.epoch=2"])
    assert "--set is given twice" in capsys.readouterr().err
    assert not os.path.lexists("x")


def test_a_terminal_without_unicode_is_no_traceback(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.npz")
    shown = subprocess.run(
        [sys.executable, "-m", "gelato", "data", "info", f"file:{log}"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "length             4.0 ? 0.0" in shown.stdout


@pytest.mark.parametrize("name", [".x", "..x", "."])
def test_a_relative_name_of_a_plugin_is_one_line(monkeypatch, capsys, name: str) -> None:
    monkeypatch.setenv("GELATO_PLUGINS", name)
    with pytest.raises(SystemExit, match="2"):
        main(["data", "list"])
    assert "is a relative name" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_results_that_are_no_plain_file_are_one_line(tmp_path: Path, capsys, kind: str) -> None:
    path = tmp_path / "results.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(InputError, match=r"is not a plain file"):
        read_records(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset", "\x1b[2J"),
        ("method", None),
        ("seed", "0"),
        ("steps", None),
        ("return", 10**400),
        ("score", "y"),
        ("return", float("inf")),
        ("penalty_weight", "a"),
    ],
)
def test_a_table_of_hostile_results_is_one_line(
    tmp_path: Path, capsys, field: str, value: object
) -> None:
    record = {"dataset": "a", "method": "bc", "seed": 0, "return": 1, "score": 2.0, "steps": 3}
    (tmp_path / "results.json").write_text(json.dumps([{**record, field: value}]))
    with pytest.raises(SystemExit, match="2"):
        main(["table", str(tmp_path / "results.json")])
    assert f"results.json: {field} " in capsys.readouterr().err


def test_a_hostile_series_of_metrics_writes_nothing_elsewhere(tmp_path: Path) -> None:
    """A logger names its files by the methods in metrics.csv, which may be someone else's."""
    pytest.importorskip("tensorboardX")
    folder, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    logger = TensorBoard()
    logger.start(LoggedRun(folder, {}, None))
    for name in ("../../outside/x-0", f"{outside}/x-0", "..", "a/../../../outside/y"):
        logger.log(Block(0, 1, {name: {"loss": 0.5}}))
    logger.close(finished=True)
    assert not list(outside.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "run"]


@pytest.mark.parametrize("state", [3, {}, {"id": "x", "sent": [1], "finished": False}])
def test_a_hostile_state_of_a_logger_is_one_line(tmp_path: Path, state: object) -> None:
    pytest.importorskip("tensorboardX")
    with open_run(tmp_path / "run", "policies", seeds=[0]) as run:
        run.write_json("loggers", {"tensorboard": state})
        with (
            pytest.raises(InputError, match=r"loggers.json: damaged"),
            open_loggers(run, [TensorBoard()], {}),
        ):
            raise AssertionError
