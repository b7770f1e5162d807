"""Read LeRobot folders, versions 2 and 3: Parquet files, described by `meta/info.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gelato.data.build import build_dataset
from gelato.data.fields import NONE
from gelato.data.layout import read_layout
from gelato.data.parquet import ParquetTables
from gelato.data.sources import Reference
from gelato.data.tables import TableRecording, list_files
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.progress import note
from gelato.runs.files import read_json

_VERSIONS = ("v2.", "v3.")
_LARGEST_INFO = 2**26
_PICTURES = ("image", "video")
_OBSERVATION, _ACTION, _REWARD = "observation", "action", "next.reward"
_EPISODE, _TIME = "episode_index", "timestamp"


def load_lerobot(reference: Reference) -> Dataset:
    """Read a LeRobot folder as `lerobot:PATH`; options overrule the columns it names."""
    root = Path(reference.target)
    info = _read_info(root)
    features = info["features"]
    given = read_layout(reference.options)
    pictures = [name for name, each in features.items() if each.get("dtype") in _PICTURES]
    columns = {**_find_columns(features, pictures, root), **given.columns}
    _refuse_pictures(columns["observations"], pictures, root)
    if pictures:
        note(f"{root}: {', '.join(pictures)} cannot be read yet, and are left out")
    tables = ParquetTables(list_files(str(root / "data"), (".parquet",)))
    recording = TableRecording(str(root), tables, _find_labels(features))
    dataset = build_dataset(recording, replace(given, columns=columns), str(reference))
    _check_counts(dataset, info, root)
    return dataset


def _read_info(root: Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    if not root.is_dir() or not path.is_file():
        raise InputError(f"{root}: not a LeRobot folder; it has no meta/info.json")
    if path.stat().st_size > _LARGEST_INFO:
        raise InputError(f"{path}: is too large for a description")
    info = read_json(path)
    version = str(info.get("codebase_version")) if isinstance(info, dict) else "none"
    if not version.startswith(_VERSIONS):
        raise InputError(
            f"{root}: version {version[:20]} of LeRobot's format is not supported; convert the "
            "folder to 2.1 or 3.0 with LeRobot"
        )
    features = info.get("features")
    if not isinstance(features, dict) or not all(
        isinstance(each, dict) for each in features.values()
    ):
        raise InputError(f"{path}: has no features; it is damaged")
    return dict(info)


def _find_columns(
    features: Mapping[str, Any], pictures: Sequence[str], root: Path
) -> dict[str, str]:
    """Return the columns of each field. `next.done` also marks time limits, so it is not used."""
    observations = []
    for name in features:
        if name.split(".")[0] == _OBSERVATION and name not in pictures:
            observations.append(name)
    if not observations:
        raise InputError(f"{root}: has no observations other than pictures")
    columns = {
        "observations": "|".join(observations),
        "actions": _ACTION,
        "episode": _EPISODE,
        "time": _TIME,
        "terminals": NONE,
        "timeouts": NONE,
        "next_observations": NONE,
        "splits": NONE,
    }
    if _REWARD in features:
        columns["rewards"] = _REWARD
    return columns


def _refuse_pictures(pattern: str, pictures: Sequence[str], root: Path) -> None:
    for name in pictures:
        if any(fnmatchcase(name, part) for part in pattern.split("|")):
            raise InputError(
                f"{root}: {name} holds pictures, which cannot be read yet; choose other columns "
                "with ,observations=NAME|NAME"
            )


def _find_labels(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the entries of vectors; some folders group them, as {motors: [...]}."""
    labels = {}
    for name, feature in features.items():
        names = feature.get("names")
        if isinstance(names, dict):
            names = next((each for each in names.values() if isinstance(each, list)), None)
        if isinstance(names, list) and all(isinstance(each, str) for each in names):
            prefix = name.removeprefix(f"{_OBSERVATION}.")
            labels[name] = [f"{prefix}.{each}" for each in names]
    return labels


def _check_counts(dataset: Dataset, info: Mapping[str, Any], root: Path) -> None:
    """A partly downloaded folder has fewer rows than it says."""
    found = {
        "total_frames": len(dataset.transitions),
        "total_episodes": len(dataset.transitions.episode_slices),
    }
    for name, count in found.items():
        claimed = info.get(name)
        if isinstance(claimed, int) and claimed != count:
            raise InputError(
                f"{root}: meta/info.json has {name} = {claimed:,}, but the files hold {count:,}; "
                "copy the whole folder again"
            )
