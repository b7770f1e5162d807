"""Read 10,000,000 rows of Parquet: time and peak memory, compared with pandas on the same file.

python experiments/benchmarks/tables.py --rows 10000000

Every reading runs in its own process, GELATO and pandas in turn. Memory is the growth of the peak
resident set over what the process needs after its imports. Writes results/tables.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gelato.runs.records import merge_records

RESULTS = Path(__file__).parents[2] / "results" / "tables.json"
STATES, ACTIONS, EPISODE, GROUP = 8, 2, 1_000, 500_000
OPTIONS = "observations=x*,actions=u*,rewards=reward,episode=episode"


def write_file(path: Path, rows: int) -> None:
    """Write random episodes with row groups of half a million rows."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        columns = {f"x{i}": rng.normal(size=count).astype(np.float32) for i in range(STATES)}
        for i in range(ACTIONS):
            columns[f"u{i}"] = rng.uniform(-1, 1, count).astype(np.float32)
        columns["reward"] = rng.normal(size=count).astype(np.float32)
        columns["episode"] = (start + np.arange(count)) // EPISODE
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def read_peak() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_gelato(path: Path) -> dict[str, float]:
    """Read the file into transitions."""
    from gelato.data import parquet, reference, store  # noqa: F401 - imports are not measured

    before, begun, computed = read_peak(), time.perf_counter(), time.process_time()
    data = reference.load(f"parquet:{path},{OPTIONS}").transitions
    return {
        "seconds": time.perf_counter() - begun,
        "computing_seconds": time.process_time() - computed,
        "peak_bytes": read_peak() - before,
        "array_bytes": data.nbytes,
    }


def measure_pandas(path: Path) -> dict[str, float]:
    """Read the same columns into a data frame, and take the arrays of a transition from it."""
    import pandas
    import pyarrow.parquet  # noqa: F401 - imports are not measured

    before, begun, computed = read_peak(), time.perf_counter(), time.process_time()
    frame = pandas.read_parquet(path)
    read = time.perf_counter() - begun, time.process_time() - computed
    states = frame[[f"x{i}" for i in range(STATES)]].to_numpy(np.float32)
    actions = frame[[f"u{i}" for i in range(ACTIONS)]].to_numpy(np.float32)
    arrays = [states, actions, frame["reward"].to_numpy(np.float32)]
    return {
        "seconds": time.perf_counter() - begun,
        "computing_seconds": time.process_time() - computed,
        "seconds_of_read_parquet": read[0],
        "computing_seconds_of_read_parquet": read[1],
        "peak_bytes": read_peak() - before,
        "array_bytes": sum(array.nbytes for array in arrays),
    }


def main() -> None:
    """Write the file, read it in turn with both, and store the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--measure", choices=["gelato", "pandas"], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure = measure_gelato if arguments.measure == "gelato" else measure_pandas
        print(json.dumps(measure(arguments.file)))
        return
    found: dict[str, list[dict[str, float]]] = {"gelato": [], "pandas": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_file(path, arguments.rows)
        for _ in range(arguments.repeats):
            for name, measured in found.items():
                command = [sys.executable, __file__, "--measure", name, "--file", str(path)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                measured.append(json.loads(done.stdout))
    records = []
    for name, measured in found.items():
        medians = {key: float(np.median([each[key] for each in measured])) for key in measured[0]}
        medians["peak_over_arrays"] = medians["peak_bytes"] / medians["array_bytes"]
        records.append({"reader": name, "rows": arguments.rows, **medians})
        print(records[-1])
    merge_records(arguments.results, records, ("reader", "rows"))


if __name__ == "__main__":
    main()
