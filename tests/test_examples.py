"""The examples run as scripts, with their own Minari store."""

import json
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


@pytest.mark.slow
def test_the_guarded_robot_falls_less_often_than_the_unguarded_one(
    store: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    script, results = ROOT / "examples" / "guarded_robot.py", tmp_path / "results.json"
    answer = subprocess.run(
        [sys.executable, str(script), "--short", "--results", str(results)],
        env=os.environ | {"MINARI_DATASETS_PATH": str(store)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    calm, *pushed = json.loads(results.read_text())
    assert calm["push"] == 0 and calm["handed_over"] < pushed[-1]["handed_over"]
    for row in pushed:
        assert row["guarded_failures"] < row["unguarded_failures"]
