"""The live table of a sweep, or plain lines if there is no terminal."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gelato.progress import is_terminal, say, show_live
from gelato.sweep.jobs import Outcome, Progress

_SECONDS_BETWEEN_LINES = 60.0
# With more groups, the table shows only those that run.
_MOST_ROWS = 20
_COLUMNS = ("group", "node", "device", "step", "left", "return")


class LiveSweep:
    """Shows node, device, step, time left and last return of every group."""

    def __init__(self, names: Sequence[str], finished: Sequence[str]) -> None:
        self._states = {name: "finished" if name in finished else "waiting" for name in names}
        self._newest: dict[str, Progress] = {}
        self._due = 0.0

    @contextmanager
    def show(self) -> Iterator[None]:
        """Draw the table until the block ends."""
        self._due = time.monotonic() + _SECONDS_BETWEEN_LINES
        if not is_terminal():
            yield
            return
        with show_live(self):
            yield

    def update(self, event: Progress | Outcome | None) -> None:
        """Take an event; without a terminal print the important ones."""
        if isinstance(event, Progress):
            started = self._states[event.job] != "running"
            self._states[event.job] = "running"
            self._newest[event.job] = event
            if started and not is_terminal():
                say(f"{event.job}: started on {event.node}")
        elif isinstance(event, Outcome):
            self._states[event.job] = "finished" if event.error is None else "failed"
            if event.error is not None:
                where = f" on {event.node}" if event.node else ""
                say(f"{event.job}: failed{where}: {event.error}")
            elif not is_terminal():
                say(f"{event.job}: finished ({self.describe()})")
        if not is_terminal() and time.monotonic() >= self._due:
            self._due = time.monotonic() + _SECONDS_BETWEEN_LINES
            for name in self._running:
                say(", ".join(filter(None, self._make_row(name))))

    def describe(self) -> str:
        """Return how many groups are in which state."""
        states = list(self._states.values())
        parts = []
        for state in ("finished", "running", "waiting", "failed"):
            if state in states:
                parts.append(f"{states.count(state)} {state}")
        return ", ".join(parts)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, four times per second."""
        yield Text(f"sweep: {self.describe()}", style="bold")
        table = Table(box=None, pad_edge=False)
        for column in _COLUMNS:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        names = list(self._states)
        for name in names if len(names) <= _MOST_ROWS else self._running[:_MOST_ROWS]:
            table.add_row(*self._make_row(name))
        yield table

    @property
    def _running(self) -> list[str]:
        return [name for name, state in self._states.items() if state == "running"]

    def _make_row(self, name: str) -> tuple[str, ...]:
        """Return the cells of a group."""
        newest = self._newest.get(name)
        if self._states[name] != "running" or newest is None:
            return name, "", "", self._states[name], "", _write_return(newest)
        step = newest.title
        if newest.total:
            step = f"{newest.title} {newest.step:,} of {newest.total:,}"
        left = "" if newest.left is None else str(timedelta(seconds=round(newest.left)))
        return name, newest.node, newest.device, step, left, _write_return(newest)


def _write_return(progress: Progress | None) -> str:
    if progress is None or progress.last_return is None:
        return ""
    return f"{progress.last_return:,.4g}"
