"""What a third round of attacks found, as a test each: tables, names, links, and odd files."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gelato
from gelato.cli import main
from gelato.cli.output import print_fields, print_table
from gelato.errors import InputError, require_positive
from gelato.model.training import load_model
from gelato.policy.policy import load_policies
from gelato.progress import note
from gelato.report.page.write import _check_records
from gelato.report.policy_table import _write_latex
from gelato.runs.files import read_json
from gelato.runs.folder import Run, open_run
from gelato.runs.records import merge_records, read_records
from gelato.selection.run import estimate_run
from tests.safety.test_data import make_log
from tests.safety.test_second_round import OLD_RUN

NAMES = "observations,actions,rewards"


@pytest.fixture
def old_run(tmp_path: Path, store: Path) -> Path:
    return Path(shutil.copytree(OLD_RUN, tmp_path / "old"))


# Tables.
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{NAMES},{'x' * 200_000}\n1,2,3,4\n".encode(), "field larger than field limit"),
        (f"{NAMES}\r1,2,3\r".encode(), "not a readable CSV file"),
        (b"0" * 2**21, "the first line, with the column names, is longer than 1 MiB"),
        (gzip.compress(b"0" * 2**27), "longer than 1 MiB"),
    ],
)
def test_a_hostile_csv_header_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / ("log.csv.gz" if content.startswith(b"\x1f\x8b") else "log.csv")
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        gelato.load(f"csv:{path}")


def test_a_separator_that_is_not_ascii_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"{NAMES}\n1,2,3\n")
    with pytest.raises(InputError, match="must be one ASCII character"):
        gelato.load(f"csv:{tmp_path / 'log.csv'},separator=é")


def write_table(path: Path, rows: int = 20, **columns: object) -> Path:
    numbers = np.linspace(0, 0.5, rows)
    fields = {"observations": numbers, "actions": numbers, "rewards": numbers}
    pq.write_table(pa.table({**fields, **columns}), path)
    return path


@pytest.mark.parametrize("texts", [[None] * 20, ["a", None] * 10])
def test_episodes_without_a_name_are_one_line(tmp_path: Path, texts: list[str | None]) -> None:
    """A row without a value became part of the first episode."""
    path = write_table(tmp_path / "log.parquet", episode=pa.array(texts, pa.string()))
    with pytest.raises(InputError, match="episode has no value in row"):
        gelato.load(f"parquet:{path}")


@pytest.mark.slow
def test_a_text_that_is_stored_once_is_not_repeated_in_memory(tmp_path: Path) -> None:
    """This file of 2 MB needed 2 GB."""
    names = pa.array(["x" * 2_000_000] * 1_000)
    path = write_table(tmp_path / "log.parquet", rows=1_000, episode=names)
    assert path.stat().st_size < 10e6
    script = (
        "import resource, gelato\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1_500_000_000,) * 2)\n"
        f"print(len(gelato.load('parquet:{path}').transitions))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1000\n", done.stderr


def test_a_damaged_parquet_file_is_one_line_and_ends_no_process(tmp_path: Path) -> None:
    """pyarrow ended the process where a damaged footer was asked for its columns."""
    path = write_table(tmp_path / "log.parquet", timeouts=np.arange(20) % 5 == 4)
    whole, refused = path.read_bytes(), 0
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    # The schema of Arrow is long, and pyarrow reads it first.
    for place in range(footer, footer + 500):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            gelato.load(f"parquet:{path}")
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


# Numbers.
def test_a_number_of_5000_digits_is_one_line(tmp_path: Path) -> None:
    digits = "9" * 5_000
    columns = {f"obs_{digits}": np.zeros((5, 2)), "actions": np.zeros((5, 1))}
    np.savez(tmp_path / "log.npz", **columns, rewards=np.zeros(5))
    with pytest.raises(InputError, match="no field observations"):
        gelato.load(f"file:{tmp_path / 'log.npz'}")
    with pytest.raises(InputError, match="must be the number of actions"):
        gelato.load(f"file:{tmp_path / 'log.npz'},discrete={digits}")
    for option in ("transitions", "seed", "history"):
        with pytest.raises(InputError, match="must be a whole number"):
            gelato.load(f"four-rooms,{option}={digits}")


@pytest.mark.parametrize(("low", "high"), [("-inf", "inf"), ("-1e39", "1"), ("nan", "1")])
def test_an_endless_range_of_actions_is_one_line(tmp_path: Path, low: str, high: str) -> None:
    with pytest.raises(InputError, match="must be finite"):
        gelato.load(f"file:{make_log(tmp_path / 'log.npz')},low={low},high={high}")


def test_a_setting_that_is_no_number_is_one_line() -> None:
    class Settings:
        hidden = "((("

    with pytest.raises(InputError, match=r"hidden=\(\(\("):
        require_positive(Settings(), "hidden")


def test_huge_and_infinite_keys_of_records_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(f'[{{"seed": {10**400}}}, {{"seed": 1e999}}, {{"seed": "a"}}]')
    merge_records(path, [{"seed": 3}], keys=("seed",))
    assert [record["seed"] for record in read_records(path)] == [3, 10**400, float("inf"), "a"]


# Memory and time.
def test_many_small_columns_cost_no_more_than_the_file(tmp_path: Path) -> None:
    """A file of 129 KB with 300 columns that were never written cost 4.7 GB."""
    path = tmp_path / "log.h5"
    with h5py.File(path, "w") as file:
        for number in range(300):
            file.create_dataset(f"obs_{number}", (1_000, 4_000), "f4", chunks=(1_000, 4_000))
        file["actions"], file["rewards"] = np.zeros((1_000, 1)), np.zeros(1_000)
    with pytest.raises(InputError, match=r"log.h5 claims .* MB, but the file stores"):
        gelato.load(f"file:{path}")


@pytest.mark.parametrize("option", ["mapping", "reward"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_an_option_that_names_a_device_is_one_line(tmp_path: Path, option: str, kind: str) -> None:
    """A foreign run may name it in the reference to its data."""
    path = tmp_path / "pipe" if kind == "pipe" else Path(kind)
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InputError, match="is not a plain file"):
        gelato.load(f"file:{make_log(tmp_path / 'log.npz')},{option}={path}")


def test_json_and_logs_of_any_size_cost_nothing(old_run: Path, tmp_path: Path) -> None:
    """Files with holes claim any size."""
    for name in ("selection.json", "clones/metrics.csv"):
        with (old_run / name).open("ab") as file:
            file.truncate(2**40)
    with pytest.raises(InputError, match="too large for a JSON file"):
        read_json(old_run / "selection.json")
    with pytest.raises(InputError, match=r"metrics\.csv needs .* GB of memory"):
        _ = Run(old_run / "clones").metrics


# Files outside of a run.
def test_a_selection_writes_nothing_through_a_link(old_run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (old_run / "selection").symlink_to(outside)
    with pytest.raises(InputError, match="is a symbolic link"):
        estimate_run(old_run)
    assert not list(outside.iterdir())


def test_the_records_of_a_report_replace_no_other_file(old_run: Path, capsys) -> None:
    """The records have the page's name with another ending, which the user has not named."""
    before = (old_run / "results.json").read_bytes()
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(old_run), "--out", str(old_run / "results.html")])
    assert "which is not from a report" in capsys.readouterr().err
    assert (old_run / "results.json").read_bytes() == before
    (old_run / "report.json").write_text('{"verdict": {}, "reproduce": {}}')
    _check_records(old_run / "report.json")


def test_the_advice_to_run_a_command_runs_no_other_command(old_run: Path, tmp_path: Path) -> None:
    """Somebody may copy the line into a shell."""
    code = tmp_path / "x'; touch proof; '.py"
    code.write_text("def reward(states, actions, next_states): return states[:, 0]")
    log = make_log(tmp_path / "log.npz")
    from gelato.data.reference import load_stored

    with pytest.raises(InputError, match="have not run before") as raised:
        load_stored(f"file:{log},reward={code}")
    command = str(raised.value).partition("run once: gelato data info ")[2]
    shown = subprocess.run(f"echo {command}", shell=True, cwd=tmp_path, capture_output=True)
    assert shown.stdout.decode().strip() == f"file:{log},rewards=none,reward={code}"
    assert not (tmp_path / "proof").exists()


# Arrays of other types.
def change_description(text: np.ndarray, name: str, value: object) -> np.ndarray:
    described = json.loads(str(text))
    place = described[0]["stages"][0] if name == "outputs" else described[0]
    place[name] = value
    return np.array(json.dumps(described))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("['0.0.weight0']", lambda array: array.astype("<U5")),
        ("['0.0.weight0']", lambda array: array.astype(complex)),
        ("['0.mean']", lambda array: array.astype("S8")),
        ("['description']", lambda text: change_description(text, "outputs", 4.0)),
        ("['description']", lambda text: change_description(text, "space", {"n": "4"})),
        ("['description']", lambda text: change_description(text, "space", {"n": 4.0})),
        (
            "['description']",
            lambda text: change_description(text, "space", {"low": ["a"] * 4, "high": ["b"] * 4}),
        ),
    ],
)
def test_a_policy_of_other_types_is_one_line(
    tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    path = Path(shutil.copy(OLD_RUN / "clones" / "last.npz", tmp_path))
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez(path, **{**arrays, name: change(arrays[name])})
    with pytest.raises(InputError, match="does not describe policies"):
        load_policies(path)


@pytest.mark.parametrize("dtype", ["<U6", "M8[s]", "c8", "i8"])
def test_a_model_of_other_types_is_one_line(old_run: Path, dtype: str) -> None:
    path = old_run / "model" / "model.npz"
    with np.load(path) as saved:
        arrays = dict(saved)
    name = max(arrays, key=lambda name: arrays[name].size)
    np.savez(path, **{**arrays, name: np.zeros(arrays[name].shape, dtype)})
    with pytest.raises(InputError, match=r"model.npz: .* holds .* instead of float32"):
        load_model(old_run)


@pytest.mark.parametrize("text", ["step,seed\n5,0\n", "step,method,seed,return\n5,bc,0,abc\n"])
def test_hostile_metrics_in_a_figure_are_one_line(tmp_path: Path, capsys, text: str) -> None:
    with open_run(tmp_path / "run", "policies", methods=[{"name": "bc"}], seeds=[0]) as run:
        (run.folder / "policies" / "bc").mkdir(parents=True)
    (tmp_path / "run" / "policies" / "bc" / "metrics.csv").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["figure", "curves", str(tmp_path / "run"), "--out", str(tmp_path / "x.png")])
    assert "metrics.csv: damaged" in capsys.readouterr().err


# Names.
def test_no_output_obeys_the_terminal_commands_of_a_name(capsys) -> None:
    name = "a\x1b[2Jb\u202ec\ud800"
    note(name)
    print_fields(name, {name: name})
    print_table([name, "seed"], [[name, 1]])
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown and "\u202e" not in shown
    assert shown.count(r"a\x1b[2Jb\u202ec\ud800") >= 4


def test_a_name_is_no_command_of_latex() -> None:
    assert "\\input" not in _write_latex(["method"], [[r"\input{/etc/passwd}"]])


@pytest.mark.parametrize("name", ["$\\frac{$", "price $", "$a$ and $"])
def test_a_name_with_dollar_signs_is_drawn(tmp_path: Path, name: str) -> None:
    from gelato.report.style import save

    figure = matplotlib.figure.Figure()
    axes = figure.subplots()
    axes.plot([1, 2], label=name)
    axes.set(title=name, xlabel="$z_1$")
    axes.legend()
    save(figure, tmp_path / "x.png")
    assert axes.xaxis.label.get_parse_math()
    assert (tmp_path / "x.png").exists()


@pytest.mark.parametrize("name", ["a..b", "json.foo.bar", "{folder}/a.b.py"])
def test_an_odd_name_of_a_plugin_is_one_line(
    tmp_path: Path, monkeypatch, capsys, name: str
) -> None:
    (tmp_path / "a.b.py").write_text("")
    monkeypatch.setenv("GELATO_PLUGINS", name.format(folder=tmp_path))
    with pytest.raises(SystemExit, match="2"):
        main(["data", "list"])
    assert "GELATO_PLUGINS: " in capsys.readouterr().err


def test_a_log_with_greek_letters_is_read_in_every_locale(tmp_path: Path) -> None:
    with open_run(tmp_path, "agents", methods=["gelato λ=3"], seeds=[0]) as run:
        run.log([{"step": 1, "method": "gelato λ=3", "loss": "1"}])
    script = (
        "from gelato.runs.folder import Run; from pathlib import Path\n"
        f"run = Run(Path('{tmp_path}')); run.log([{{'step': 2, 'method': '\\u03bb', 'loss': 2}}])\n"
        "run.forget_metrics_after(2); print(ascii([row['method'] for row in run.metrics]))"
    )
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['gelato \\u03bb=3', '\\u03bb']\n", done.stderr
