"""The examples run as scripts, on a store of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("own_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints_its_results(name: str, store: Path) -> None:
    environment = os.environ | {"MINARI_DATASETS_PATH": str(store)}
    answer = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) >= 2
