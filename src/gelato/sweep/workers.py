"""The interface of workers, and a worker process on this machine that runs jobs in order."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from gelato.runs.signals import remember_interrupts
from gelato.sweep.jobs import Job, Outcome, Progress, run_job
from gelato.tasks.workers import COUNT_VARIABLE, exit_with_parent, protect_start

Event = Progress | Outcome
_SECONDS_TO_STOP = 60.0


class AbstractWorkers(ABC):
    """Runs jobs somewhere. Use it in a `with` block."""

    def __enter__(self) -> "AbstractWorkers":
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what still runs; it keeps its checkpoints."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Iterator[Event | None]:
        """Run jobs; yield their progress, one outcome for each, and None when nothing is new."""

    @abstractmethod
    def sees(self, marker: str) -> bool:
        """Return whether all workers see this file."""


def limit_cores(cores: int | None) -> dict[str, str]:
    """Return the environment of a process that uses this number of cores.

    The number of threads changes the rounding of sums, so it is part of what makes two runs equal.
    """
    if cores is None:
        return {}
    return dict.fromkeys(("NPROC", "OMP_NUM_THREADS", COUNT_VARIABLE), str(cores))


@dataclass
class LocalWorker(AbstractWorkers):
    """One process on this machine. `cores` limits its threads; default: all cores."""

    cores: int | None = None
    _process: BaseProcess | None = None
    _pipe: Connection | None = None

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_SECONDS_TO_STOP)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = None

    def sees(self, marker: str) -> bool:
        return Path(marker).exists()

    def run(self, jobs: Sequence[Job]) -> Iterator[Event | None]:
        for job in jobs:
            if self._process is None:
                self._start()
            yield from self._run_one(job)

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        with change_environment(limit_cores(self.cores)), protect_start():
            self._process.start()
        theirs.close()

    def _run_one(self, job: Job) -> Iterator[Event | None]:
        assert self._pipe is not None and self._process is not None
        try:
            self._pipe.send(job)
            while True:
                if not self._pipe.poll(0.25):
                    yield None
                    continue
                event: Event = self._pipe.recv()
                yield event
                if isinstance(event, Outcome):
                    return
        except (EOFError, ConnectionError):
            self._process.join()
            code, self._process = self._process.exitcode or 0, None
            yield Outcome(job.name, os.uname().nodename, error=_describe_exit(code))


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, perhaps because memory ran out"
    if code < 0:
        return f"its process ended with {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


@contextmanager
def change_environment(values: dict[str, str]) -> Iterator[None]:
    """Give processes that start meanwhile these environment variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _serve(pipe: Connection) -> None:
    """Run jobs that arrive, until the other side closes or SIGTERM arrives."""
    exit_with_parent()
    remember_interrupts()
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            job: Job = pipe.recv()
            pipe.send(run_job(job, pipe.send))
