"""Progress bars and live tables on standard error; standard output stays clean for results.

If standard error is not a terminal (a batch job), it prints a line after five seconds and then one
line per minute.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Timer

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
)

from gelato.errors import make_printable

Advance = Callable[..., None]
_SECONDS_UNTIL_LINES, _SECONDS_BETWEEN_LINES = 5.0, 60.0
# One console for all output, so that a note appears above a bar and not inside it.
_console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def note(message: str) -> None:
    """Print a note on standard error."""
    say(f"note: {message}", style="dim")


def say(line: str, style: str | None = None) -> None:
    """Print a line on standard error, above a progress bar if there is one."""
    # A note may quote a name from a hostile file.
    _console.print(make_printable(line, keep="\n\t"), style=style, markup=False)


def is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return _console.is_terminal


@contextmanager
def show_live(table: RenderableType) -> Iterator[None]:
    """Draw something four times per second, below all notes. It vanishes at the end.

    A thread draws it, so drawing must not wait for the device.
    """
    with Live(table, console=_console, refresh_per_second=4, transient=True):
        yield


@contextmanager
def working(description: str) -> Iterator[None]:
    """Show that work of unknown length is in progress."""
    if _console.is_terminal:
        with _console.status(description):
            yield
        return
    line = Timer(_SECONDS_UNTIL_LINES, say, [description])
    line.start()
    try:
        yield
    finally:
        line.cancel()


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show a bar with the remaining time; yields a function `advance(steps, **fields)`.

    The optional field `status` is shown behind the bar (losses, returns).
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[status]}"),
    )
    due = time.monotonic() + _SECONDS_UNTIL_LINES
    with Progress(
        *columns, console=_console, transient=True, disable=not _console.is_terminal
    ) as bar:
        task = bar.add_task(description, total=total, status="")

        def advance(steps: int = 1, **fields: str) -> None:
            nonlocal due
            bar.update(task, advance=steps, **fields)  # type: ignore[arg-type]
            if not _console.is_terminal and time.monotonic() >= due:
                due = time.monotonic() + _SECONDS_BETWEEN_LINES
                say(_line(bar.tasks[task]))

        yield advance


def _line(task: Task) -> str:
    left = (
        ""
        if task.time_remaining is None
        else f", {timedelta(seconds=round(task.time_remaining))} left"
    )
    status = f"; {task.fields['status']}" if task.fields["status"] else ""
    return f"{task.description}: {task.completed:,.0f} of {task.total:,.0f}{left}{status}"
