"""The interface of loggers, which send metrics to experiment trackers, and their registry.

Add your own tracker:

    class Mine(Logger):
        name = "mine"

        def start(self, run: LoggedRun) -> str: ...
        def log(self, block: Block) -> None: ...

    gelato.train(data, run, log=("wandb", Mine()))
    register_logger("mine", Mine, "What it does.")  # for `gelato train --log mine`
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gelato.errors import InputError
from gelato.runs.records import Record


@dataclass(frozen=True)
class LoggedRun:
    """A run as a tracker sees it."""

    folder: Path
    """The run folder."""
    settings: Mapping[str, Any]
    """Data, methods, settings and seeds, as in `run.json`."""
    id: str | None
    """What `start` returned when the run began; None at the first start."""

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
        """Return how many blocks the tracker has, if it can tell, after `start`.

        After a kill this can be more or less than the run folder says. Only the blocks that the
        tracker lacks are sent.
        """
        return None

    def flush(self) -> None:  # noqa: B027 - optional
        """Store what was logged so far, so that a kill of this process cannot lose it."""

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
