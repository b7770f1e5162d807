"""The built-in loggers: TensorBoard, Weights & Biases, MLflow. Each needs its extra.

TensorBoard files lie in the run folder. W&B and MLflow store runs where they always do, as their
environment variables say (WANDB_PROJECT, WANDB_DIR, WANDB_MODE, MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME).
"""

import csv
import io
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gelato.errors import import_extra
from gelato.progress import note
from gelato.runs.loggers import Block, LoggedRun, Logger
from gelato.runs.records import Record

_PROJECT = "gelato"
# MLflow accepts at most so many metrics and parameters in one request, and longer values nowhere.
_METRICS_PER_REQUEST, _PARAMETERS_PER_REQUEST = 1_000, 100
_LONGEST_PARAMETER = 500
_BLOCKS_TAG = "gelato.blocks"


class TensorBoard(Logger):
    """One TensorBoard run per series, in the folder `tensorboard` of the run.

    It writes events itself: the queue of `SummaryWriter` loses what is in it when the process is
    killed.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        import_extra("tensorboardX", self.name)
        self._summary = import_module("tensorboardX.summary")
        self._events = import_module("tensorboardX.proto.event_pb2")
        self._make_writer = import_module("tensorboardX.event_file_writer").EventsWriter
        self._writers: dict[str, Any] = {}

    def start(self, run: LoggedRun) -> str:
        self._folder = run.folder / "tensorboard"
        if run.id is None:
            settings = json.dumps(run.settings, indent=2)
            self._write("run", 0, self._summary.text("settings", f"```\n{settings}\n```"))
        return self.name

    def log(self, block: Block) -> None:
        for series, metrics in block.series.items():
            for metric, value in metrics.items():
                self._write(series, block.step, self._summary.scalar(metric, value))

    def log_records(self, records: Sequence[Record]) -> None:
        columns, rows = _tabulate(records)
        lines = [columns, ["---"] * len(columns)]
        lines += [[str(value) for value in row] for row in rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        self._write("run", 0, self._summary.text("records", table))

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self, *, finished: bool) -> None:
        del finished
        for writer in self._writers.values():
            writer.close()

    def _write(self, series: str, step: int, summary: Any) -> None:
        event, now = self._events.Event, time.time()
        if series not in self._writers:
            folder = self._folder / series
            folder.mkdir(parents=True, exist_ok=True)
            writer = self._make_writer(str(folder / "events"), f".{os.getpid()}")
            # A killed process may have written this step already; TensorBoard then drops the older
            # values from this step on. Texts have no steps, and a later one replaces an older one.
            if series != "run":
                start = self._events.SessionLog(status=self._events.SessionLog.START)
                writer.write_event(event(wall_time=now, step=step, session_log=start))
            self._writers[series] = writer
        self._writers[series].write_event(event(wall_time=now, step=step, summary=summary))


class WeightsAndBiases(Logger):
    """One W&B run per run folder, online or offline as W&B is configured."""

    name = "wandb"

    def __init__(self) -> None:
        self._wandb = import_extra("wandb", self.name)

    def start(self, run: LoggedRun) -> str:
        id = run.id or secrets.token_hex(4)
        # Without `console="off"`, W&B would replace the output streams that the live table uses.
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run.name,
            id=id,
            resume="allow",
            config=dict(run.settings),
            settings=self._wandb.Settings(console="off", silent=True),
        )
        # Training steps start again with every fit, and W&B's own step must not, so it counts
        # blocks.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        if self._run.offline:
            self._remove_older_folders()
        else:
            note(f"W&B run: {self._run.url}")
        return id

    def _remove_older_folders(self) -> None:
        """Remove the offline folders of earlier processes; this process writes all blocks again.

        W&B writes its files every 15 seconds, so a killed process leaves an incomplete folder. It
        also cannot upload two offline folders as one run reliably.
        """
        folder = Path(self._run.settings.sync_dir)
        note(f"W&B is offline; afterwards upload the run by: wandb sync {folder}")
        for older in folder.parent.glob(f"offline-run-*-{self._run.id}"):
            if older.name != folder.name:
                shutil.rmtree(older, ignore_errors=True)

    def count_blocks(self) -> int:
        # An online run continues at the step after its last; each block has a step of its own.
        return int(self._run.starting_step)

    def log(self, block: Block) -> None:
        values = {"step": block.step, **block.flatten()}
        self._run.log(values, step=block.number, commit=True)

    def log_records(self, records: Sequence[Record]) -> None:
        columns, rows = _tabulate(records)
        self._run.log({"records": self._wandb.Table(columns=columns, data=rows)})

    def log_file(self, path: Path) -> None:
        self._run.save(str(path.absolute()), base_path=str(path.absolute().parent), policy="now")

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow(Logger):
    """One MLflow run per run folder, at MLFLOW_TRACKING_URI."""

    name = "mlflow"

    def __init__(self) -> None:
        mlflow = import_extra("mlflow", self.name)
        self._entities = import_module("mlflow.entities")
        self._where = mlflow.get_tracking_uri()
        self._client = mlflow.MlflowClient()

    def start(self, run: LoggedRun) -> str:
        if run.id is not None:
            self._id = run.id
            self._client.update_run(run.id, status="RUNNING")
            return run.id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        parameters = []
        for key, value in _flatten(run.settings).items():
            parameters.append(self._entities.Param(_clean(key), value[:_LONGEST_PARAMETER]))
        for part in _divide(parameters, _PARAMETERS_PER_REQUEST):
            self._client.log_batch(self._id, params=part)
        note(f"MLflow run {self._id} in experiment {name}")
        return self._id

    def count_blocks(self) -> int | None:
        tags = self._client.get_run(self._id).data.tags
        return int(tags.get(_BLOCKS_TAG, 0))

    def log(self, block: Block) -> None:
        now = int(1000 * time.time())
        metrics = []
        for key, value in block.flatten().items():
            metrics.append(self._entities.Metric(_clean(key), value, now, block.step))
        *others, last = _divide(metrics, _METRICS_PER_REQUEST)
        for part in others:
            self._client.log_batch(self._id, metrics=part)
        # The number of blocks arrives together with the end of the block.
        tag = self._entities.RunTag(_BLOCKS_TAG, str(block.number + 1))
        self._client.log_batch(self._id, metrics=last, tags=[tag])

    def log_records(self, records: Sequence[Record]) -> None:
        columns, rows = _tabulate(records)
        text = io.StringIO()
        csv.writer(text).writerows([columns, *rows])
        self._client.log_text(self._id, text.getvalue(), "records.csv")

    def log_file(self, path: Path) -> None:
        self._client.log_artifact(self._id, str(path))

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def _tabulate(records: Sequence[Record]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of a table; a record may lack some fields."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    return columns, [[record.get(name) for name in columns] for record in records]


def _clean(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w./ :-]", "_", name.replace("=", ":").replace("%", ""))


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings under names such as `settings.episodes`."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for number, entry in enumerate(value):
                flat |= _flatten(entry, f"{prefix}{key}.{number}.")
        else:
            flat[prefix + key] = str(value)
    return flat


def _divide(values: list[Any], size: int) -> list[list[Any]]:
    return [values[first : first + size] for first in range(0, max(1, len(values)), size)]
