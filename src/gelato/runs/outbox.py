"""What loggers of a run have received, so that a resumed run continues where they are.

metrics.csv is the original. A row is sent when a checkpoint covers it (once a minute), and never
earlier: a row that is sent is never computed again, so a run that was killed and resumed has each
step once. `loggers.json` in the run folder stores the id of the tracker's run and what was sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gelato.errors import InputError, first_line
from gelato.progress import note, working
from gelato.runs.folder import Run
from gelato.runs.loggers import Block, LoggedRun, Logger, make_loggers
from gelato.runs.records import Record, read_records

_STATE = "loggers"
_LABELS = ("step", "method", "seed", "phase")


@dataclass
class _State:
    """What a tracker has of a run, as `loggers.json` stores it."""

    id: str
    sent: list[tuple[str, int]] = field(default_factory=list)
    """The blocks that were sent, in order: folders with a metrics.csv, and a number of blocks."""
    finished: bool = False
    """Whether the table of results was sent."""

    @property
    def blocks(self) -> int:
        """Number of blocks sent."""
        return sum(count for _, count in self.sent)

    def count(self, source: str) -> int:
        """Return the number of blocks sent of one folder."""
        return sum(count for name, count in self.sent if name == source)

    def add(self, source: str) -> None:
        """Count one more block of a folder."""
        if self.sent and self.sent[-1][0] == source:
            self.sent[-1] = (source, self.sent[-1][1] + 1)
        else:
            self.sent.append((source, 1))

    def forget_after(self, blocks: int) -> None:
        """Forget all blocks but the first ones: the tracker lost the others."""
        kept: list[tuple[str, int]] = []
        for source, count in self.sent:
            if blocks > 0:
                kept.append((source, min(count, blocks)))
            blocks -= count
        self.sent, self.finished = kept, False


class _Sender:
    """One logger and its state. After a failure it sends nothing until the next start."""

    def __init__(self, run: Run, logger: Logger, settings: Mapping[str, Any]) -> None:
        self.run, self.logger, self.failed = run, logger, False
        before = self._read_states().get(logger.name)
        id = None if before is None else before["id"]
        try:
            new_id = logger.start(LoggedRun(run.folder, settings, id))
            present = logger.count_blocks()
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"cannot start {logger.name}: {first_line(error)}") from error
        self.state = _State(new_id)
        if before is not None:
            sent = [(source, count) for source, count in before["sent"]]
            self.state = _State(before["id"], sent, before["finished"])
        # A killed process may have sent blocks that it did not count, or counted blocks that the
        # tracker lost.
        self.skip = 0
        if present is not None:
            self.skip = max(0, present - self.state.blocks)
            if present < self.state.blocks:
                self.state.forget_after(present)
        self._save()

    def send_metrics(self, folder: Run) -> None:
        """Send the blocks of a folder's metrics.csv that were not sent before."""
        source = folder.folder.relative_to(self.run.folder).as_posix()
        blocks = _group_by_step(folder.metrics)
        first = self.state.count(source)
        try:
            for step in list(blocks)[first:]:
                if self.skip > 0:
                    self.skip -= 1
                else:
                    series = _read_series(blocks[step], folder.folder.name)
                    self.logger.log(Block(self.state.blocks, step, series))
                self.state.add(source)
        finally:
            if self.state.count(source) > first:
                self.logger.flush()
                self._save()

    def finish(self, records: Sequence[Record], files: Sequence[Path]) -> None:
        """Send the table of results, unless the tracker has it, and files."""
        if not self.state.finished:
            self.logger.log_records(records)
        for path in files:
            self.logger.log_file(path)
        self.logger.flush()
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
                f"{self.logger.name} failed ({first_line(error)}). The training continues without "
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
    run, loggers = Run(Path(folder)), make_loggers(log)
    with run.lock(), open_loggers(run, loggers, run.description) as outbox:
        outbox.finish(read_records(run.results), files)


def _find_metrics(folder: Path) -> list[Path]:
    """Return the folders of a training that have a metrics.csv: first models, then policies."""
    found = [*folder.glob("*/metrics.csv"), *folder.glob("policies/*/metrics.csv")]
    return sorted({path.parent for path in found}, key=lambda path: (len(path.parts), path))


def _group_by_step(rows: Sequence[Mapping[str, str]]) -> dict[int, list[Mapping[str, str]]]:
    """Return the rows of each block by its step."""
    blocks: dict[int, list[Mapping[str, str]]] = {}
    for row in rows:
        blocks.setdefault(int(row["step"]), []).append(row)
    return blocks


def _read_series(rows: Sequence[Mapping[str, str]], source: str) -> dict[str, dict[str, float]]:
    """Convert the rows of one step to numbers by series; empty cells are left out."""
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        metrics = {
            name: float(value) for name, value in row.items() if name not in _LABELS and value
        }
        series[f"{row.get('method', source)}-{row['seed']}"] = metrics
    return series
