"""Compare exact and coded neighbour search in a column on the disk.

python -m experiments.benchmarks.neighbours --points 1000000

The points lie near a curved surface of six dimensions in a space of 23, as embeddings do. Exact
search holds all points in memory. `code_bytes=16` reads the column once to code it; both times
contain all preparations.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from gelato.data.column_store import open_column, write_rows
from gelato.data.disk_columns import DiskColumn
from gelato.geometry import nearest, nearest_approximate
from gelato.runs.records import Record, device, merge_records

RESULTS = Path(__file__).parents[2] / "results" / "neighbours.json"
DIM, INNER, K, QUERIES = 23, 6, 20, 500
_BLOCK = 100_000


def write_points(path: Path, count: int) -> None:
    """Write points near a curved surface into a `.npy` file, block by block."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(INNER, DIM)).astype(np.float32)
    for start in range(0, count, _BLOCK):
        inner = rng.normal(size=(min(_BLOCK, count - start), INNER)).astype(np.float32)
        noise = 0.02 * rng.normal(size=(len(inner), DIM))
        write_rows(path, (np.sin(inner @ mix) + noise).astype(np.float32), start, count)


def measure(count: int, work: Path | None) -> list[Record]:
    """Search the neighbours of some of the points in both ways."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = Path(folder) / "points.npy"
        write_points(path, count)
        column = DiskColumn(open_column(path))
        rows = np.random.default_rng(1).permutation(count)[:QUERIES]
        queries = column[rows]
        begun = time.monotonic()
        truth = nearest(np.asarray(column), queries, K, exclude=rows).indices
        seconds = {"exact": time.monotonic() - begun}
        begun = time.monotonic()
        coded = nearest_approximate(column, queries, K, exclude=rows, code_bytes=16).indices
        seconds["16 bytes per row"] = time.monotonic() - begun
    shared = [np.isin(row, other).mean() for row, other in zip(truth, coded, strict=True)]
    recalls = {"exact": 1.0, "16 bytes per row": round(float(np.mean(shared)), 4)}
    return [
        {
            "search": how,
            "points": count,
            "queries": QUERIES,
            "neighbours": K,
            "seconds": round(spent, 1),
            "recall": recalls[how],
            "device": device(),
        }
        for how, spent in seconds.items()
    ]


def main() -> None:
    """Measure every size, and merge the records into the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--work", type=Path, default=None, help="folder with room for the points")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for count in arguments.points:
        records = measure(count, arguments.work)
        print(*records, sep="\n", flush=True)
        merge_records(arguments.results, records, keys=("search", "points", "device"))


if __name__ == "__main__":
    main()
