"""A progress bar on standard error, so that standard output stays clean for results and JSON."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[..., None]


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
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total, status="")

        def advance(steps: int = 1, **fields: str) -> None:
            bar.update(task, advance=steps, **fields)  # type: ignore[arg-type]

        yield advance
