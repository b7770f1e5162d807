"""Ctrl-C that loses nothing: training ends the block of updates it is in, keeps a checkpoint, and stops."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gelato.progress import note

_asked = False


def remember_interrupts() -> None:
    """Let Ctrl-C stop a command also where Python drops the exception, as in a callback of JAX's garbage collection."""

    def remember(*_: Any) -> None:
        global _asked
        _asked = True
        raise KeyboardInterrupt

    def report(dropped: Any) -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(dropped)

    sys.unraisablehook = report
    if not _ignored():
        signal.signal(signal.SIGINT, remember)


def stop() -> None:
    """End what goes on, as Ctrl-C does."""
    global _asked
    _asked = False
    raise KeyboardInterrupt


def stop_if_asked() -> None:
    """Obey a Ctrl-C that came in the last block, once what was trained is kept."""
    if _asked:
        stop()


@contextmanager
def between_blocks() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C waits for the end of a block; what is yielded says whether it does. A second one stops at once."""
    stop_if_asked()
    with unhurried() as interrupted:
        yield interrupted


@contextmanager
def unhurried() -> Iterator[Callable[[], bool]]:
    """The same, begun also where one waits already."""
    if threading.current_thread() is not threading.main_thread() or _ignored():
        yield lambda: False
        return

    def wait(*_: Any) -> None:
        global _asked
        if _asked:
            stop()
        _asked = True
        note("stopping after this block of updates; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield lambda: _asked
    finally:
        signal.signal(signal.SIGINT, before)


def _ignored() -> bool:
    """Whether the process was started so that Ctrl-C is not meant for it, as in a shell's background."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
