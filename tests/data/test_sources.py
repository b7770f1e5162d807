"""Data sources: the registry, and a source from outside the library."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gelato
from gelato.cli import main
from gelato.data import sources
from gelato.data.sources import Reference, parse_reference
from gelato.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict(sources._SOURCES)
    kept.pop("csv", None)  # Another test file may have imported examples/own_log.py.
    monkeypatch.setattr(sources, "_SOURCES", kept)


def load_text(reference: Reference) -> gelato.Dataset:
    table = np.loadtxt(reference.target)
    last = np.arange(len(table)) % int(reference.options.get("length", "5")) == 4
    return gelato.make_dataset(
        table[:, :2], table[:, 2:3], table[:, 3], timeouts=last, reference=str(reference)
    )


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_source_loads_and_a_run_finds_its_data_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gelato.register_source("text", load_text, options=("length",), is_path=True, help="numbers")
    monkeypatch.chdir(tmp_path)
    np.savetxt("a,b.txt", np.random.default_rng(0).uniform(-1, 1, (50, 4)))
    dataset = gelato.load("text:a,b.txt,length=5")
    assert dataset.reference == f"text:{tmp_path}/a,b.txt,length=5"
    assert len(dataset.transitions.episode_slices) == 10
    again = gelato.load(dataset.reference)
    assert again.transitions.fingerprint() == dataset.transitions.fingerprint()
    with pytest.raises(InputError, match="unknown option 'lenght=5'; did you mean length"):
        gelato.load("text:a.txt,lenght=5")
    with pytest.raises(InputError, match="text:PATH"):
        gelato.load("")


@pytest.mark.usefixtures("clean_registry")
def test_a_source_is_refused_if_it_exists_or_is_incomplete() -> None:
    wrong = {
        "'file' is already registered": ("file", load_text, ()),
        "'named' is already registered": ("named", load_text, ()),
        "at least two characters": ("C", load_text, ()),
        "options must be a tuple of words": ("text", load_text, ("a b",)),
    }
    for message, (name, load, options) in wrong.items():
        with pytest.raises(InputError, match=message):
            gelato.register_source(name, load, options=options)
    gelato.register_source("nothing", lambda _: None)
    with pytest.raises(InputError, match="load returned NoneType, not a Dataset"):
        gelato.load("nothing:x")


@pytest.mark.usefixtures("clean_registry")
def test_an_error_in_a_source_keeps_its_traceback() -> None:
    def fail(reference: Reference) -> gelato.Dataset:
        raise ZeroDivisionError(reference.target)

    gelato.register_source("broken", fail)
    with pytest.raises(ZeroDivisionError, match="here"):
        gelato.load("broken:here")


def test_a_reference_is_written_as_it_was_read() -> None:
    for text in ("hopper-medium,seed=1,transitions=5", "file:a,b.npz,low=-1,high=1", "minari:a-v0"):
        assert str(parse_reference(text)) == text


def test_a_file_without_a_source_and_an_unknown_source_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("medium.npz").touch()
    with pytest.raises(InputError, match=r"medium.npz is a file; write file:medium.npz"):
        gelato.load("medium.npz")
    with pytest.raises(InputError, match=r"unknown data source 'parquet'\. Write a dataset's name"):
        gelato.load("parquet:log")


def test_processes_that_only_step_simulators_import_no_jax() -> None:
    code = "import gelato.data.generate, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("clean_registry")
def test_the_command_line_imports_the_plugins_it_is_told_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GELATO_PLUGINS", str(ROOT / "examples" / "own_log.py"))
    log = tmp_path / "log.csv"
    log.write_text("s0,a0,reward,last\n1,0.5,1,0\n2,0.5,1,1\n3,0.5,1,0\n4,0.5,1,1\n")
    main(["data", "info", f"csv:{log}", "--json"])
    assert '"transitions": 4' in capsys.readouterr().out
    for value, message in (
        ("absent.py", "GELATO_PLUGINS: absent.py: no such file"),
        ("no_such_module", "cannot find the module 'no_such_module'"),
    ):
        monkeypatch.setenv("GELATO_PLUGINS", value)
        with pytest.raises(SystemExit) as stop:
            main(["data", "list"])
        assert stop.value.code == 2 and message in capsys.readouterr().err
    plugin = tmp_path / "bad_plugin.py"
    plugin.write_text("import math\nmath.nothing\n")
    monkeypatch.setenv("GELATO_PLUGINS", str(plugin))
    with pytest.raises(AttributeError, match="nothing"):
        main(["data", "list"])
