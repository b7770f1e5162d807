"""Refuse files whose claimed size is out of proportion, or does not fit into memory."""

from pathlib import Path

from gelato.errors import InputError

# No compression of ours, NumPy's or HDF5's gzip makes data smaller than this.
LARGEST_RATIO = 1_032
# Arrays of this size are harmless, whatever the file says.
_SMALL = 2**24


def check_memory(what: str, claimed: int, stored: int) -> None:
    """Refuse an array that claims more than the file can hold or than memory has room for.

    `claimed` is its size in memory, `stored` the size of its bytes in the file.
    """
    if claimed <= _SMALL:
        return
    check_ratio(what, claimed, stored)
    free = find_free_memory()
    if free is not None and claimed > free:
        raise InputError(
            f"{what} needs {claimed / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are "
            "free; use fewer rows"
        )


def check_ratio(what: str, claimed: int, stored: int) -> None:
    """Refuse arrays that claim more than the file can hold, unless they are small."""
    if claimed > max(LARGEST_RATIO * stored, _SMALL):
        raise InputError(
            f"{what} claims {claimed / 1e6:,.0f} MB, but the file stores {stored:,} bytes for it; "
            "the file is damaged, or its rows were never written"
        )


def find_free_memory() -> int | None:
    """Return the bytes that this process may still use, or None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
                break
        else:
            return None
    except OSError:
        return None
    # A container may have less than its machine.
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(free, 0)
