"""Tables in the docs equal the result files, and the commands and Python in the docs run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from experiments.docs import list_pages, render
from tests.snippets import (
    LANGUAGES,
    find_snippets,
    run_command,
    run_page,
    use_tiny_settings,
    write_log,
)

ROOT = Path(__file__).parents[1]
PAGES = list_pages(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_rendered_from_the_results(page):
    assert render(page.read_text(), ROOT / "results") == page.read_text(), (
        "run python experiments/docs.py"
    )


def test_rendering_replaces_what_stands_between_the_marks(tmp_path):
    (tmp_path / "behaviour.json").write_text(
        '[{"policy": "p", "trained": 1000, "return_mean": 990.0, "return_std": 5.0, '
        '"ratio": 0.99, "episodes": 3}]'
    )
    text = render("a\n<!-- results/behaviour.json -->\nold\n<!-- end -->\nb", tmp_path)
    assert (
        "| p | 1,000 | 990 ± 5 | 0.990 | 3 |" in text and "old" not in text and text.endswith("b")
    )


def test_a_word_after_the_name_may_be_another_form_of_the_table(tmp_path):
    def row(dataset, method, seed, value):
        own = {"dataset": dataset, "method": method, "seed": seed, "steps": 10}
        return {
            **own,
            "return": value,
            "score": value / 10,
            "data_return": 1234.5 if "hopper" in dataset else None,
        }

    cells = [("hopper-medium", "bc"), ("hopper-medium", "gelato"), ("walker2d-medium", "gelato")]
    rows = [
        row(*cell, seed, 100.0 * (n + 1) + seed) for n, cell in enumerate(cells) for seed in (0, 2)
    ]
    (tmp_path / "locomotion.json").write_text(json.dumps(rows))
    lines = render("<!-- results/locomotion.json grid -->\n<!-- end -->", tmp_path).splitlines()
    assert lines[1] == "| dataset | gelato | bc | the data itself | paper's GELATO |"
    assert lines[3:6] == [
        "| hopper-medium | 201 ± 1 | 101 ± 1 | 1,234 | 1,676 |",
        "| walker2d-medium | 301 ± 1 | – | – | 1,269 |",
        "| mean score (number of datasets) | 25.1 (2) | 10.1 (1) | – | – |",
    ]


def test_settings_that_were_tried_are_rows_and_datasets_columns(tmp_path):
    setting = {
        "method": "gelato",
        "penalty_weight": 10.0,
        "branches": 2000,
        "horizon": 5,
        "replay": 50_000,
    }
    how = {
        **setting,
        "updates": 300_000,
        "episodes": 10,
        "low_evaluations": None,
        "evaluations": None,
    }
    rows = [
        {
            **how,
            "dataset": "walker2d-medium",
            "real_fraction": 0.05,
            "seed": seed,
            "return": 1000.0 + 10 * seed,
        }
        for seed in (0, 2)
    ]
    low = {
        "dataset": "hopper-medium",
        "real_fraction": 0.5,
        "low_evaluations": 3,
        "evaluations": 10,
    }
    rows += [{**how, **low, "seed": seed, "return": 3000.0} for seed in (0, 1)]
    (tmp_path / "tried.json").write_text(json.dumps(rows))
    lines = render("<!-- results/tried.json -->\n<!-- end -->", tmp_path).splitlines()
    assert lines[1].endswith("| updates | hopper-medium | walker2d-medium |")
    assert lines[3:5] == [
        "| gelato | 10 | 5% | 2,000 × 5 | 50,000 | 300,000 | – | 1,010 ± 14 |",
        "| gelato | 10 | 50% | 2,000 × 5 | 50,000 | 300,000 | 3,000 ± 0 (6/20) | – |",
    ]


# The research log holds the commands of its day; they are records, not instructions.
GUIDES = [page for page in PAGES[1:] if page.parent.name != "research"]
WITH_SNIPPETS = [page for page in GUIDES if "```" in page.read_text()]


TRAIN = shlex.split("gelato train file:log.npz,low=-2,high=2 --preset small --run runs/mine")


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [PAGES[0], *WITH_SNIPPETS], ids=name_page)
def test_every_fence_has_a_language_that_runs_or_is_text(page):
    for snippet in find_snippets(page.read_text()):
        assert snippet.language in LANGUAGES, snippet


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the reader's logs. All pages use it, so that equal trainings run once."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "store"))
        patch.setenv("MPLBACKEND", "Agg")
        patch.chdir(folder)
        use_tiny_settings(patch)
        yield folder


def list_runs() -> list:
    """List the pages to run. Those that train are slow."""
    marked = []
    for page in WITH_SNIPPETS:
        marks = [pytest.mark.slow] if "runs/" in page.read_text() else []
        marked.append(pytest.param(page, marks=marks, id=name_page(page)))
    return marked


@pytest.mark.parametrize("page", list_runs())
def test_every_snippet_of_a_page_runs(page, workplace, tmp_path, monkeypatch):
    text = page.read_text()
    if "np.savez(" in text:
        monkeypatch.chdir(tmp_path)  # this page makes its own log
    else:
        write_log(workplace / "log.npz")
        write_log(workplace / "new.npz", episodes=4, seed=1)
        if "runs/mine" in text:
            run_command(TRAIN)  # the first page trains, the others read
    run_page(text)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            found = page.parent / target
            # The pages of tutorials are made by running them.
            assert found.exists() or found.with_suffix(".py").exists(), f"{page}: {target}"
