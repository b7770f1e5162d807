"""Every public name exists, and every public thing has a docstring."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "gelato",
    "gelato.agents",
    "gelato.data",
    "gelato.dynamics",
    "gelato.geometry",
    "gelato.mdp",
    "gelato.model",
    "gelato.policy",
    "gelato.report",
    "gelato.runs",
    "gelato.selection",
    "gelato.sweep",
    "gelato.tasks",
    "gelato.training",
    "gelato.uncertainty",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_has_a_page_in_the_api_reference(name: str) -> None:
    page = ROOT / "docs" / "api" / f"{name.rpartition('.')[2]}.md"
    assert f"::: {name}\n" in page.read_text()


def test_the_list_of_packages_is_complete() -> None:
    # `cli` has commands, not names.
    found = {path.parent.name for path in (ROOT / "src" / "gelato").glob("*/__init__.py")} - {"cli"}
    assert {name.rpartition(".")[2] for name in PACKAGES} == found | {"gelato"}


def test_the_check_of_the_site_finds_missing_entries_and_foreign_scripts(tmp_path: Path) -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    from experiments.check_site import find_problems

    (tmp_path / "api").mkdir()
    page = tmp_path / "api" / "data.html"
    page.write_text('<h2 id="gelato.data.load"></h2><script src="https://example.org/a.js">')
    problems = find_problems(tmp_path, ROOT / "src")
    assert f"gelato.data.split: has no entry on {page}" in problems
    assert not any(problem.startswith("gelato.data.load:") for problem in problems)
    assert "api/data.html: loads something from another host" in problems
    assert any(problem.startswith("gelato.geometry: has no page") for problem in problems)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    package = import_module(name)
    for public in package.__all__:
        thing = getattr(package, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"


def test_docs_and_examples_import_public_names_only() -> None:
    inner = re.compile(r"^\s*(?:from|import) (gelato\.\w+\.\w+)", re.MULTILINE)
    root = Path(__file__).parents[1]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs" / "guide").glob("*.md")]
    for path in [*pages, *(root / "examples").glob("*.py")]:
        assert not inner.findall(path.read_text()), path


def test_the_list_of_data_contains_the_built_in_sources() -> None:
    # A new process, because other tests load the module that registers the sources.
    command = [sys.executable, "-m", "gelato", "data", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for source in ("minari:ID", "d4rl:PATH", "file:PATH"):
        assert source in text
