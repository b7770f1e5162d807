"""The specification of a sweep: every mistake is one line that names the line and the field."""

from pathlib import Path

import pytest

from gelato.cli import main
from gelato.data.reference import load
from gelato.errors import InputError, UserCodeError
from gelato.sweep import Sweep, read_sweep
from gelato.sweep.groups import SweepGroup, make_methods, make_parts, name_apart
from gelato.sweep.spec import FieldError, SweepSource
from tests.sweep.small import write_log, write_spec

HEAD = "from gelato.sweep import Sweep\n\nsweep = Sweep(\n    datasets=['four-rooms'],\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.py"
    path.write_text(text)
    return path


def test_a_specification_gives_its_sweep_with_tuples_and_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "from gelato.sweep import Sweep\nsweep = Sweep(datasets=['file:a.npz'], seeds=3, "
    found, source = read_sweep(write(tmp_path, f"{text}penalty_weights=[1, 3])"))
    assert found.datasets == (f"file:{tmp_path}/a.npz",)
    assert found.penalty_weights == (1.0, 3.0) and found.methods == ("gelato",)
    assert source.path == tmp_path / "spec.py"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "    methods=[\n        'bc',\n        'cql',\n    ],\n)",
            "line 7, methods: method 'cql'",
        ),
        ("    methods='bc',\n)", "line 5, methods: 'bc' is not a list; write ['bc']"),
        ("    methods=['bc', 'bc'],\n)", "line 5, methods: 'bc' is given twice"),
        ("    penalty_weights=[1, -3],\n)", "line 5, penalty_weights: penalty_weight=-3"),
        ("    penalty_weights=['auto'],\n)", "line 5, penalty_weights: 'auto' is not a number"),
        ("    real_fractions=[2],\n)", "line 5, real_fractions: 2.0 must lie between 0 and 1"),
        ("    seeds=0,\n)", "line 5, seeds: seeds=0"),
        ("    seeds='3',\n)", "line 5, seeds: '3' is not a whole number"),
        ("    seeds_per_group=0,\n)", "line 5, seeds_per_group: 0 must be at least 1"),
        ("    preset='large',\n)", "line 5, preset: 'large' is not one of default, small"),
        ("    updates=0,\n)", "line 5, updates: 0 must be at least 1"),
        ("    seedz=3,\n)", "line 5, seedz: a sweep has no such field; choose among datasets, "),
    ],
)
def test_a_mistake_names_its_line_and_field(tmp_path, lines, problem):
    with pytest.raises(InputError) as error:
        read_sweep(write(tmp_path, HEAD + lines))
    assert str(error.value).startswith(f"{tmp_path}/spec.py, {problem}")
    assert "\n" not in str(error.value)


def test_other_mistakes_in_the_file_name_their_line(tmp_path):
    for text, problem in (
        ("sweep = Sweep(\n", "spec.py, line 1: "),
        ("x = 1\n", "spec.py: `sweep` is not defined"),
        ("sweep = 3\n", "spec.py: `sweep` is 3"),
        ("from gelato.sweep import Sweep\nsweep = Sweep(datasets=[])", "line 2, datasets: give"),
        ("from gelato.sweep import Sweep\nsweep = Sweep(['x,seeed=1'])", "line 2: TypeError"),
    ):
        with pytest.raises(InputError) as error:
            read_sweep(write(tmp_path, text))
        assert problem in str(error.value), text
    with pytest.raises(UserCodeError, match=r"spec.py, line 2: ZeroDivisionError"):
        read_sweep(write(tmp_path, "x = 1\nx / 0\n"))
    with pytest.raises(InputError, match="no such file"):
        read_sweep(tmp_path / "missing.py")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--method", "cql"], "give a specification, or --dataset REF"),
        (["--dataset", "four-rooms", "--method", "cql"], "--method: method 'cql' is not one of"),
        (["--dataset", "four-rooms", "--cores", "0"], "--cores 0: must be at least 1"),
        (["--dataset", "four-rooms", "--gpus", "1"], "--gpus needs a Ray cluster; add --address"),
        (
            ["--dataset", "four-rooms", "--address", "auto", "--gpus", "1.5"],
            "--gpus 1.5: must be a whole number, or a fraction below 1",
        ),
        (["spec.py", "--seeds", "2"], "give either spec.py or options for the sweep, not both"),
    ],
)
def test_a_mistake_in_the_options_names_the_option(tmp_path, capsys, options, problem):
    with pytest.raises(SystemExit) as end:
        main(["sweep", *options, "--run", str(tmp_path / "run")])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"gelato: {problem}")
    assert not (tmp_path / "run").exists()


def test_groups_split_the_seeds_and_have_names_of_their_own():
    sweep = Sweep(datasets=["four-rooms"], seeds=5, first_seed=2, seeds_per_group=2)
    assert sweep.seed_ranges == [(2, 2), (4, 2), (6, 1)]
    group = SweepGroup("a", "four-rooms", "f", ("bc",), 0, 1)
    assert [each.name for each in name_apart([group, group])] == ["a", "a-2"]


def test_a_field_error_survives_the_way_from_a_worker():
    import pickle

    error = pickle.loads(pickle.dumps(FieldError("wrong", "seeds", 3)))
    assert (str(error), error.field, error.entry) == ("wrong", "seeds", 3)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return write_log(tmp_path_factory.mktemp("logs") / "log.npz", 1)


@pytest.mark.parametrize(
    ("fields", "where", "option"),
    [
        (
            {"methods": ["bc"], "real_fractions": [0.5]},
            "line 10, real_fractions: method bc does not mix",
            "--real-fraction: method bc does not mix",
        ),
        (
            {"methods": ["mopo"], "penalty_weights": [3.0], "real_fractions": [0.5, 1.0]},
            "line 11, real_fractions: real_fraction=1.0: must be",
            "--real-fraction: real_fraction=1.0: must be",
        ),
        (
            {"methods": ["bc"], "penalty": "none", "penalty_weights": [3.0]},
            "line 10, penalty: method bc does not use imagined",
            "--penalty: method bc does not use imagined",
        ),
        (
            {"methods": ["mopo"], "penalty": "none", "penalty_weights": [3.0]},
            "line 11, penalty_weights: method mopo has no penalty",
            "--penalty-weight: method mopo has no penalty",
        ),
        (
            {"methods": ["bc"], "settings": ["sac.truncation=2"]},
            "line 9, settings: --set sac.truncation=2: truncation is 2.0; give",
            "--set sac.truncation=2: truncation is 2.0; give",
        ),
    ],
)
def test_a_refused_change_is_blamed_on_its_own_option(tmp_path, log, fields, where, option):
    sweep, source = read_sweep(write_spec(tmp_path / "spec.py", [log], **fields))
    with pytest.raises(FieldError) as error:
        make_methods(sweep, make_parts(sweep, load(sweep.datasets[0])))
    assert str(source.locate(error.value)).startswith(f"{tmp_path}/spec.py, {where}")
    assert str(SweepSource().locate(error.value)).startswith(option)
