"""A training that a test can kill: a fit and two policies, with loggers, as in `gelato.train`.

python -m tests.runs.logged_run FOLDER LOGGER...
"""

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from gelato.runs import loop
from gelato.runs.folder import Run, open_run
from gelato.runs.loggers import Logger, make_loggers
from gelato.runs.outbox import open_loggers

BLOCKS = 20
SETTINGS = {"data": {"reference": "four-rooms"}, "methods": [{"name": "gelato λ=3 real=50%"}]}
RECORDS = [{"method": "gelato", "seed": 0, "return": 1.5}, {"method": "bc", "seed": 0}]
FIT = [{"phase": "means", "seed": 0}, {"phase": "means", "seed": 1}]
POLICIES = [{"method": "gelato λ=3 real=50%", "seed": 0}, {"method": "bc", "seed": 0}]


def run_block(
    labels: list, pause: float, state: jnp.ndarray, updates: int
) -> tuple[jnp.ndarray, dict[str, np.ndarray]]:
    """One block, with metrics that depend on the step, and a return in every fourth block."""
    time.sleep(pause)
    step = int(state[0]) + updates
    draws = np.random.default_rng(step).normal(size=(2, len(labels)))
    return state + updates, {"loss": draws[0], "penalty": draws[1]}


def measure(labels: list, state: jnp.ndarray, step: int) -> dict[str, np.ndarray]:
    """Returns in every fourth block; other blocks have an empty cell."""
    del state
    due = step // 10 % 4 == 0
    return {"return": np.full(len(labels), step if due else np.nan)}


def train(folder: Path, log: Sequence[str | Logger], *, pause: float = 0.0) -> None:
    """Train, or resume; every second block ends with a checkpoint."""
    if pause:
        loop.CHECKPOINT_SECONDS = 1.5 * pause
    with (
        open_run(folder, "policies", **SETTINGS) as run,
        open_loggers(run, make_loggers(log), SETTINGS) as outbox,
    ):
        with loop.on_checkpoint(outbox.send_metrics):
            for name, labels in (("model", FIT), ("policies/gelato", POLICIES)):
                _train_part(folder / name, labels, pause)
        if not (folder / "results.json").exists():
            run.write_records(RECORDS)
        outbox.finish(RECORDS)


def _train_part(folder: Path, labels: list, pause: float) -> None:
    with open_run(folder, "part") as run:
        if run.has("last"):
            return
        state = loop.run_blocks(
            run,
            jnp.zeros(1),
            partial(run_block, labels, pause),
            labels=labels,
            total=10 * BLOCKS,
            length=10,
            title="counting",
            after=partial(measure, labels),
        )
        loop.finish(run, lambda: run.save("last", state))


def read_csv(folder: Path) -> dict[tuple[str, str, int], float]:
    """Read every number of all metrics.csv in the run, by series, metric and step."""
    found = {}
    for path in folder.rglob("metrics.csv"):
        for row in Run(path.parent).metrics:
            series = f"{row.get('method', path.parent.name)}-{row['seed']}"
            for metric, value in row.items():
                if metric not in ("step", "phase", "method", "seed") and value:
                    found[series, metric, int(row["step"])] = float(value)
    return found


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2:], pause=0.02)
