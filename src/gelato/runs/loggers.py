"""Send the metrics of a training to experiment trackers, in addition to metrics.csv.

metrics.csv is the original. A row is sent when a checkpoint covers it (once a minute), and never
earlier: a row that is sent is never computed again, so a run that was killed and resumed has each
step once. `loggers.json` in the run folder stores the id of the tracker's run and what was sent.

Add your own tracker:

    class Mine(Logger):
        name = "mine"

        def start(self, run: LoggedRun) -> str: ...
        def log(self, block: Block) -> None: ...

    gelato.train(data, run, log=("wandb", Mine()))
    register_logger("mine", Mine, "What it does.")  # for `gelato train --log mine`
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gelato.errors import InputError
from gelato.progress import note, working
from gelato.runs.folder import Run
from gelato.runs.records import Record

_LABELS = ("step", "method", "seed", "phase")
_STATE = "loggers"


@dataclass(frozen=True)
class LoggedRun:
    """A run as a tracker sees it."""

    folder: Path
    """The run folder."""
    settings: Mapping[str, Any]
    """Data, methods, settings and seeds, as in `run.json`."""
    id: str | None
    """What `start` returned when the run began; None at the first start."""
    blocks: int
    """Number of blocks that were sent before."""

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.folder.absolute().name


@dataclass(frozen=True)
class Block:
    """The metrics of one block of updates."""

    number: int
    """The number of this block among all blocks of the run. It is the same after a resume."""
    step: int
    """Updates so far."""
    series: Mapping[str, Mapping[str, float]]
    """The metrics of every series. `gelato-0` is the policy of a method and a seed, `model-0` the
    latent model of a seed."""

    def flatten(self) -> dict[str, float]:
        """Return all metrics under names such as `return/gelato-0`."""
        flat = {}
        for series, metrics in self.series.items():
            for metric, value in metrics.items():
                flat[f"{metric}/{series}"] = value
        return flat


class Logger(ABC):
    """Sends the metrics of one training to a tracker.

    An exception in `log` does not stop the training. The rows are sent when the command is
    repeated.
    """

    name: str
    """The name of the tracker. The run folder stores the tracker's state under this name."""

    @abstractmethod
    def start(self, run: LoggedRun) -> str:
        """Start a run in the tracker, or continue the run `run.id`; return its id."""

    @abstractmethod
    def log(self, block: Block) -> None:
        """Log the metrics of one block. Blocks arrive in order, and each of them once."""

    def count_blocks(self) -> int | None:
        """Return how many blocks the tracker has, if it can tell.

        After a kill it may have more than the run folder knows; these are not sent again.
        """
        return None

    def log_records(self, records: Sequence[Record]) -> None:  # noqa: B027 - optional
        """Log the table of results at the end."""

    def log_file(self, path: Path) -> None:  # noqa: B027 - optional
        """Log a file, such as the report."""

    def close(self, *, finished: bool) -> None:  # noqa: B027 - optional
        """Wait until everything is sent. `finished`: the training reached its end."""


@dataclass(frozen=True)
class RegisteredLogger:
    """A logger's name, the function that makes it, and one sentence of help."""

    name: str
    make: Callable[[], Logger]
    help: str


_LOGGERS: dict[str, RegisteredLogger] = {}


def register_logger(name: str, make: Callable[[], Logger], help: str) -> None:
    """Add a logger to `gelato train --log`. `make` raises an `InputError` if a package lacks."""
    if name in _LOGGERS:
        raise InputError(f"logger {name!r} is already registered; choose another name")
    _LOGGERS[name] = RegisteredLogger(name, make, help)


def list_loggers() -> tuple[RegisteredLogger, ...]:
    """List the loggers in the order of their registration."""
    return tuple(_LOGGERS.values())


def make_loggers(log: str | Logger | Sequence[str | Logger]) -> list[Logger]:
    """Make the loggers of these names; a `Logger` is used as it is."""
    loggers: list[Logger] = []
    for given in [log] if isinstance(log, str | Logger) else log:
        if isinstance(given, Logger):
            loggers.append(given)
        elif given in _LOGGERS:
            loggers.append(_LOGGERS[given].make())
        else:
            raise InputError(f"no logger is called {given!r}; choose from {', '.join(_LOGGERS)}")
    names = [logger.name for logger in loggers]
    if len(set(names)) < len(names):
        raise InputError(f"loggers: {', '.join(names)}. Name each logger once")
    return loggers


@dataclass
class _State:
    """What a tracker has of a run, as `loggers.json` stores it."""

    id: str
    blocks: int = 0
    """Number of blocks sent."""
    steps: dict[str, int] = field(default_factory=dict)
    """The last step sent of each folder with a metrics.csv."""
    finished: bool = False
    """Whether the table of results was sent."""


class _Sender:
    """One logger and its state. After a failure it sends nothing until the next start."""

    def __init__(self, run: Run, logger: Logger, settings: Mapping[str, Any]) -> None:
        self.run, self.logger, self.failed = run, logger, False
        stored = self._read_states().get(logger.name)
        before = None if stored is None else _State(**stored)
        id, blocks = (None, 0) if before is None else (before.id, before.blocks)
        try:
            new_id = logger.start(LoggedRun(run.folder, settings, id, blocks))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"cannot start {logger.name}: {_describe(error)}") from error
        self.state = before or _State(new_id)
        present = logger.count_blocks()
        self.skip = 0 if present is None else max(0, present - self.state.blocks)
        self._save()

    def send_metrics(self, folder: Run) -> None:
        """Send the rows of a folder's metrics.csv that were not sent before."""
        source = str(folder.folder.relative_to(self.run.folder))
        last = self.state.steps.get(source, -1)
        for step, rows in _group_by_step(folder.metrics):
            if step <= last:
                continue
            if self.skip > 0:
                self.skip -= 1
            else:
                series = _read_series(rows, folder.folder.name)
                self.logger.log(Block(self.state.blocks, step, series))
            self.state.blocks += 1
            self.state.steps[source] = step
        if self.state.steps.get(source, -1) > last:
            self._save()

    def finish(self, records: Sequence[Record], files: Sequence[Path]) -> None:
        """Send the table of results and files, once."""
        if self.state.finished:
            return
        self.logger.log_records(records)
        for path in files:
            self.logger.log_file(path)
        self.state.finished = True
        self._save()

    def attempt(self, send: Callable[["_Sender"], None]) -> None:
        """Send something. A failure is a note, because the training is worth more than its log."""
        if self.failed:
            return
        try:
            send(self)
        except Exception as error:
            self.failed = True
            note(
                f"{self.logger.name} failed ({_describe(error)}). The training continues without "
                "it; repeat the command afterwards to send the rest"
            )

    def _read_states(self) -> dict[str, Any]:
        exists = (self.run.folder / f"{_STATE}.json").exists()
        return self.run.read_json(_STATE) if exists else {}

    def _save(self) -> None:
        states = {**self._read_states(), self.logger.name: asdict(self.state)}
        self.run.write_json(_STATE, states)


class Outbox:
    """The loggers of one run, and what each of them has received."""

    def __init__(self, run: Run, senders: Sequence[_Sender]) -> None:
        self._run, self._senders = run, senders
        self.finished = False

    def send_metrics(self, folder: Run) -> None:
        """Send the rows of metrics.csv in a folder of the run. No later step may replace them."""
        for sender in self._senders:
            sender.attempt(lambda sender: sender.send_metrics(folder))

    def finish(self, records: Sequence[Record], files: Sequence[Path] = ()) -> None:
        """Send what is missing of a finished training, its table of results and files."""
        if not self._senders:
            return
        with working("sending the results to the loggers"):
            for path in _find_metrics(self._run.folder):
                self.send_metrics(Run(path))
            for sender in self._senders:
                sender.attempt(lambda sender: sender.finish(records, files))
        self.finished = True

    def log_file(self, path: Path) -> None:
        """Send a file."""
        for sender in self._senders:
            sender.attempt(lambda sender: sender.logger.log_file(path))


@contextmanager
def open_loggers(
    run: Run, loggers: Sequence[Logger], settings: Mapping[str, Any]
) -> Iterator[Outbox]:
    """Start the loggers of a run, or continue what they logged before, and yield them."""
    senders: list[_Sender] = []
    outbox = Outbox(run, senders)
    try:
        for logger in loggers:
            senders.append(_Sender(run, logger, settings))
        yield outbox
    finally:
        for sender in senders:
            sender.attempt(lambda sender: sender.logger.close(finished=outbox.finished))


def log_files(
    folder: Path | str, log: str | Logger | Sequence[str | Logger], files: Sequence[Path]
) -> None:
    """Send files to the loggers of a finished run, for example a report that was written later."""
    run = Run(Path(folder))
    with run.lock(), open_loggers(run, make_loggers(log), run.description) as outbox:
        for path in files:
            outbox.log_file(path)
        outbox.finished = True


def _find_metrics(folder: Path) -> list[Path]:
    """Return the folders of a training that have a metrics.csv: first models, then policies."""
    found = [*folder.glob("*/metrics.csv"), *folder.glob("policies/*/metrics.csv")]
    return sorted({path.parent for path in found}, key=lambda path: (len(path.parts), path))


def _group_by_step(rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Yield the rows of each block with its step; the rows of a block are neighbours."""
    by_step: dict[int, list[dict[str, str]]] = {}
    for row in rows:
        by_step.setdefault(int(row["step"]), []).append(dict(row))
    yield from by_step.items()


def _read_series(rows: Sequence[Mapping[str, str]], source: str) -> dict[str, dict[str, float]]:
    """Convert the rows of one step to numbers by series; empty cells are left out."""
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        metrics = {
            name: float(value) for name, value in row.items() if name not in _LABELS and value
        }
        series[f"{row.get('method', source)}-{row['seed']}"] = metrics
    return series


def _describe(error: Exception) -> str:
    """Return the first line of an error, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# The packages of the built-in loggers are imported on use.


def _make_tensorboard() -> Logger:
    from gelato.runs.trackers import TensorBoard

    return TensorBoard()


def _make_wandb() -> Logger:
    from gelato.runs.trackers import WeightsAndBiases

    return WeightsAndBiases()


def _make_mlflow() -> Logger:
    from gelato.runs.trackers import MLflow

    return MLflow()


register_logger("tensorboard", _make_tensorboard, "TensorBoard files in the run folder.")
register_logger("wandb", _make_wandb, "Weights & Biases, online or offline.")
register_logger("mlflow", _make_mlflow, "MLflow, at MLFLOW_TRACKING_URI.")
