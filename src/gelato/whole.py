"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gelato.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden file beside `path` to write to, which takes its place at the end, and goes if there is an error."""
    partial = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    except PermissionError as error:
        raise InputError(f"{path}: no permission to write there") from error
    finally:
        partial.unlink(missing_ok=True)
