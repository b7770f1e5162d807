"""Every public name exists, and every public thing has a docstring."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

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
    "gelato.tasks",
    "gelato.training",
    "gelato.uncertainty",
)


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
