"""A user's own log from end to end: train, select, export, and only then look at the truth.

python experiments/benchmarks/own_log.py ../shared/realdata/pendulum/pendulum_v1.1.0.h5

The log is a replay buffer of another learner on Pendulum, and names no environment. `gelato train`
trains the small grid with two seeds, `select` chooses from the log alone, `export` writes ONNX.
Then every policy runs in Pendulum-v1, the exported one with onnxruntime. Writes
results/own_log.json.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime

from experiments.benchmarks.selection import KEYS, make_records
from experiments.tables import own_log_table, selection_table
from gelato.cli import main as run_command
from gelato.data.reference import load
from gelato.policy.evaluate import evaluate_policy
from gelato.runs.records import Record, merge_records, read_records
from gelato.selection import select
from gelato.training.policies import evaluate_run

RESULTS = Path(__file__).parents[2] / "results" / "own_log.json"
ENVIRONMENT, NAME = "Pendulum-v1", "pendulum log"
TRAINING = ["--preset", "small", "--seeds", "2", "--updates", "12000", "--model-updates", "6000"]


def main() -> None:
    """Run every step; finished ones are read from the run folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path, help="HDF5 file of the log")
    parser.add_argument("--run", type=Path, default=Path("runs/own-log"))
    parser.add_argument("--episodes", type=int, default=50, help="real episodes per policy")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    reference = f"file:{arguments.log},low=-2,high=2"
    run_command(["train", reference, "--run", str(arguments.run), *TRAINING])
    graph = arguments.run / "policy.onnx"
    run_command(["export", str(arguments.run), "--onnx", str(graph)])
    found = select(arguments.run, all_estimators=True)
    # From here on true returns are measured; nothing above reads them.
    measured = evaluate_run(arguments.run, arguments.episodes, environment=ENVIRONMENT)
    returns = {(str(row["method"]), int(row["seed"])): float(row["return"]) for row in measured}
    records = make_records(NAME, found, returns, load(reference))
    merge_records(arguments.results, [*records, _exported(graph, arguments.episodes)], KEYS)
    print(selection_table(records))
    print(own_log_table(read_records(arguments.results)))
    print(json.dumps(found.describe()["chosen"]), found.verdict)


def _exported(graph: Path, episodes: int) -> Record:
    """Run the exported policy with onnxruntime and describe its return."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def act(observation: np.ndarray) -> np.ndarray:
        batch = np.asarray(observation, np.float32)[None]
        return session.run(None, {name: batch})[0][0]

    evaluation = evaluate_policy(act, ENVIRONMENT, episodes=episodes)
    error = float(evaluation.returns.std(ddof=1) / np.sqrt(episodes))
    return {
        "dataset": NAME,
        "estimator": "exported policy, real episodes",
        "estimate": evaluation.mean,
        "low": evaluation.mean - 1.96 * error,
        "high": evaluation.mean + 1.96 * error,
    }


if __name__ == "__main__":
    main()
