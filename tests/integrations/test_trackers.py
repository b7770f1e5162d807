"""W&B and MLflow have the numbers of metrics.csv after a run that was killed and resumed."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.logged_run import read_csv
from tests.runs.test_loggers import Numbers, kill_and_resume

pytestmark = pytest.mark.integration
PARTS = ["model", "policies/gelato"]


def read_wandb(path: Path) -> Iterator:
    """Yield the records of a .wandb file: LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def test_wandb_offline_has_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    kill_and_resume(folder, PARTS, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    (path,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    found: Numbers = {}
    rows, steps, config, tables = 0, [], {}, 0
    for record in read_wandb(path):
        for item in record.run.config.update:
            config[item.key] = item.value_json
        if record.WhichOneof("record_type") != "history":
            continue
        values = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        steps.append(int(values["_step"]))
        tables += any(name.startswith("records") for name in values)
        for name, value in values.items():
            if "/" in name and not name.startswith("records"):
                metric, _, series = name.partition("/")
                rows += 1
                found[series, metric, int(values["step"])] = float(value)
    assert found == pytest.approx(read_csv(folder)) and rows == len(found)
    assert steps == list(range(len(steps))) and tables == 1
    assert "four-rooms" in config["data"]


def test_mlflow_has_one_run_with_each_step_once(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    folder, uri = tmp_path / "run", f"sqlite:///{tmp_path}/mlflow.db"
    kill_and_resume(folder, PARTS, "mlflow", MLFLOW_TRACKING_URI=uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("gelato")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    found: Numbers = {}
    rows = 0
    for key in run.data.metrics:
        metric, _, series = key.partition("/")
        for entry in client.get_metric_history(run.info.run_id, key):
            rows += 1
            found[series.replace("λ:3 real:50", "λ=3 real=50%"), metric, entry.step] = entry.value
    assert found == pytest.approx(read_csv(folder)) and rows == len(found)
    assert run.info.status == "FINISHED" and run.data.params["data.reference"] == "four-rooms"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["records.csv"]
