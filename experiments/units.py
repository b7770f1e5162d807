"""Experiments in units: each one is recorded when it is done, and skipped by later calls."""

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gelato.runs.records import Record, read_records
from gelato.runs.signals import remember_interrupts

# Settings of tiny networks, to try a script on a CPU.
TINY = (
    "latent.model.hidden=16",
    "latent.model.forward_hidden=16",
    "latent.model.decoders=2",
    "latent.model.batch_size=32",
    "latent.model.updates=100",
    "latent.model.variance_updates=50",
    "ensemble.ensemble.hidden=16",
    "ensemble.ensemble.updates=100",
    "sac.hidden=16",
    "sac.batch_size=16",
    "sac.branches=20",
    "sac.replay=500",
    "sac.epoch=50",
    "sac.updates=100",
    "settings.points=500",
    "settings.episodes=1",
)


class Clock:
    """Says whether there is time for another unit. A kind of unit takes as long as it did before.

    When the time is over, the process stops as if a scheduler had stopped it: training keeps a
    checkpoint, and the same command continues.
    """

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._longest: dict[str, float] = {}
        if minutes is not None:
            stop_after(60 * minutes)

    def has_time_for(self, kind: str) -> bool:
        """Return whether a unit of this kind would probably finish in time."""
        expected = self._longest.get(kind, 0.0)
        return self._end is None or time.monotonic() + expected < self._end

    def note(self, kind: str, seconds: float) -> None:
        """Remember how long a unit took."""
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))


def stop_after(seconds: float) -> None:
    """Ask this process to stop as a scheduler would; training keeps a checkpoint."""
    remember_interrupts()
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


def are_recorded(results: Path, wanted: Sequence[Mapping[str, object]], seeds: int) -> bool:
    """Return whether a file has a record with all of these values for every seed."""
    found: list[Record] = read_records(results)

    def has(values: Mapping[str, object], seed: int) -> bool:
        each = [*values.items(), ("seed", seed)]
        return any(all(row.get(name) == value for name, value in each) for row in found)

    return all(has(values, seed) for values in wanted for seed in range(seeds))
