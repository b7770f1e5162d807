"""Run functions in forked processes that have imported everything but started no JAX backend."""

import contextlib
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from experiments.chaos import commands


class Spawner:
    """A process that forks children on request. Start it before JAX computes anything."""

    def __init__(self) -> None:
        self._ours, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._ours.close()
            _serve(theirs)
        theirs.close()

    def call(
        self, function: Callable[..., Any], *arguments: Any, seconds: float = 600.0
    ) -> tuple[int, Any]:
        """Call a function in a new process; return its wait status and its value, if it ended."""
        self._ours.send_bytes(pickle.dumps((function, arguments, seconds)))
        status, content = self._ours.recv()
        return status, pickle.loads(content) if content else None

    def close(self) -> None:
        """End the spawner."""
        self._ours.close()
        os.waitpid(self.pid, 0)


def _serve(requests: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, arguments, seconds = pickle.loads(requests.recv_bytes())
        except EOFError:
            os._exit(0)
        requests.send(_run_child(function, arguments, seconds))


def _run_child(function: Callable[..., Any], arguments: Any, seconds: float) -> tuple[int, bytes]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with open(os.devnull, "w") as silence:  # noqa: PTH123
            os.dup2(silence.fileno(), 1)
            os.dup2(silence.fileno(), 2)
        content = pickle.dumps(function(*arguments))
        while content:
            content = content[os.write(writer, content) :]
        os._exit(0)
    os.close(writer)
    parts, deadline = [], time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            break
        part = os.read(reader, 2**16)
        if not part:
            break
        parts.append(part)
    os.close(reader)
    return os.waitpid(pid, 0)[1], b"".join(parts)


def is_under(path: object, root: str) -> bool:
    """Return whether an argument of a file-system call is a path below a folder."""
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str | Path) and str(path).startswith(root)


# The file-system calls that Python announces before it makes them.
CALLS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")


def changes_files(event: str, arguments: tuple[Any, ...], root: str) -> bool:
    """Return whether an audit event is a call that changes files below a folder."""
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return bool(writes or (mode and set("wax+") & set(mode))) and is_under(path, root)
    return event in CALLS and any(is_under(argument, root) for argument in arguments)


def watch_calls(root: Path, notify: Callable[[str], None]) -> None:
    """Call a function before every call of this process that changes files below a folder."""
    prefix, flush = str(root), os.fsync

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if changes_files(event, arguments, prefix):
            notify(event)

    def flush_after(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            if is_under(Path(f"/proc/self/fd/{descriptor}").readlink(), prefix):
                notify("os.fsync")
        flush(descriptor)

    os.fsync = flush_after
    sys.addaudithook(hook)


def run_and_die(name: str, root: Path, how: str, when: float) -> commands.Outcome:
    """Run a case and kill this process at its n-th call, after a time, or at a file's size."""
    commands.prepare_process()
    if how == "call":
        count = 0

        def kill(_: str) -> None:
            nonlocal count
            count += 1
            if count > when:
                os.kill(os.getpid(), signal.SIGKILL)

        watch_calls(root, kill)
    elif how == "time":
        # Without a handler the kernel ends the process at once, also inside compiled code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, when)
    else:
        # The kernel kills the process in the middle of a write.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(when), int(when)))
    return commands.run_case(commands.CASES[name], root)


def run_together(name: str, root: Path, count: int) -> list[commands.Outcome]:
    """Run a case in several processes that begin at the same moment; return how each ended."""
    commands.prepare_process()
    gate, opener = os.pipe()
    readers = []
    for _ in range(count):
        reader, writer = os.pipe()
        readers.append(reader)
        if os.fork() == 0:
            os.close(opener)
            os.read(gate, 1)  # It returns when the parent closes its end.
            outcome = commands.run_case(commands.CASES[name], root)
            os.write(writer, pickle.dumps(outcome))
            os._exit(0)
        os.close(writer)
    os.close(opener)
    outcomes = []
    for reader in readers:
        with os.fdopen(reader, "rb") as file:
            outcomes.append(pickle.load(file))
        os.wait()
    return outcomes
