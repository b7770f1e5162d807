import json

import pytest

from experiments.tables import locomotion_grid
from gelato.cli.output import print_fields, print_table
from gelato.errors import InputError
from gelato.report.policy_table import aggregate, as_text, gather, summarise_policies
from gelato.runs.folder import Run
from gelato.runs.records import read_records


def record(seed, value, dataset="d4rl:my_log"):
    return {
        "dataset": dataset,
        "method": "gelato",
        "seed": seed,
        "return": value,
        "score": None,
        "steps": 100,
    }


def test_small_returns_keep_their_digits_and_large_ones_are_whole():
    small, large = (
        [record(0, 0.45), record(1, 0.95)],
        [record(0, 1234.5, "b"), record(1, 1236.5, "b")],
    )
    assert "| 0.70 ± 0.35 |" in as_text(small, "md") and "| 0.70 ± 0.35 |" in locomotion_grid(small)
    assert "| 1,236 ± 1 |" in as_text(
        [*small, *large], "md"
    ) and "| 1,236 ± 1 |" in locomotion_grid([*small, *large])


def test_names_are_written_as_latex_wants_them():
    assert r"d4rl:my\_log & gelato & 0.70 $\pm$ 0.35" in as_text(
        [record(0, 0.45), record(1, 0.95)], "latex"
    )


@pytest.mark.parametrize("text", ["x", "{}", "[1]"])
def test_a_file_that_holds_no_records_is_refused(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"not a JSON file|not a list of records"):
        read_records(tmp_path / "results.json")


def test_records_of_something_else_and_folders_of_others_are_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps([{"method": "bc", "dataset": "d"}]))
    with pytest.raises(InputError, match="the records lack the fields return, score, seed, steps"):
        gather([tmp_path / "results.json"])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"is not a run\.json of gelato"):
        Run(tmp_path).description  # noqa: B018
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text(json.dumps({"format": 1, "kind": "policies"}))
    with pytest.raises(InputError, match="this run is not finished"):
        gather([tmp_path / "begun"])


def test_names_with_brackets_are_printed_as_they_are(capsys):
    print_table(["file:x[/b]/l[old].npz", "b"], [["[red]", "1"]])
    print_fields("title [/b]", {"[old]": "[/i]"})
    printed = capsys.readouterr().out
    assert all(
        text in printed
        for text in ("file:x[/b]/l[old].npz", "[red]", "title [/b]", "[old]", "[/i]")
    )


def sweep(*weights):
    return [{**record(0, 10.0 * w), "score": w, "penalty_weight": w} for w in weights]


def test_a_sweep_over_penalty_weights_has_a_row_and_a_column_for_each(tmp_path):
    for number, row in enumerate(sweep(3.0, 10.0)):
        (tmp_path / f"{number}.json").write_text(json.dumps([row]))
    records = gather([tmp_path / "0.json", tmp_path / "1.json"])
    methods = ["gelato λ=3", "gelato λ=10"]
    assert [cell["method"] for cell in summarise_policies(records)] == methods
    assert {row["method"] for row in aggregate(records)} == set(methods)
    assert "| dataset | gelato λ=3 | gelato λ=10 |" in locomotion_grid(records)
    assert r"gelato $\lambda$=3" in as_text(records, "latex")


def test_weights_that_differ_between_datasets_are_one_method():
    records = [{**row, "dataset": name} for row, name in zip(sweep(3.0, 10.0), "ab")]
    assert [cell["method"] for cell in summarise_policies(records)] == ["gelato", "gelato"]


def test_the_same_run_twice_is_refused(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(sweep(3.0)))
    with pytest.raises(InputError, match="seed 0 occurs twice"):
        gather([tmp_path / "r.json", tmp_path / "r.json"])


def test_published_returns_are_a_column_of_their_own():
    text = as_text([record(0, 500.0)], "md", lambda *_: 700)
    assert "| data | paper |" in text and "| – | 700 | 1 | 100 |" in text
    assert "paper" not in as_text([record(0, 500.0)], "md")


def test_files_are_shown_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [record(0, 500.0, f"file:{tmp_path}/logs/a.npz,low=-2,high=2")]
    assert "| file:logs/a.npz,low=-2,high=2 | gelato |" in as_text(rows, "md")
    assert "| hopper-medium |" in as_text([record(0, 500.0, "hopper-medium")], "md")


def test_the_intervals_do_not_depend_on_the_order_of_the_runs():
    rows = []
    for seed in range(3):
        for name, base in (("b", 40.0), ("a", 10.0)):
            rows.append({**record(seed, 1.0, name), "score": base + seed**2})
    by_name = sorted(rows, key=lambda row: row["dataset"])
    assert aggregate(rows) == aggregate(by_name)
