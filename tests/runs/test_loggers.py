"""What trackers receive: the numbers of metrics.csv, each step once, also after a kill."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tensorboardX.proto import event_pb2

from gelato.errors import InputError
from gelato.runs import loggers, loop
from gelato.runs.folder import Run
from gelato.runs.loggers import Block, LoggedRun, Logger, make_loggers, register_logger
from gelato.runs.outbox import log_files
from tests.runs import logged_run
from tests.runs.logged_run import BLOCKS, RECORDS, read_csv, train

Numbers = dict[tuple[str, str, int], float]
RUN_BLOCK = logged_run.run_block


class Remembering(Logger):
    """A tracker in memory, which outlives the process of the training."""

    name = "memory"

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.ids: list[str | None] = []
        self.records: list = []
        self.files: list[Path] = []
        self.ends: list[bool] = []
        self.broken = False

    def start(self, run: LoggedRun) -> str:
        self.ids.append(run.id)
        return "run-1"

    def log(self, block: Block) -> None:
        if self.broken:
            raise ConnectionError("no network\nat all")
        self.blocks.append(block)

    def log_records(self, records: Sequence) -> None:
        self.records.append(records)

    def log_file(self, path: Path) -> None:
        self.files.append(path)

    def close(self, *, finished: bool) -> None:
        self.ends.append(finished)

    @property
    def numbers(self) -> Numbers:
        return {
            (series, metric, block.step): value
            for block in self.blocks
            for series, metrics in block.series.items()
            for metric, value in metrics.items()
        }


class Counting(Remembering):
    """A tracker that can tell how many blocks it has."""

    def count_blocks(self) -> int:
        return len(self.blocks)


class Killed(BaseException):
    """The end of a process that nobody handles."""


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 60.0)


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kill the training in this block; every second block ends with a checkpoint."""

    def plan(last: int) -> None:
        counted = [0]

        def run_block(*given):
            counted[0] += 1
            loop.CHECKPOINT_SECONDS = -1.0 if counted[0] % 2 == 0 else 60.0
            if counted[0] > last:
                raise Killed
            return RUN_BLOCK(*given)

        monkeypatch.setattr(logged_run, "run_block", run_block)

    return plan


def assert_complete(logger: Remembering, folder: Path) -> None:
    assert [block.number for block in logger.blocks] == list(range(2 * BLOCKS))
    assert logger.numbers == read_csv(folder)


def test_a_logger_receives_every_number_of_the_csv_once_and_the_results(tmp_path: Path) -> None:
    logger = Remembering()
    train(tmp_path / "run", [logger])
    assert_complete(logger, tmp_path / "run")
    assert set(logger.blocks[0].series) == {"model-0", "model-1"}
    assert {"loss/bc-0", "return/bc-0"} <= logger.blocks[-1].flatten().keys()
    assert logger.records == [RECORDS] and logger.ends == [True]


def test_a_killed_run_sends_only_what_its_checkpoint_covers_and_later_the_rest(
    tmp_path: Path, kill_after: Callable[[int], None]
) -> None:
    logger = Remembering()
    kill_after(13)
    with pytest.raises(Killed):
        train(tmp_path, [logger])
    assert len(logger.blocks) == 12 and logger.ends == [False]
    assert len(Run(tmp_path / "model").metrics) == 2 * 13
    kill_after(BLOCKS)  # kills the training of the policies
    with pytest.raises(Killed):
        train(tmp_path, [logger])
    kill_after(1_000)
    train(tmp_path, [logger])
    assert_complete(logger, tmp_path)
    assert logger.ids == [None, "run-1", "run-1"] and logger.ends == [False, False, True]
    assert len(logger.records) == 1


def test_a_tracker_that_has_more_blocks_than_were_counted_does_not_get_them_again(
    tmp_path: Path, kill_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Counting()
    kill_after(13)
    with pytest.raises(Killed):
        train(tmp_path, [logger])
    before = (tmp_path / "loggers.json").read_bytes()
    kill_after(6)
    with pytest.raises(Killed):
        train(tmp_path, [logger])
    assert len(logger.blocks) > 12
    # As if the process had been killed between the two.
    with Run(tmp_path).write("loggers.json") as partial:
        partial.write_bytes(before)
    kill_after(1_000)
    train(tmp_path, [logger])
    assert_complete(logger, tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 30])
def test_a_tracker_gets_again_what_it_lost(tmp_path: Path, kept: int) -> None:
    logger = Counting()
    train(tmp_path, [logger])
    del logger.blocks[kept:]
    train(tmp_path, [logger])
    assert_complete(logger, tmp_path)
    assert len(logger.records) == 2


def test_a_finished_run_can_be_sent_to_another_tracker_afterwards(tmp_path: Path) -> None:
    train(tmp_path, [])
    logger = Remembering()
    train(tmp_path, [logger])
    assert_complete(logger, tmp_path)
    train(tmp_path, [logger])
    assert len(logger.blocks) == 2 * BLOCKS and logger.records == [RECORDS]


def test_a_file_written_later_reaches_the_tracker(tmp_path: Path) -> None:
    logger, report = Remembering(), tmp_path / "report.html"
    train(tmp_path / "run", [logger])
    log_files(tmp_path / "run", logger, [report])
    assert logger.files == [report] and logger.ids == [None, "run-1"]
    assert_complete(logger, tmp_path / "run")


def test_a_tracker_that_fails_does_not_stop_the_training_and_gets_the_rest_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = Remembering()
    logger.broken = True
    train(tmp_path, [logger])
    error = capsys.readouterr().err
    assert "memory failed (no network). The training continues" in error
    assert error.count("memory failed") == 1 and (tmp_path / "results.json").exists()
    logger.broken = False
    train(tmp_path, [logger])
    assert_complete(logger, tmp_path)


def test_a_tracker_that_cannot_start_is_one_line_before_any_work(tmp_path: Path) -> None:
    class Offline(Remembering):
        def start(self, _: LoggedRun) -> str:
            raise ConnectionError("no route to host\nTraceback: many lines")

    with pytest.raises(InputError, match=r"^cannot start memory: no route to host$"):
        train(tmp_path, [Offline()])
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_missing_package_is_one_line_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = f"{package} is not installed. Install it with: pip install 'gelato-rl[{name}]'"
    with pytest.raises(InputError) as error:
        make_loggers([name])
    assert str(error.value) == message


def test_names_of_loggers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "_LOGGERS", dict(loggers._LOGGERS))
    with pytest.raises(InputError, match="choose from tensorboard, wandb, mlflow"):
        make_loggers("neptune")
    register_logger("memory", Remembering, "Keeps metrics in memory.")
    with pytest.raises(InputError, match="Name each logger once"):
        make_loggers(["memory", Remembering()])
    with pytest.raises(InputError, match="already registered"):
        register_logger("memory", Remembering, "Again.")


def read_tensorboard(folder: Path) -> tuple[Numbers, int]:
    """Read event files as TensorBoard does; also return how many values it would drop."""
    found: Numbers = {}
    read = 0
    for series in (path for path in folder.iterdir() if path.name != "run"):
        for file in sorted(series.glob("events*")):
            data, at = file.read_bytes(), 0
            while at < len(data):
                (size,) = struct.unpack("<Q", data[at : at + 8])
                event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
                at += 16 + size
                if event.WhichOneof("what") == "session_log":
                    # A new process drops what an older one wrote from this step on.
                    old = [key for key in found if key[0] == series.name and key[2] >= event.step]
                    for key in old:
                        del found[key]
                for value in event.summary.value:
                    found[series.name, value.tag, event.step] = value.simple_value
                    read += 1
    return found, read - len(found)


def test_tensorboard_has_the_numbers_of_a_run_that_was_killed_and_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_and_resume(folder, ["policies/gelato"], "tensorboard")
    found, dropped = read_tensorboard(folder / "tensorboard")
    assert found == pytest.approx(read_csv(folder)) and dropped == 0


def kill_and_resume(folder: Path, parts: Sequence[str], log: str, **environment: str) -> None:
    """Kill a training in each of these parts, and then run it to its end."""
    command = [sys.executable, "-m", "tests.runs.logged_run", str(folder), log]
    settings = {**os.environ, **environment}
    for part in parts:
        process = subprocess.Popen(command, env=settings)
        try:
            wait_for_rows(process, folder / part / "metrics.csv", 12)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert process.returncode == -signal.SIGKILL
    subprocess.run(command, env=settings, check=True)


def wait_for_rows(process: subprocess.Popen, path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, "the training ended too early"
        assert time.monotonic() < deadline, f"{path} has too few rows"
        time.sleep(0.002)
