"""Ctrl-C that loses nothing: training ends the block of updates it is in, keeps a checkpoint, and stops.

A command is asked to end by SIGTERM as well (`kill`, a scheduler, a container that stops), which does the same. A
program that uses the library keeps its own ways with SIGTERM.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gelato.progress import note

# The signal that asked to stop, until it is obeyed; and the one that was obeyed last.
_asked: int | None = None
_obeyed: int = signal.SIGINT


def remember_interrupts() -> None:
    """Let Ctrl-C stop a command also where Python drops the exception, as in a callback of JAX's garbage collection."""

    def remember(number: int, _: Any) -> None:
        global _asked
        _asked = number
        _stop(number)

    def report(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(dropped)

    sys.unraisablehook = report
    signal.signal(signal.SIGTERM, remember)
    # In a shell's background Ctrl-C is not meant for the process, and ignored from the start.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)


def exit_code() -> int:
    """The code of a process that a signal ended, by a shell's convention: 130 after Ctrl-C."""
    return 128 + _obeyed


def stop_if_asked() -> None:
    """Obey a signal that came in the last block, once what was trained is kept."""
    global _asked
    if _asked is not None:
        number, _asked = _asked, None
        _stop(number)


@contextmanager
def between_blocks() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C waits for the end of a block; what is yielded says whether it does. A second one stops at once."""
    stop_if_asked()
    with unhurried() as interrupted:
        yield interrupted


@contextmanager
def unhurried() -> Iterator[Callable[[], bool]]:
    """The same, begun also where one waits already."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def wait(number: int, _: Any) -> None:
        global _asked
        stop_if_asked()
        _asked = number
        note("stopping after this block of updates; Ctrl-C again stops at once")

    # What is ignored stays so, and what ends a process by default is not ours to change.
    heeded = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, wait) for number in heeded}
    try:
        yield lambda: _asked is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int) -> None:
    global _obeyed
    _obeyed = number
    raise KeyboardInterrupt
