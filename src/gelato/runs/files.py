"""Safe files: writes that are whole or absent, locks, digests, and reads that say what is wrong.

A file is written under a hidden name that nobody can guess, flushed to the disk and renamed. The
writer holds a lock on it meanwhile. A hidden file without a lock is a leftover of a killed process;
the next write in that folder removes it.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gelato.errors import InputError, first_line
from gelato.progress import note

PARTIAL = ".gelato-partial-"
_LEFTOVER = re.compile(rf"{re.escape(PARTIAL)}[0-9a-f]{{16}}(\.\w+)?")
_MOUNTS = Path("/proc/self/mountinfo")
# Locks work on these file systems: they are on this machine, or carry locks over the network.
_LOCKABLE = {
    *("apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nfs4"),
    *("ntfs3", "overlay", "ramfs", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"),
}
_warned: set[str] = set()
# A file of records needs about a hundred bytes for each.
_LARGEST_JSON = 2**28
# What code raises that uses values of a wrong type or size.
_UNEXPECTED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a hidden file next to `path`. It replaces `path` unless an error occurs."""
    with write_together([path]) as (partial,):
        yield partial


@contextmanager
def write_together(
    paths: Sequence[Path], before_replace: Callable[[Sequence[Path]], None] | None = None
) -> Iterator[list[Path]]:
    """Yield a hidden file next to each of these paths of one folder.

    They replace the paths, in this order, unless an error occurs. `before_replace` is called with
    the complete hidden files before the first of them replaces a path.
    """
    folder = paths[0].parent
    try:
        remove_leftovers(folder)
        with ExitStack() as stack:
            partials = [stack.enter_context(_open_partial(path)) for path in paths]
            yield partials
            for partial in partials:
                flush_file(partial)
            if before_replace is not None:
                before_replace(partials)
            for partial, path in zip(partials, paths, strict=True):
                partial.replace(path)
            flush_folder(folder)
    except PermissionError as error:
        raise InputError(f"{paths[0]}: no permission to write there") from error


@contextmanager
def _open_partial(path: Path) -> Iterator[Path]:
    """Yield a locked hidden file; remove it at the end if it has no other name then."""
    partial, lock = _create_partial(path)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)
        os.close(lock)


def hide_name(suffix: str = "") -> str:
    """Return a hidden name that nobody can guess and that `is_leftover` recognises."""
    return f"{PARTIAL}{secrets.token_hex(8)}{suffix}"


def is_leftover(name: str) -> bool:
    """Return whether a file or folder has a name that only unfinished work of ours has."""
    return _LEFTOVER.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed processes from a folder."""
    try:
        names = [entry.name for entry in os.scandir(folder) if is_leftover(entry.name)]
    except OSError:
        return
    if not names or not has_locks(folder):
        return
    for name in names:
        with suppress(OSError):
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode) and try_lock(descriptor):
                    (folder / name).unlink()
            finally:
                os.close(descriptor)


def _create_partial(path: Path) -> tuple[Path, int]:
    """Create a hidden file that nobody else uses, and lock it."""
    while True:
        partial = path.with_name(hide_name(path.suffix))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o666)
        try_lock(descriptor)
        # Another process may have taken the file for a leftover before it was locked.
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)


def flush_file(path: Path) -> None:
    """Wait until the content of a file is on the disk, so that a power failure cannot empty it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Some file systems cannot, and need not."""
    with suppress(OSError):
        flush_file(folder)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process; return whether no other process holds the lock.

    The kernel drops the lock when the process ends, however it ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Create a file if it is missing, and lock it; yield whether this process got the lock.

    Links are not followed and nothing is truncated: the folder may be someone else's. If the block
    fails, a file that was created here is removed.
    """
    descriptor, created = _open_lock(path)
    try:
        locked = try_lock(descriptor)
        try:
            yield locked and _is_at(descriptor, path)
        except BaseException:
            if created and locked and _is_at(descriptor, path):
                path.unlink()
            raise
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise InputError(f"{path}: is not a plain file; remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: is not a plain file; remove it")
    return descriptor, False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def has_locks(folder: Path) -> bool:
    """Return whether locks are known to work on the file system of a folder."""
    kind = find_file_system(folder)
    return kind is None or kind in _LOCKABLE


def warn_without_locks(folder: Path) -> None:
    """Warn once per kind of file system where locks may not reach other machines."""
    kind = find_file_system(folder)
    if kind is None or kind in _LOCKABLE or kind in _warned:
        return
    _warned.add(kind)
    note(
        f"{folder}: locks may not work on a file system of type {kind}; let one process at a time "
        "use this folder"
    )


def find_file_system(folder: Path) -> str | None:
    """Return the type of the file system that holds a folder, such as `ext4`, or None."""
    try:
        device = folder.stat().st_dev
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1]
    return None


def digest_file(path: Path, size: int | None = None) -> tuple[int, str]:
    """Return the size of a file and a hash of its content, or of its first `size` bytes."""
    digest, left = hashlib.blake2b(digest_size=16), size
    with path.open("rb") as file:
        while part := file.read(2**20 if left is None else min(left, 2**20)):
            digest.update(part)
            if left is not None:
                left -= len(part)
        whole = os.fstat(file.fileno()).st_size
    return whole if size is None else size - (left or 0), digest.hexdigest()


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Convert what unexpected values in a file cause into an `InputError` that names the file."""
    try:
        yield
    except InputError:
        raise
    except _UNEXPECTED as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"{path}: damaged (its values are not what gelato writes; {what})"
        ) from error


def read_json(path: Path, problem: str = "damaged") -> Any:
    """Read a JSON file. Every kind of damage is an `InputError` that names the file."""
    if path.exists() and not path.is_file():  # Reading a pipe or a device may never end.
        raise InputError(f"{path}: is not a plain file")
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{path}: {problem} (too large for a JSON file of gelato)")
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {problem} ({error})") from error


def restore_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of settings that JSON stored back into tuples."""
    values = dict(fields)
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return values
