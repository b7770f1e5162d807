"""Worker processes that step simulators, on all cores."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker

from gelato.errors import InputError

COUNT_VARIABLE = "GELATO_WORKERS"
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Starting workers changes the environment and the main module for a moment: one thread at a time.
_STARTING = threading.Lock()


def count_workers() -> int:
    """Return the number of worker processes: GELATO_WORKERS, or one per core."""
    given = os.environ.get(COUNT_VARIABLE, "")
    if not given:
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"{COUNT_VARIABLE}={given}: must be a whole number of at least 1")
    return int(given)


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Yield a pool of processes with one linear-algebra thread each, or None for one worker."""
    if workers == 1:
        yield None
        return
    # Spawn the processes: a forked child of a process that has started JAX's threads can hang.
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=exit_with_parent
    )
    try:
        with _STARTING, _limit_threads(), protect_start():
            # One task per worker makes the pool start all workers now.
            for _ in range(workers):
                pool.submit(int)
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _limit_threads() -> Iterator[None]:
    """Give processes that start meanwhile one linear-algebra thread each."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def protect_start() -> Iterator[None]:
    """Make new processes ignore Ctrl-C, which the parent handles, and not run the user's script."""
    main = sys.modules["__main__"]
    hidden: dict[str, object] = {}
    for name in ("__file__", "__spec__"):
        if name in main.__dict__:
            hidden[name] = main.__dict__.pop(name)
    main.__dict__["__spec__"] = None
    # Starting the tracker unblocks the signal, so start it before blocking the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        main.__dict__.update(hidden)


def exit_with_parent() -> None:
    """Make a worker exit with its parent, but not when `timeout` signals the process group.

    The parent may still need its workers to finish a block.
    """
    os.setpgrp()

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
