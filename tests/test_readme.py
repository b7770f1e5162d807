"""Every command in a block of `bash` and every line of Python in the README runs."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from gelato.geometry import Converged
from gelato.report import curve_figure, latent_space
from tests.snippets import ROOT, find_snippets, list_commands, run_command

README = (ROOT / "README.md").read_text()
SNIPPETS = find_snippets(README)
COMMANDS = list_commands(SNIPPETS)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "store"))
        patch.chdir(folder)
        # The same code draws a coarser plan of the rooms.
        patch.setattr(latent_space, "GRID", 12)
        patch.setattr(latent_space, "_PIXELS", 12)
        patch.setattr(curve_figure, "CANDIDATES", 6)
        patch.setattr(curve_figure, "ITERATIONS", (2, 3))
        patch.setattr(curve_figure, "MODES", (1,))
        patch.setattr(curve_figure, "REFERENCE", Converged(modes=2, nodes=8, iterations=4))
        # In order: a line may use what the lines before it made, and the Python below what the
        # commands made.
        for words in COMMANDS:
            run_command(words)
        yield folder


@pytest.mark.slow
def test_every_command_runs_in_order(workplace):
    assert {words[0] for words in COMMANDS} == {"make", "gelato", "python"}
    assert (workplace / "hopper.png").exists()


def test_every_line_of_python_runs_as_a_script_on_a_bare_store(workplace):
    scripts = [snippet.code for snippet in SNIPPETS if snippet.language == "python"]
    assert scripts
    for number, code in enumerate(scripts):
        script = workplace / f"example{number}.py"
        script.write_text(code)
        environment = os.environ | {"MINARI_DATASETS_PATH": str(workplace / f"store{number}")}
        answer = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        assert answer.returncode == 0 and answer.stdout, answer.stderr


def test_the_lines_for_a_log_are_those_of_the_home_page_where_they_run():
    (untested,) = [snippet for snippet in SNIPPETS if "gelato train file:" in snippet.code]
    home = list_commands(find_snippets((ROOT / "docs" / "index.md").read_text()))
    assert untested.reason is not None
    assert home == list_commands([replace(untested, reason=None)])


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
