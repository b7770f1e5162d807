"""What safety costs: training and loading with and without it, large imports, many processes.

`overhead` runs pairs in one process, with and without digests, manifests, flushes and checks. The
time of a run is its computing time plus the time that it waited for the disk in `fsync`, so other
users of the machine disturb it little. `import` and `trust` measure processes of their own.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import minari
import numpy as np
from scipy import stats

import gelato
from gelato.cli import main as run_command
from gelato.data import flat_copy, store
from gelato.runs import files, folder, npz
from gelato.runs.records import Record, merge_records

RESULTS = Path(__file__).parents[2] / "results" / "safety.json"
ROOMS = "four-rooms-hole,transitions=20000"
# A training of several seconds shows what share of its time the constant costs take.
_LONGER = 30


@contextlib.contextmanager
def switch_safety_off() -> Iterator[None]:
    """Skip everything that was added for safety: flushes, manifests, digests and checks."""

    def read_plainly(path: Path) -> dict[str, np.ndarray]:
        with np.load(path) as arrays:
            return dict(arrays)

    def find_path(place: Path, name: str, *_: object) -> Path:
        return place / name

    def skip(*_: object) -> None:
        return None

    changes: list[tuple[object, str, object]] = [
        (files, "remove_leftovers", skip),
        (folder, "check_file", find_path),
        (folder, "read_manifest", skip),
        (folder, "write_manifest", skip),
        (folder.Run, "refuse_links", skip),
        (folder, "read_arrays", read_plainly),
        (flat_copy, "digest_file", lambda *_: (0, "")),
        (npz, "check_memory", skip),
        (store, "read_episodes", minari.MinariDataset.iterate_episodes),
        (store, "_check_metadata", skip),
        (store, "_flush_all", skip),
    ]
    for owner in (files, folder):
        changes += [(owner, "flush_file", skip), (owner, "flush_folder", skip)]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in changes:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def measure(action: Callable[[], object]) -> float:
    """Return the computing time of an action and the time that it waits for the disk."""
    waited, flush = 0.0, os.fsync

    def wait(descriptor: int) -> None:
        nonlocal waited
        begun, computed = time.perf_counter(), time.process_time()
        flush(descriptor)
        waited += time.perf_counter() - begun - (time.process_time() - computed)

    with mock.patch.object(os, "fsync", wait):
        begun = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            action()
        return time.process_time() - begun + waited


def compare(name: str, action: Callable[[], object], pairs: int, seed: int) -> Record:
    """Measure pairs in random order; return the median of the ratios and its 95% interval."""
    rng = random.Random(seed)
    measure(action)  # Compile first.
    ratios, seconds = [], []
    for _ in range(pairs):
        found = {}
        for safe in rng.sample([True, False], 2):
            with contextlib.nullcontext() if safe else switch_safety_off():
                found[safe] = measure(action)
        ratios.append(found[True] / found[False])
        seconds.append(found[True])
    interval = stats.bootstrap((ratios,), np.median, rng=seed, method="percentile")
    low, high = interval.confidence_interval
    record: Record = {
        "what": name,
        "pairs": pairs,
        "seconds": round(float(np.median(seconds)), 3),
        "ratio": round(float(np.median(ratios)), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
    }
    print(record, flush=True)
    return record


def measure_overhead(pairs: int, seed: int, updates: int, names: list[str]) -> list[Record]:
    """Compare training, and loading runs and datasets."""
    work = Path(tempfile.mkdtemp(dir="."))
    os.environ["MINARI_DATASETS_PATH"] = str(work.absolute() / "store")
    try:
        actions = _make_actions(work, updates)
        chosen = {name: actions[name] for name in names or actions}
        return [compare(name, action, pairs, seed) for name, action in chosen.items()]
    finally:
        shutil.rmtree(work)


def _make_actions(work: Path, updates: int) -> dict[str, Callable[[], object]]:
    run, log = work / "run", work / "log.npz"
    command = ["train", ROOMS, "--method", "bc", "--evaluations", "2", "--episodes", "1"]

    def train(updates: int) -> None:
        shutil.rmtree(run, ignore_errors=True)
        run_command([*command, "--updates", str(updates), "--run", str(run)])

    fit = ["model", "fit", ROOMS, "--updates", str(updates), "--run", str(work / "model")]
    fit += ["--variance-updates", str(updates // 5), "--batch-size", "64"]

    def fit_model() -> None:
        shutil.rmtree(work / "model", ignore_errors=True)
        run_command(fit)

    def load_model() -> None:
        if not (work / "model").exists():
            fit_model()
        gelato.load_model(work / "model")

    write_log(log, episodes=5_000, length=60)
    write_log(work / "episodes.npz", episodes=1_000, length=20)
    run_command(["data", "import", f"file:{work / 'episodes.npz'}", "--name", "bench/log"])
    copy = store.store_root() / "bench" / "log-v0" / ".gelato"

    def read_episodes() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        gelato.load("minari:bench/log-v0")

    return {
        f"train bc, {updates:,} updates": lambda: train(updates),
        f"train bc, {_LONGER * updates:,} updates": lambda: train(_LONGER * updates),
        "fit a latent model": fit_model,
        "load a .npz file of 300,000 transitions": lambda: gelato.load(f"file:{log}"),
        "load 1,000 Minari episodes": read_episodes,
        "load a Minari dataset with a flat copy": lambda: gelato.load("minari:bench/log-v0"),
        "load a fitted model": load_model,
    }


def write_log(path: Path, episodes: int, length: int) -> None:
    """Write a log of random numbers."""
    rng, rows = np.random.default_rng(0), episodes * length
    np.savez(
        path,
        observations=rng.standard_normal((rows, 17), np.float32),
        actions=rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rewards=rng.standard_normal(rows, np.float32),
        timeouts=np.arange(rows) % length == length - 1,
    )


def measure_import(episodes: int, length: int) -> list[Record]:
    """Import many short episodes in a process of its own."""
    with tempfile.TemporaryDirectory(dir=".") as work:
        log = Path(work) / "log.npz"
        write_log(log, episodes, length)
        environment = {**os.environ, "MINARI_DATASETS_PATH": str(Path(work).absolute() / "store")}
        command = [sys.executable, "-m", "gelato", "data", "import", f"file:{log}"]
        begun, (load, _, _) = time.monotonic(), os.getloadavg()
        subprocess.run([*command, "--name", "bench/log"], env=environment, check=True)
        wall = time.monotonic() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        record: Record = {
            "what": f"import {episodes:,} episodes",
            "steps": episodes * length,
            "seconds": round(wall, 1),
            "computing": round(used.ru_utime + used.ru_stime, 1),
            "megabytes": round(used.ru_maxrss / 1e3),
            "load": round(load, 1),
        }
    print(record, flush=True)
    return [record]


def measure_trust(run: Path, processes: int, arguments: list[str]) -> list[Record]:
    """Run several `gelato trust` at once; report their largest memory, shared pages divided."""
    command = [sys.executable, "-m", "gelato", "trust", str(run), *arguments]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(processes)
    ]
    largest = dict.fromkeys([process.pid for process in running], (0, 0))
    while any(process.poll() is None for process in running):
        for pid, before in largest.items():
            with contextlib.suppress(OSError, ValueError):
                largest[pid] = tuple(map(max, before, read_memory(pid)))
        time.sleep(0.2)
    assert not any(process.returncode for process in running)
    record: Record = {
        "what": f"{processes} processes of trust",
        "proportional": round(float(np.median([found[0] for found in largest.values()]))),
        "resident": round(float(np.median([found[1] for found in largest.values()]))),
    }
    print(record, flush=True)
    return [record]


def read_memory(pid: int) -> tuple[float, float]:
    """Return the proportional and the resident size of a process in MB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        found[name] = int(size) / 1e3
    return found["Pss:"], found["Rss:"]


def main() -> None:
    """Measure, print, and merge the records into a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["overhead", "import", "trust"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--names", nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=10)
    parser.add_argument("--run", type=Path, help="with trust: a run folder")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--data", help="with trust: the data to judge")
    parser.add_argument("--rows", default="100", help="with trust: how many rows to judge")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "overhead":
        records = measure_overhead(options.pairs, options.seed, options.updates, options.names)
    elif options.what == "import":
        records = measure_import(options.episodes, options.length)
    else:
        records = measure_trust(
            options.run, options.processes, [options.data, "--rows", options.rows]
        )
    options.results.parent.mkdir(exist_ok=True)
    merge_records(options.results, records, keys=("what",))


if __name__ == "__main__":
    main()
