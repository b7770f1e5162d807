"""Atomic file writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gelato.errors import InputError


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a hidden file next to `path`. It replaces `path` unless an error occurs."""
    partial = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    except PermissionError as error:
        raise InputError(f"{path}: no permission to write there") from error
    finally:
        partial.unlink(missing_ok=True)
