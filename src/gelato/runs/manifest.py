"""The manifest of a run folder: sizes and digests of its files, so that damage is found.

`manifest.json` lists for every file the contents that gelato wrote. It is written before a file is
replaced and lists the old and the new content, so that a run killed between the two stays readable.
`metrics.csv` grows: only its first bytes are listed until the training is finished.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gelato.errors import InputError
from gelato.runs.files import digest_file, read_json, write_atomically

NAME = "manifest.json"
LOG = "metrics.csv"
# A content that a file may have: its size and its digest.
Content = tuple[int, str]
# A reader may meet a writer that replaces both the file and the manifest.
_ATTEMPTS = 5


@dataclass
class Manifest:
    """The contents that each file of a run may have. A log that `grows` may be longer."""

    files: dict[str, list[Content]] = field(default_factory=dict)
    grows: bool = True

    def expect(self, folder: Path, name: str, content: Content) -> None:
        """List the content that a file will have next to the one that it has now."""
        before = []
        if (folder / name).exists():
            present = digest_file(folder / name)
            grows = name == LOG and self.grows
            before = [old for old in self.files.get(name, []) if grows or old == present]
        self.files[name] = [content, *before]

    def forget_missing(self, folder: Path) -> None:
        """Drop the files that are gone."""
        for name in [name for name in self.files if not (folder / name).exists()]:
            del self.files[name]

    def keep_log(self, folder: Path, *, finished: bool = False) -> None:
        """List the present content of the log."""
        path = folder / LOG
        if path.exists():
            self.files[LOG] = [digest_file(path)]
        self.grows = not finished

    def allows(self, folder: Path, name: str) -> bool:
        """Return whether a file has one of its listed contents."""
        path = folder / name
        if name == LOG and self.grows:
            listed = self.files.get(name, [])
            return not listed or any(digest_file(path, size) == (size, d) for size, d in listed)
        return digest_file(path) in self.files.get(name, [])


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a run folder; None if it has none, as in version 0.1."""
    path = folder / NAME
    if not path.exists():
        return None
    fields: Any = read_json(path) if path.is_file() else None
    try:
        files: dict[str, list[Content]] = {}
        for name, contents in fields["files"].items():
            files[name] = [(int(size), str(digest)) for size, digest in contents]
        manifest = Manifest(files, bool(fields["grows"]))
        whole = fields["digest"] == _describe(manifest)["digest"]
    except (TypeError, ValueError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise InputError(
            f"{path}: damaged. Restore it from a copy. Or remove it; the files of the run are then "
            "no longer checked"
        )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest."""
    with write_atomically(folder / NAME) as partial:
        partial.write_text(json.dumps(_describe(manifest), indent=1) + "\n")


def _describe(manifest: Manifest) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "files": {name: list(map(list, found)) for name, found in sorted(manifest.files.items())},
        "grows": manifest.grows,
    }
    digest = hashlib.blake2b(json.dumps(fields).encode(), digest_size=16)
    return {**fields, "digest": digest.hexdigest()}


def check_file(folder: Path, name: str, remedy: str) -> Path:
    """Return the path of a file of a run; raise an error if its content is not a listed one."""
    path = folder / name
    if path.is_symlink():
        raise InputError(
            f"{path}: is a symbolic link, and a run is read from its own files only. Replace the "
            "link by what it points to"
        )
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a plain file; remove it")
    for _ in range(_ATTEMPTS):
        if not path.exists() or not (folder / NAME).exists():
            return path
        try:
            manifest = read_manifest(folder)
            if manifest is None or manifest.allows(folder, name):
                return path
        except FileNotFoundError:
            continue  # A training that is running removed the file.
    raise InputError(f"{path}: damaged (its content is not what gelato wrote); {remedy}")
