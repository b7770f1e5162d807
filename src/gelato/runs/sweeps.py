"""Sweep folders, for commands that read training runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gelato.errors import InputError
from gelato.runs.folder import Run

GROUPS = "groups"


def read_groups(sweep: Run) -> list[dict[str, Any]]:
    """Read the groups of a sweep."""
    groups: Any = sweep.read_json(GROUPS).get("groups")
    if not isinstance(groups, list) or not all(map(_is_group, groups)):
        raise InputError(f"{sweep.folder / GROUPS}.json: damaged (it holds no groups)")
    return groups


def _is_group(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    name = value.get("name")
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name


def expand_sweeps(runs: Sequence[Path | str]) -> list[Path]:
    """Replace every folder of a sweep by the folders of its finished groups."""
    found: list[Path] = []
    for run in map(Path, runs):
        if not (run / f"{GROUPS}.json").exists() or Run(run).description["kind"] != "sweep":
            found.append(run)
            continue
        folders = [run / GROUPS / group["name"] for group in read_groups(Run(run))]
        finished = [folder for folder in folders if (folder / "results.json").exists()]
        if not finished:
            raise InputError(f"{run}: no group of this sweep is finished yet; repeat the command")
        found += finished
    return found
