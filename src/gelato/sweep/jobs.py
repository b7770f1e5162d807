"""The jobs of a sweep, as a worker runs them: on this machine or on a node of a cluster."""

import io
import socket
import tarfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gelato.data.reference import load
from gelato.errors import InputError, first_line
from gelato.plugins import load_plugins
from gelato.runs.description import list_versions
from gelato.runs.folder import InUseError
from gelato.runs.loop import Row, watch_blocks
from gelato.runs.records import device
from gelato.sweep.groups import SweepGroup, make_methods, make_parts, plan_dataset
from gelato.sweep.spec import FieldError, Sweep, SweepSource, run_specification
from gelato.training.method import group_methods
from gelato.training.train import train

# Packages whose versions decide the results; every node needs the same.
_PACKAGES = ("gelato-rl", "jax", "jaxlib", "numpy")
_SECONDS_BETWEEN_REPORTS = 0.5
# A killed node's process may hold the lock of a group's folder for a moment.
_SECONDS_FOR_LOCK, _SECONDS_BETWEEN_TRIES = 120.0, 1.0
_LOG_BYTES = 2**20
# Specifications that this process has executed: a registration must happen only once.
_executed: set[str] = set()


@dataclass(frozen=True)
class Progress:
    """How far a job is. `left` is in seconds, for the stage that `title` names."""

    job: str
    node: str
    device: str = ""
    title: str = ""
    step: int = 0
    total: int = 0
    left: float | None = None
    last_return: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a job. `error` is one line, `log` the text of a log that only the node has."""

    job: str
    node: str
    value: Any = None
    error: str | None = None
    field: FieldError | None = None
    log: str = ""


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Job(ABC):
    """Work that one worker does. `versions` are those of the machine that started the sweep."""

    name: str
    sweep: Sweep
    source: SweepSource
    versions: dict[str, str] = field(default_factory=lambda: list_deciding_versions())

    @abstractmethod
    def work(self) -> Any:
        """Do the work and return its result."""

    @property
    def log(self) -> Path | None:
        """The file that the worker writes its messages to, or None."""
        return None

    @property
    def keeps_log(self) -> bool:
        """Whether the file stays where the worker wrote it."""
        return True


@dataclass(frozen=True)
class PlanJob(Job):
    """Load or make a dataset and list its groups. `name` is the reference."""

    def work(self) -> list[SweepGroup]:
        return plan_dataset(self.sweep, self.name)


@dataclass(frozen=True, kw_only=True)
class GroupJob(Job):
    """Train one group in a folder. With `scratch` the worker trains there and returns the folder.

    `scratch` is a folder on the node's own disk.
    """

    group: SweepGroup
    folder: Path
    scratch: Path | None = None

    @property
    def log(self) -> Path:
        place = self.folder if self.scratch is None else self.scratch / self.folder.name
        return place.parent / f"{place.name}.log"

    @property
    def keeps_log(self) -> bool:
        return self.scratch is None

    def work(self) -> bytes | None:
        """Train; return the packed folder if it lies on the node's own disk."""
        folder = self.folder if self.scratch is None else self.scratch / self.folder.name
        self._train(folder)
        return None if self.scratch is None else pack_folder(folder)

    def _train(self, folder: Path) -> None:
        group = self.group
        try:
            dataset = load(group.dataset)
        except InputError as error:
            raise InputError(
                f"{error}. The data was there when the sweep was planned; restore it, or put it on "
                "every node"
            ) from error
        if dataset.transitions.fingerprint() != group.fingerprint:
            raise InputError(
                f"{group.dataset}: is not the data that this sweep was planned with (fingerprints "
                "differ). Restore it, copy it to this node, or use a new folder"
            )
        parts = make_parts(self.sweep, dataset)
        methods = make_methods(self.sweep, parts)
        own = [method for method in methods if method.name in group.methods]
        if len(group_methods(own)) != 1 or len(own) != len(group.methods):
            raise InputError(
                f"{group.name}: the specification now makes other methods than when the sweep was "
                "planned. Restore it, or use a new folder"
            )
        begun = time.monotonic()
        while True:
            try:
                train(
                    dataset,
                    folder,
                    own,
                    seeds=group.seeds,
                    first_seed=group.first_seed,
                    settings=parts.settings,
                )
                return
            except InUseError:
                if time.monotonic() - begun > _SECONDS_FOR_LOCK:
                    raise
                time.sleep(_SECONDS_BETWEEN_TRIES)


def list_deciding_versions() -> dict[str, str]:
    """Return the versions of the packages that decide the results."""
    versions = list_versions()
    return {package: versions[package] for package in _PACKAGES}


def compare_versions(node: str, there: dict[str, str], here: dict[str, str]) -> None:
    """Raise an error if a node has other versions than the machine that started the sweep."""
    for package, wanted in here.items():
        found = there.get(package, "not installed")
        if found != wanted:
            raise InputError(
                f"node {node} has {package} {found}, but the sweep was started with {package} "
                f"{wanted}. Install the same version on every node"
            )


def run_job(job: Job, report: Report) -> Outcome:
    """Run a job in this process. Errors become part of the outcome; the log keeps tracebacks."""
    node = socket.gethostname()
    report(Progress(job.name, node))
    if job.log is None:
        return _run(job, node, report)
    try:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a", buffering=1) as file, redirect_stderr(file), redirect_stdout(file):
            outcome = _run(job, node, report)
    except OSError as error:
        return Outcome(job.name, node, error=describe_error(error))
    if job.keeps_log or outcome.error is None:
        return outcome
    return replace(outcome, log=job.log.read_text(errors="replace")[-_LOG_BYTES:])


def _run(job: Job, node: str, report: Report) -> Outcome:
    try:
        compare_versions(node, list_deciding_versions(), job.versions)
        load_plugins()
        if job.source.path is not None and job.source.text not in _executed:
            run_specification(job.source)
            _executed.add(job.source.text)
        with watch_blocks(_Watch(job.name, node, device(), report)):
            return Outcome(job.name, node, job.work())
    except FieldError as error:
        return Outcome(job.name, node, error=str(error), field=error)
    except Exception as error:
        traceback.print_exception(error)
        return Outcome(job.name, node, error=describe_error(error))


def describe_error(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    if isinstance(error, MemoryError):
        return "not enough memory; use fewer seeds per group"
    if "RESOURCE_EXHAUSTED" in str(error):
        return "the device ran out of memory; use fewer seeds per group, or more of the GPU"
    return f"{type(error).__name__}: {first_line(error)}"


class _Watch:
    """Reports the progress of training loops, not more often than is useful."""

    def __init__(self, job: str, node: str, device: str, report: Report) -> None:
        self._progress, self._report = Progress(job, node, device), report
        self._begun, self._reported = (0.0, 0), 0.0
        report(self._progress)

    def __call__(self, title: str, step: int, total: int, rows: Sequence[Row]) -> None:
        now, last_return = time.monotonic(), self._progress.last_return
        if title != self._progress.title:
            # The first block includes compilation, so it does not count.
            self._begun, self._reported = (0.0, 0), 0.0
        elif self._begun == (0.0, 0):
            self._begun = now, step
        returns = [float(row["return"]) for row in rows if row.get("return", "") != ""]
        if returns:
            newest = returns[-sum(row["step"] == rows[-1]["step"] for row in rows) :]
            last_return = float(np.median(newest))
        begun, first = self._begun
        left = None if step <= first or not begun else (now - begun) / (step - first)
        self._progress = replace(
            self._progress,
            title=title,
            step=step,
            total=total,
            left=None if left is None else left * (total - step),
            last_return=last_return,
        )
        if now - self._reported >= _SECONDS_BETWEEN_REPORTS or step == total:
            self._reported = now
            self._report(self._progress)


def pack_folder(folder: Path) -> bytes:
    """Return a folder as an uncompressed archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_skip_locks)
    return buffer.getvalue()


def _skip_locks(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name == ".lock" else entry


def unpack_folder(packed: bytes, folder: Path) -> None:
    """Write the archive of a folder into an empty one."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
