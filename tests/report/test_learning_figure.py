"""Learning curves from metrics.csv."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from gelato.cli import main
from gelato.report import learning_figure
from gelato.report.learning_figure import draw_learning_curves
from gelato.report.style import half_width
from gelato.runs.folder import Run, open_run
from gelato.runs.records import write_records


def make_run(folder: Path, *, seeds: int = 3, finished: bool = True) -> Path:
    """A run of two methods; the return of `gelato` at step s with seed k is s + k."""
    settings = {
        "data": {"reference": "four-rooms", "environment": None},
        "methods": [{"name": "gelato"}, {"name": "bc"}],
    }
    with open_run(folder, "policies", **settings):
        pass
    for method, loss in (("gelato", "critic_loss"), ("bc", "loss")):
        with open_run(folder / "policies" / method, "agents") as run:
            for step in (10, 20, 30):
                rows = []
                for seed in range(seeds):
                    row = {"step": step, "method": method, "seed": seed, loss: 1 / step}
                    rows.append({**row, "return": "" if step == 10 else step + seed})
                run.log(rows)
    if finished:
        records = [{"dataset": "four-rooms", "method": "gelato", "seed": 0, "data_return": 7.0}]
        write_records(folder / "results.json", records)
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were drawn, instead of files."""
    figures: list[Figure] = []
    monkeypatch.setattr(learning_figure, "save", lambda figure, _: figures.append(figure))
    return figures


def test_a_curve_is_the_mean_over_seeds_with_a_95_percent_interval(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    draw_learning_curves([make_run(tmp_path / "run")], tmp_path / "a.png")
    returns, *losses = drawn[0].axes
    assert [axes.get_ylabel() for axes in losses if axes.axison] == ["critic loss", "cloning loss"]
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["(a)", "(b)", "(c)"]
    gelato, bc, data = returns.lines
    assert (gelato.get_label(), bc.get_label(), data.get_label()) == ("gelato", "bc", "the data")
    np.testing.assert_allclose(gelato.get_xydata(), [[20, 21], [30, 31]])
    assert set(data.get_ydata()) == {7.0}
    band = returns.collections[0].get_paths()[0].vertices
    # Student's t with two degrees of freedom: 4.303 / √3.
    np.testing.assert_allclose(band[:, 1].max(), 31 + 4.3027 / np.sqrt(3), rtol=1e-4)
    assert "mean over 3 seeds; bands: 95% intervals" in drawn[0].get_suptitle()


def test_one_seed_has_no_interval_and_the_figure_says_so(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    draw_learning_curves([make_run(tmp_path / "run", seeds=1)], tmp_path / "a.png")
    assert not drawn[0].axes[0].collections and "one seed" in drawn[0].get_suptitle()
    assert half_width(np.array([1.0])) == 0.0


def test_several_runs_are_overlaid_and_an_unfinished_one_lacks_only_the_data(
    tmp_path: Path, drawn: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / "one"), make_run(tmp_path / "two", finished=False)]
    draw_learning_curves(runs, tmp_path / "a.png")
    labels = [line.get_label() for line in drawn[0].axes[0].lines]
    assert labels == [
        "one: gelato",
        "one: bc",
        "two: gelato",
        "two: bc",
        "the data: four-rooms",
    ]
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
    assert len(looks) == 5
    assert "two: is not finished" in capsys.readouterr().err


def test_the_command_draws_several_runs_into_a_file_with_equal_bytes(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", seeds=1)
    for name in ("a.png", "b.png"):
        main(["figure", "curves", str(one), str(two), "--out", str(tmp_path / name)])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_what_has_no_curves_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    shutil.rmtree(run / "policies")
    with open_run(tmp_path / "model", "model"):
        pass
    cases = [
        (["curves", str(run)], "has no metrics of policies yet"),
        (["curves", str(tmp_path / "model")], "is a model run. Give the folder of a"),
        (["curves", str(tmp_path / "absent")], "no such folder"),
        (["rollouts", str(run), str(run)], "the figure rollouts draws one run"),
    ]
    for arguments, message in cases:
        with pytest.raises(SystemExit) as stop:
            main(["figure", *arguments, "--out", str(tmp_path / "a.png")])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "a.png").exists()
    assert Run(tmp_path / "model").description["kind"] == "model"
