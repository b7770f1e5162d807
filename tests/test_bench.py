import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import tables
from experiments.benchmarks import growth
from experiments.docs import render
from experiments.geometry import benchmark, search
from gelato.geometry import Near, Straight

SCRIPT = Path(__file__).parents[1] / "experiments" / "geometry" / "benchmark.py"
FIELDS = {"device", "solver", "dimension", "range", "per_second", "median_error", "p95_error"}


@pytest.fixture
def small(monkeypatch):
    """Run a benchmark that takes seconds: two solvers, a cheap reference, little data."""
    solvers = {"straight": (Straight(), 1), "near": (Near(), 1)}
    monkeypatch.setattr(benchmark, "choose_solvers", lambda _: solvers)
    monkeypatch.setattr(benchmark, "REFERENCE", Near(rounds=2))
    for name, value in {"POINTS": 200, "ROUNDS": 1, "SHORTEST": 1e-3}.items():
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setattr(benchmark.stochman_solver, "is_installed", lambda: False)
    monkeypatch.setattr(search, "QUERIES", 40)
    monkeypatch.setattr(benchmark, "search_records", lambda: search.search_records(rows=500))


def run(arguments):
    benchmark.main(shlex.split(arguments))


def test_bench_prints_one_json_object_and_merges_the_records_that_the_docs_show(
    small, tmp_path, capsys
):
    older = {"device": "cpu", "solver": "near", "dimension": 3, "range": "near", "per_second": 1.0}
    other = older | {"device": "another"}
    path = tmp_path / "geometry.json"
    path.write_text(json.dumps([older, other]))
    run(f"--dimensions 3 --batch 32 --train-steps 2 --json --results {path}")
    output = capsys.readouterr()
    records = json.loads(output.out)["records"]
    assert "stochman is not installed" in output.err
    assert all(set(record) >= FIELDS for record in records)
    assert {(r["solver"], r["range"]) for r in records if r["dimension"] == 3} == {
        (solver, range_) for solver in ("straight", "near") for range_ in ("near", "far")
    }
    assert [r["p95_error"] for r in records if r["solver"].startswith("knn")] == [0, 0]
    merged = json.loads(path.read_text())
    assert len(records) == 6 and len(merged) == 7
    assert older not in merged and other in merged
    assert "| near | near |" in render("<!-- results/geometry.json -->\n<!-- end -->", tmp_path)


def test_bench_prints_a_table_for_people(monkeypatch, capsys):
    near = {
        "device": "cpu",
        "solver": "near",
        "dimension": 35,
        "range": "near",
        "per_second": 4321.0,
        "median_error": 0.00137,
        "p95_error": 0.006,
        "times_stochman": 50.5,
    }
    monkeypatch.setattr(benchmark, "measure", lambda *_: [near])
    run("")
    output = capsys.readouterr().out
    assert all(text in output for text in ("median error", "4,321.0", "0.137%", "50.5"))


def test_stochman_is_compared_at_its_fastest_setting_of_no_greater_error():
    def record(solver, rate, error):
        return {"solver": solver, "per_second": rate, "median_error": error}

    near, *_ = benchmark.compare_with_stochman(
        [
            record("near", 1000.0, 0.002),
            record("stochman-10-steps", 50.0, 0.003),
            record("stochman-20-steps", 20.0, 0.002),
            record("stochman-30-steps", 10.0, 0.001),
        ]
    )
    assert near["times_stochman"] == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dimensions 0", "--dimensions: 0 must be at least 1"),
        ("--dimensions 3 --batch 0", "--batch: 0 must be at least 1"),
        ("--results nowhere/at/all.json", "the folder nowhere/at does not exist"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run(arguments)
    output = capsys.readouterr()
    assert stop.value.code == 2 and output.out == ""
    assert message in output.err


def test_bench_runs_as_a_script_from_any_folder(tmp_path):
    command = [sys.executable, SCRIPT, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--train-steps" in done.stdout


def test_growth_measures_time_and_memory_of_stages(tmp_path):
    found = list(growth.measure(4_000, tmp_path, 8, ["import", "summary", "split"]))
    assert [record["stage"] for record in found] == ["import", "summary", "split"]
    for record in found:
        assert record["seconds"] >= 0 and 0.02 < record["peak_memory_gb"] < 3
    assert not list(tmp_path.iterdir())


def test_growth_is_extrapolated_along_a_line():
    records = [
        {"stage": "split", "transitions": rows, "seconds": 1 + 2e-6 * rows}
        for rows in (50_000_000, 10_000_000, 100_000)
    ]
    assert tables._extrapolate(records, "split", "seconds", 1e9) == pytest.approx(2001)
