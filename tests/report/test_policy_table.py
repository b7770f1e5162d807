import json

import pytest

from gelato.cli.output import print_fields, print_table
from gelato.errors import InputError
from gelato.report.policy_table import as_grid, as_text, gather
from gelato.results import read_records
from gelato.runs import Run
from gelato.trained import most_valued


def record(seed, value, dataset="d4rl:my_log"):
    return {"dataset": dataset, "method": "gelato", "seed": seed, "return": value, "score": None, "steps": 100}


def test_small_returns_keep_their_digits_and_large_ones_are_whole():
    small, large = [record(0, 0.45), record(1, 0.95)], [record(0, 1234.5, "b"), record(1, 1236.5, "b")]
    assert "| 0.70 ± 0.35 |" in as_text(small, "md") and "| 0.70 ± 0.35 |" in as_grid(small)
    assert "| 1,236 ± 1 |" in as_text([*small, *large], "md") and "| 1,236 ± 1 |" in as_grid([*small, *large])


def test_names_are_written_as_latex_wants_them():
    assert r"d4rl:my\_log & gelato & 0.70 $\pm$ 0.35" in as_text([record(0, 0.45), record(1, 0.95)], "latex")


@pytest.mark.parametrize("text", ["x", "{}", "[1]"])
def test_a_file_that_holds_no_records_is_refused(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"is no JSON file|is no list of records"):
        read_records(tmp_path / "results.json")


def test_records_of_something_else_and_folders_of_others_are_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps([{"method": "bc", "dataset": "d"}]))
    with pytest.raises(InputError, match="they have no return, score, seed, steps"):
        gather([tmp_path / "results.json"])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="does not describe a run"):
        Run(tmp_path).description  # noqa: B018
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text(json.dumps({"format": 1, "kind": "policies"}))
    with pytest.raises(InputError, match="this run is not finished"):
        most_valued(tmp_path / "begun")


def test_names_with_brackets_are_printed_as_they_are(capsys):
    print_table(["file:x[/b]/l[old].npz", "b"], [["[red]", "1"]])
    print_fields("title [/b]", {"[old]": "[/i]"})
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("file:x[/b]/l[old].npz", "[red]", "title [/b]", "[old]", "[/i]"))
