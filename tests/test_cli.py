import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gelato.cli import main
from gelato.data.named import Named, make_named
from gelato.data.recipes import RECIPES


def run(arguments: str) -> None:
    main(shlex.split(arguments))


def failing(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        run(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("train", "missing reference, --run. See `gelato train --help`"),
        (
            "train x --run r --updatess 3",
            "unknown option --updatess (did you mean --updates?). See `gelato train --help`",
        ),
        ("train x --run r --preset tiny", "--preset: 'tiny' is not one of default, small"),
        ("train x --run r --seeds 1.5", "--seeds: '1.5' is not a whole number"),
        ("train x --run r --state-noise much", "--state-noise: 'much' is not a number"),
        (
            "data mak hopper-medium",
            "unknown option or argument: mak hopper-medium",
        ),
        ("", "no command given; choose one of data, model,"),
    ],
)
def test_what_the_parser_refuses_is_told_in_one_line(arguments, told, capsys):
    line = failing(arguments, capsys)
    assert (
        line.startswith("gelato: ") and line.count("\n") == 1 and told in line and "--help`" in line
    )


def test_list_shows_every_name_and_what_is_made(store, capsys):
    make_named(Named(RECIPES["four-rooms"], 20), workers=1)
    run("data list")
    output = capsys.readouterr().out
    assert all(name in output for name in RECIPES) and "20 (seed 0)" in output


def test_info_prints_one_json_object_and_nothing_else(store, capsys):
    run("data make hopper-medium --transitions 900 --seed 3 --workers 2")
    capsys.readouterr()
    run("data info hopper-medium --json")
    summary = json.loads(capsys.readouterr().out)
    assert (
        summary["transitions"] == 900
        and summary["reference"] == "hopper-medium,transitions=900,seed=3"
    )
    assert summary["terminations"] + summary["truncations"] == summary["episodes"]
    assert summary["normalised_score"] == pytest.approx(
        100 * (summary["return_mean"] + 20.272305) / 3254.572305
    )


def test_info_draws_a_picture_that_is_the_same_each_time(store, tmp_path, capsys):
    make_named(Named(RECIPES["hopper-random"], 200), workers=1)
    for name in ("a.png", "b.png", "c.pdf"):
        run(f"data info hopper-random --plot {tmp_path / name}")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "c.pdf").read_bytes()[:4] == b"%PDF"
    assert len(list(tmp_path.glob("*.p*"))) == 3
    assert "normalised score" in capsys.readouterr().out


def test_making_again_says_it_is_there(store, capsys):
    run("data make four-rooms --transitions 5")
    run("data make four-rooms --transitions 5")
    assert "already exists" in capsys.readouterr().out


def test_import_stores_a_file_for_any_minari_program(store, tmp_path, capsys):
    np.savez(
        tmp_path / "log.npz", obs=np.zeros((4, 2)), actions=np.zeros((4, 1)), rewards=np.zeros(4)
    )
    run(f"data import file:{tmp_path / 'log.npz'} --name mine/log")
    output = capsys.readouterr().out
    assert "minari:mine/log-v0" in output and "skipped" in output
    assert "exists already" in failing(
        f"data import file:{tmp_path / 'log.npz'} --name mine/log-v0", capsys
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("data info hoper-medium", "did you mean hopper-medium?"),
        ("data make nothing", "unknown dataset 'nothing'"),
        (
            "data make four-rooms --transitions 0",
            "transitions=0 must be a whole number of at least 1",
        ),
        ("data make four-rooms --workers 0", "--workers 0: must be at least 1"),
        ("data info d4rl:absent.hdf5", "absent.hdf5: no such file"),
        ("data info four-rooms --plot picture.jpeg", "must end in .png, .pdf or .svg"),
        ("data info four-rooms --plot absent/picture.png", "the folder absent does not exist"),
        ("data import four-rooms --name 'a b'", "is not a Minari id"),
        ("data info file:log.npz,low=nan,high=2", "low=nan must be finite"),
        ("train file:log.npz --transitions 10 --run run", "file:log.npz has a fixed size"),
        (
            "train file:log.npz,environment=Pendulum-v11 --run run",
            "Pendulum-v11: this environment is not installed",
        ),
        ("uncertainty run --penalties", "give at least one penalty"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(store, capsys, arguments, message):
    error = failing(arguments, capsys)
    assert message in error and error.count("\n") == 1
    assert not list(store.glob("**/data"))


def test_bad_flags_exit_with_two(capsys):
    assert "missing reference" in failing("data info", capsys)


def test_help_teaches(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stop:
        run("data info --help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert (
        "hopper-medium,transitions=50000" in shown
        and "--plot PATH" in shown
        and "None" not in shown
    )


COMMANDS = (
    "",
    *(
        "data",
        "data list",
        "data make",
        "data info",
        "data check",
        "data import",
        "model",
        "model fit",
    ),
    *("model check", "uncertainty", "trust", "train", "methods", "settings", "select"),
    *("evaluate", "table", "export", "figure", "report"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_no_internals(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as stop:
        run(f"{command} --help")
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and "usage: gelato" in shown
    for internal in ("None", "(default: )", "--no-json", "\n\n\n"):
        assert internal not in shown


def test_the_version_can_be_asked_for_and_the_help_says_so(capsys):
    run("--version")
    assert re.fullmatch(r"\d+\.\d+.*\n", capsys.readouterr().out)
    with pytest.raises(SystemExit):
        run("--help")
    assert "--version" in capsys.readouterr().out


def test_an_option_that_may_be_left_out_names_what_it_takes(capsys):
    with pytest.raises(SystemExit) as stop:
        run("data make four-rooms --transitions many")
    error = capsys.readouterr().err
    assert (
        stop.value.code == 2
        and "--transitions" in error
        and "many" in error
        and "None" not in error
    )


def gelato(arguments: str, store: Path, **options) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "gelato", *shlex.split(arguments)]
    environment = os.environ | {"MINARI_DATASETS_PATH": str(store), "HF_HUB_OFFLINE": "1"}
    # A test run in a shell's background inherits that Ctrl-C is ignored, and so would the command.
    listening = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
    finally:
        signal.signal(signal.SIGINT, listening)


def test_ctrl_c_in_the_middle_of_make_leaves_nothing_half_written(store):
    process = gelato("data make hopper-medium --workers 2", store, start_new_session=True)
    deadline = time.monotonic() + 60
    while (
        not list(store.glob(".gelato-partial-*/gelato/*/data/main_data.hdf5"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in error and "Traceback" not in error
    assert not list(store.glob("**/data")) and not list(store.glob(".gelato-partial-*"))


def test_ending_the_parent_ends_its_workers_and_leaves_nothing_half_written(store):
    process = gelato("data make hopper-medium --workers 2", store)
    deadline = time.monotonic() + 60
    while (
        not list(store.glob(".gelato-partial-*/gelato/*/data/main_data.hdf5"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    time.sleep(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    assert process.wait(timeout=60) == 143 and children
    deadline = time.monotonic() + 10
    while (
        any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not list(store.glob("**/data")) and not list(store.glob(".gelato-partial-*"))


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(store):
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    process = gelato(
        "data make four-rooms --transitions 2000 --workers 1", store, preexec_fn=small_files
    )
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and "the disk is full" in error and "Traceback" not in error
    assert not list(store.glob("**/data"))


def test_a_remote_dataset_that_cannot_be_reached_fails_in_one_line(store):
    process = gelato("data info minari:D4RL/door/human-v2", store)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2 and error.strip().count("\n") == 0
    assert "minari:D4RL/door/human-v2" in error and "download failed" in error


def test_the_traceback_of_user_code_is_printed_before_the_line(
    capsys, monkeypatch, tmp_path
) -> None:
    (tmp_path / "broken_env.py").write_text(
        "import gymnasium\n"
        "def make_broken_env():\n"
        "    return {}['missing']\n"
        "gymnasium.register('Broken-v0', entry_point=make_broken_env)\n"
    )
    log = tmp_path / "log.npz"
    rows = np.zeros((20, 2), np.float32)
    np.savez(log, observations=rows, actions=rows, rewards=rows[:, 0], terminals=rows[:, 0] > 0)
    monkeypatch.setenv("GELATO_PLUGINS", str(tmp_path / "broken_env.py"))
    reference = f"file:{log},low=-1,high=1,environment=Broken-v0"
    with pytest.raises(SystemExit) as exit_:
        main(["train", reference, "--run", str(tmp_path / "run")])
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert "make_broken_env" in told and "KeyError: 'missing'" in told
    assert "gelato: Broken-v0: the environment is installed" in told.splitlines()[-1]
    assert not (tmp_path / "run").exists()
