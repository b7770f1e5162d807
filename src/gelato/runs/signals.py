"""Handle Ctrl-C without losing work: training finishes its block, stores a checkpoint and stops.

Commands handle SIGTERM (`kill`, a scheduler, a stopping container) in the same way. A program that
uses the library keeps its own SIGTERM handler.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gelato.progress import note

# The signal that arrived but was not handled yet, and the last signal that was handled.
_asked: int | None = None
_obeyed: int = signal.SIGINT


def remember_interrupts() -> None:
    """Store received signals, so that Ctrl-C also works where Python ignores KeyboardInterrupt.

    Python ignores exceptions in callbacks such as JAX's garbage-collection callback.
    """

    def remember(number: int, _: Any) -> None:
        global _asked
        _asked = number
        _stop(number)

    def report(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(dropped)

    sys.unraisablehook = report
    signal.signal(signal.SIGTERM, remember)
    # A shell makes background processes ignore Ctrl-C; do not change that.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, remember)


def exit_code() -> int:
    """Return the exit code after a signal by the shell's convention: 130 after Ctrl-C."""
    return 128 + _obeyed


def stop_if_asked() -> None:
    """Stop if a signal arrived during the last block."""
    global _asked
    if _asked is not None:
        number, _asked = _asked, None
        _stop(number)


@contextmanager
def stop_between_blocks() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C wait for the end of a block; first stop if a signal arrived earlier.

    Yields a function that returns whether a signal arrived. A second Ctrl-C stops immediately.
    """
    stop_if_asked()
    with delay_signals() as interrupted:
        yield interrupted


@contextmanager
def delay_signals() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C wait for the end of the context, as in `stop_between_blocks`."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def wait(number: int, _: Any) -> None:
        global _asked
        stop_if_asked()
        _asked = number
        note("stopping after this block of updates; press Ctrl-C again to stop immediately")

    # Do not change ignored signals and default handlers.
    heeded = [
        number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))
    ]
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
