"""How long the stages of a selection take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds per stage; a stage that is measured several times has their sum.

    Computations on a device may still run when a stage ends. They count in the next stage that
    waits for them.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the duration of the block to a stage."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - begun
