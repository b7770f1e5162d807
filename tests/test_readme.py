"""Every `bash` and Python block of the README runs. Blocks of `sh` use files of the user, so they
do not run.
"""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from gelato.cli import main
from gelato.geometry import Converged
from gelato.report import curve_figure, latent_space

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


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
        # Run them in order, because a line may use the results of earlier lines.
        for program, *arguments in commands():
            if program == "make":
                subprocess.run(
                    ["make", "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True
                )
            elif program == "python":
                script, *arguments = arguments
                module = import_module(script.removesuffix(".py").replace("/", "."))
                module.main(arguments)
            else:
                main(arguments)
        yield folder


def test_every_command_runs_in_order(workplace):
    assert {words[0] for words in commands()} == {"make", "gelato", "python"}
    assert (workplace / "hopper.png").exists()


def test_every_line_of_python_runs_as_a_script_on_a_bare_store(workplace):
    for number, block in enumerate(blocks("python")):
        script = workplace / f"example{number}.py"
        script.write_text(block)
        environment = os.environ | {"MINARI_DATASETS_PATH": str(workplace / f"store{number}")}
        answer = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        assert answer.returncode == 0 and answer.stdout, answer.stderr


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
