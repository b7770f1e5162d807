"""A run folder names what is damaged, and files that were cut short do no harm."""

import json
from pathlib import Path

import pytest

from gelato.errors import InputError
from gelato.runs.files import write_atomically
from gelato.runs.folder import Run, open_run
from gelato.runs.manifest import read_manifest


def names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_a_line_that_was_cut_short_is_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in (1, 2):
        run.log([{"step": step, "seed": 0, "loss": 0.5}])
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("3")
    assert [row["step"] for row in run.metrics] == ["1", "2"]
    run.forget_metrics_after(2)
    run.log([{"step": 3, "seed": 0, "loss": 0.25}])
    assert [(row["step"], row["loss"]) for row in run.metrics] == [
        ("1", "0.5"),
        ("2", "0.5"),
        ("3", "0.25"),
    ]


def test_a_folder_that_is_refused_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    run = Run(tmp_path)
    with pytest.raises(InputError, match="contains other files"), run.lock():
        run.begin("model")
    assert names(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"format": 1, "kind": "model"}, r"run.json: damaged \(the field data is missing\)"),
        ({"format": "x", "kind": "model"}, "has format x of a newer gelato"),
        ({"kind": "model"}, "is not a run.json of gelato"),
    ],
)
def test_a_damaged_description_is_called_so(
    tmp_path: Path, description: dict, message: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match=message):
        Run(tmp_path).description["data"]


def test_a_damaged_record_is_called_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.record("scales", {"unit": 2}) == run.record("scales", {"unit": 3}) == {"unit": 2}
    (tmp_path / "scales.json").write_text("{")
    with pytest.raises(InputError, match=r"scales.json: damaged .*; remove the file"):
        run.record("scales", {"unit": 3})


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    path.write_text("the old one")
    with pytest.raises(ZeroDivisionError), write_atomically(path) as partial:
        partial.write_text("half of")
        1 / 0  # noqa: B018
    assert path.read_text() == "the old one" and names(tmp_path) == ["film.gif"]
    with write_atomically(path) as partial:
        partial.write_text("the new one")
    assert path.read_text() == "the new one" and names(tmp_path) == ["film.gif"]


def test_files_that_are_written_together_are_replaced_together(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "model") as run:
        with run.write_together("a.json", "b.json") as partials:
            for partial in partials:
                partial.write_text("{}")
        with (
            pytest.raises(ZeroDivisionError),
            run.write_together("a.json", "b.json") as (first, _),
        ):
            first.write_text('{"value": 1}')
            raise ZeroDivisionError
        assert [run.read_json(name) for name in "ab"] == [{}, {}]
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None and set(manifest.files) == {"run.json", "a.json", "b.json"}
    files = {".lock", "manifest.json", "run.json", "a.json", "b.json"}
    assert set(names(tmp_path / "run")) == files
