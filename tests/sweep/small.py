"""Sweeps of small trials on logs of Pendulum, whose returns change with every update."""

import os
import subprocess
import sys
from pathlib import Path

from experiments.pendulum import make_reference, write_log

__all__ = [
    "list_policies",
    "make_command",
    "make_environment",
    "run_command",
    "write_log",
    "write_spec",
]
ROOT = Path(__file__).parents[2]
SETTINGS = [
    *("cloning.hidden=8,", "cloning.batch_size=8", "cloning.epoch=4"),
    *("iql.hidden=8,", "iql.batch_size=8", "iql.epoch=4"),
]


def write_spec(path: Path, logs: list[Path], **fields: object) -> Path:
    """Write a specification of tiny trials."""
    given = {
        "datasets": [make_reference(log) for log in logs],
        "methods": ["bc", "iql"],
        "updates": 12,
        "evaluations": 2,
        "episodes": 1,
        "settings": SETTINGS,
        **fields,
    }
    lines = [f"    {name}={value!r},\n" for name, value in given.items()]
    path.write_text(f"from gelato.sweep import Sweep\n\nsweep = Sweep(\n{''.join(lines)})\n")
    return path


def make_command(*arguments: object) -> list[str]:
    """Return the command `gelato sweep` with these arguments."""
    return [sys.executable, "-m", "gelato", "sweep", *map(str, arguments)]


def make_environment(**changes: str) -> dict[str, str]:
    """Return the environment of a command that imports gelato from this checkout."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path} | changes


def run_command(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run `gelato sweep` in its own process."""
    return subprocess.run(
        make_command(*arguments), env=make_environment(**changes), capture_output=True, text=True
    )


def list_policies(run: Path) -> dict[str, bytes]:
    """Return the content of every file of last policies, by its path in the sweep."""
    files = sorted(run.glob("groups/*/policies/*/last.npz"))
    return {str(file.relative_to(run)): file.read_bytes() for file in files}
