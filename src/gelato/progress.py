"""A progress bar on standard error, so that standard output stays clean for results and JSON.

Where standard error is no terminal (a log of a batch job), a line a minute says the same.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[..., None]
_SECONDS_BETWEEN_LINES = 60.0


def note(message: str) -> None:
    """Tell the user something on standard error without ending the command."""
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(
        f"note: {message}", style="dim", markup=False
    )


@contextmanager
def working(description: str) -> Iterator[None]:
    """Show that something of unknown length goes on."""
    with Console(stderr=True).status(description):
        yield


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show a bar with elapsed and remaining time; the value yielded takes `(steps, **fields)`.

    The optional field `status` is text shown behind the bar (loss terms, returns).
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    console, said = Console(stderr=True, soft_wrap=True, highlight=False), time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total, status="")

        def advance(steps: int = 1, **fields: str) -> None:
            nonlocal said
            bar.update(task, advance=steps, **fields)  # type: ignore[arg-type]
            if not console.is_terminal and time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                console.print(_line(bar.tasks[task]), markup=False)

        yield advance


def _line(task: Task) -> str:
    left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
    status = f"; {task.fields['status']}" if task.fields["status"] else ""
    return f"{task.description}: {task.completed:,.0f} of {task.total:,.0f}{left}{status}"
