import subprocess
import sys
from collections import deque
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures import four_rooms, penalties
from experiments.rooms import air_distances, compute_walking_distances, score_distances
from gelato.cli import main
from gelato.data.reference import load
from gelato.errors import InputError
from gelato.geometry import Converged, Euclidean
from gelato.model import training
from gelato.model.config import preset
from gelato.report import (
    FigureRequest,
    curve_figure,
    draw_figure,
    figures,
    latent_space,
    register_figure,
)
from gelato.report.latent_space import measure_plane
from gelato.tasks.four_rooms import FREE, list_free_cells, move
from gelato.uncertainty.scores import auroc

SCRIPTS = {"four-rooms": four_rooms.main, "penalties": penalties.main}


def figure(name: str, run, out, *more: str) -> None:
    arguments = ["--out", str(out), *more]
    if name in SCRIPTS:
        SCRIPTS[name](["--run", str(run), *arguments])
    else:
        main(["figure", name, str(run), *arguments])


@pytest.fixture(scope="module")
def runs(shared_store, tmp_path_factory):
    """Make untrained models of Four Rooms with two and three latent dimensions. They are
    made quickly and can be drawn like trained ones.
    """
    folder, dataset = tmp_path_factory.mktemp("runs"), load("four-rooms,transitions=600")
    small = replace(
        preset("default", dataset), decoders=2, hidden=(8,), forward_hidden=(8,), batch_size=32
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        for name, size in (("plane", 2), ("space", 3)):
            training.fit_model(dataset, folder / name, config=replace(small, latent_size=size))
    return folder


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Use few nodes and solvers: these tests only check that something is drawn."""
    monkeypatch.setattr(latent_space, "GRID", 12)
    monkeypatch.setattr(latent_space, "_PIXELS", 12)
    monkeypatch.setattr(penalties, "list_penalties", lambda _: ("euclidean", "ensemble"))
    monkeypatch.setattr(curve_figure, "CANDIDATES", 6)
    monkeypatch.setattr(curve_figure, "ITERATIONS", (2, 3))
    monkeypatch.setattr(curve_figure, "MODES", (1,))
    monkeypatch.setattr(curve_figure, "REFERENCE", Converged(modes=2, nodes=8, iterations=4))


@pytest.mark.parametrize(
    ("name", "run", "more"),
    [("four-rooms", "plane", ()), ("embedding", "space", ("40",)), ("penalties", "plane", ())],
)
def test_a_figure_is_the_same_each_time(runs, tmp_path, name, run, more):
    points = ["--points", *more] if more else []
    for file in ("a.png", "b.png"):
        figure(name, runs / run, tmp_path / file, *points)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size > 10_000 and len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_figure_can_be_a_pdf(runs, tmp_path):
    figure("curve", runs / "plane", tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes()[:4] == b"%PDF"


@pytest.mark.parametrize(
    ("name", "run", "out", "more", "message"),
    [
        (
            "four-room",
            "plane",
            "a.png",
            (),
            "no figure is called 'four-room'; choose from curves, data, rollouts, curve, embedding",
        ),
        ("curve", "plane", "a.jpeg", (), "must end in .png, .pdf or .svg"),
        ("curve", "plane", "absent/a.png", (), "does not exist"),
        ("curve", ".", "a.png", (), "not a run folder"),
        ("four-rooms", "space", "a.png", (), "has 3 latent dimensions; the plan needs 2"),
        ("embedding", "plane", "a.png", ("--points", "7"), "--points 7: must be at least 30"),
        ("embedding", "plane", "a.png", ("--points", "700"), "the data has only 600 transitions"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_nothing_is_written(
    runs, tmp_path, capsys, name, run, out, more, message
):
    with pytest.raises(SystemExit) as stop:
        figure(name, runs / run, tmp_path / out, *more)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_land_distance_is_what_breadth_first_search_finds():
    cells = [tuple(cell) for cell in list_free_cells().tolist()]
    start = cells.index((0, 6))
    steps, queue = {cells[start]: 0}, deque([cells[start]])
    while queue:
        cell = queue.popleft()
        for neighbour in (move(cell, action, 1) for action in range(4)):
            if neighbour not in steps:
                steps[neighbour] = steps[cell] + 1
                queue.append(neighbour)
    assert [steps[cell] for cell in cells] == compute_walking_distances()[start].tolist() and len(
        cells
    ) == FREE.sum()


def test_the_land_distance_itself_scores_one_and_the_air_distance_less():
    assert score_distances(compute_walking_distances())["spearman_land"] == pytest.approx(1)
    assert score_distances(compute_walking_distances())["auroc_wall"] > 0.99
    assert score_distances(air_distances())["auroc_wall"] < 0.8


def test_auroc_counts_the_pairs_in_order():
    values, positive = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])
    assert auroc(values, positive) == (1 + 0.5 + 1 + 1) / 4


def test_in_flat_space_the_graphs_geodesics_are_straight(monkeypatch):
    monkeypatch.setattr(latent_space, "GRID", 40)
    points = np.asarray(jax.random.uniform(jax.random.key(0), (20, 2)))
    straight = np.linalg.norm(points[:, None] - points, axis=-1)
    found = measure_plane(Euclidean(), points)
    assert np.all(found >= straight - 1e-6) and np.all(found <= 1.06 * straight + 1e-6)


def test_the_variance_is_large_in_the_gaps_of_the_data(runs):
    model = training.load_model(runs / "plane").seed(0)
    centres = np.asarray(model.decoders.raw_variance.centres)[0]
    outside = jnp.asarray(centres.max(axis=0) + 10)
    assert np.allclose(model.decode_variances(outside), 1, atol=1e-3)
    assert np.all(np.asarray(jax.vmap(model.decode_variances)(jnp.asarray(centres))) < 0.2)
    assert np.all(centres >= model.support.low - 1e-5) and np.all(
        centres <= model.support.high + 1e-5
    )


def test_a_registered_figure_is_drawn_with_its_request(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "_FIGURES", dict(figures._FIGURES))
    drawn = []
    register_figure("mine", drawn.append, "A figure of mine.")
    request = FigureRequest(tmp_path, tmp_path / "a.png", points=50, data="four-rooms")
    draw_figure("mine", request)
    assert drawn == [request]
    with pytest.raises(InputError, match="already registered"):
        register_figure("mine", drawn.append, "Another.")


@pytest.mark.parametrize("value", [("", print, "x"), ("a", print, "")])
def test_an_incomplete_figure_is_refused(value):
    with pytest.raises(InputError, match="needs a name, a function"):
        register_figure(*value)


def test_help_lists_every_figure_with_its_help(capsys):
    with pytest.raises(SystemExit):
        main(["figure", "--help"])
    text = capsys.readouterr().out
    for registered in figures.list_figures():
        assert registered.name in text and registered.help.split()[0] in text


def test_the_embedding_says_which_extra_it_needs(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(SystemExit):
        figure("embedding", runs / "plane", tmp_path / "a.png", "--points", "40")
    assert "gelato-rl[figures]" in capsys.readouterr().err


def test_tables_and_help_do_not_import_matplotlib():
    modules = "gelato.cli, gelato.report.policy_table"
    code = f"import {modules}, sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
