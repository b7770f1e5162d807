"""Flip, cut and overwrite the files of runs and datasets: damage is found or does no harm."""

import shutil
from pathlib import Path

import numpy as np

import gelato
from experiments.chaos.commands import CASES, attempt, compare, describe, use_store
from experiments.chaos.faults import Bench, Verdict
from gelato.data import store
from gelato.report.policy_table import gather
from gelato.runs.folder import Run
from gelato.runs.npz import read_arrays

_FINISHED, _UNFINISHED, _DATASET = "finished run", "unfinished run", "dataset"
# What guards other files, or is never read.
_NOT_READ = (".lock", "namespace_metadata.json")


def damage_file(path: Path, rng: np.random.Generator) -> str:
    """Damage a file in a random way and say how."""
    content = bytearray(path.read_bytes())
    place = int(rng.integers(max(len(content), 1)))
    how = ("flip", "flip", "flip", "cut", "zeros", "byte", "append")[int(rng.integers(7))]
    if how == "flip" and content:
        content[place] ^= 1 << int(rng.integers(8))
    elif how == "cut":
        del content[place:]
    elif how == "zeros":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif how == "byte" and content:
        content[place] = int(rng.integers(256))
    else:
        content += bytes(rng.integers(0, 256, 5).tolist())
    path.write_bytes(content)
    return f"{how} at {place} of {path.name}"


def read_run(folder: Path) -> object:
    """Read every file of a run folder as the commands do."""
    found: list[object] = []
    for described in sorted(folder.rglob("run.json")):
        run = Run(described.parent)
        found += [dict(run.description), run.metrics]
        for path in sorted(run.folder.iterdir()):
            if path.suffix == ".npz":
                arrays = read_arrays(run.check(path.name))
                found += [(name, array.tobytes()) for name, array in sorted(arrays.items())]
            elif path.name == "results.json":
                found.append(run.read_records())
            elif path.suffix == ".json" and path.name not in ("run.json", "manifest.json"):
                found.append(run.read_json(path.stem))
    if (folder / "results.json").exists():
        policies = gelato.trained_policies(folder)
        found += [[stage.outputs for stage in trained.policy.stages] for trained in policies]
        found.append(gather([folder]))
    return found


def corrupt(bench: Bench, number: int, rng: np.random.Generator) -> Verdict:
    """Damage one file of a finished run, an unfinished run or a dataset."""
    kind = rng.random()
    if kind < 0.1:
        return _corrupt_dataset(bench, rng)
    trainings = [name for name, case in CASES.items() if case.compiles and name in bench.references]
    case = CASES[trainings[number % len(trainings)]]
    bench.clear()
    shutil.rmtree(bench.root)
    if kind < 0.2:
        # The two trainings that are fast to continue.
        fast = [name for name in ("train bc", "model fit") if name in bench.references]
        return _corrupt_unfinished(bench, fast[number % len(fast)], rng)
    kept = bench.work / "finished" / case.name.replace(" ", "-")
    shutil.copytree(kept, bench.root)
    folder = bench.root / "run"
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name not in _NOT_READ]
    path = files[int(rng.integers(len(files)))]
    clean = read_run(folder)
    how = damage_file(path, rng)
    found, problem = attempt(lambda: read_run(folder))
    fault = ""
    if "Traceback" in problem:
        fault = problem
    elif problem and path.name not in problem:
        fault = f"does not name the file: {problem}"
    elif not problem and found != clean:
        fault = "damage was not found"
    return Verdict(
        f"{_FINISHED}, {path.suffix or path.name}", _FINISHED, fault and f"{how}: {fault}"
    )


def _corrupt_unfinished(bench: Bench, name: str, rng: np.random.Generator) -> Verdict:
    """Damage a file of an unfinished run: it ends as before, or the file is named."""
    copies = bench.snapshots[name]
    shutil.copytree(copies[int(rng.integers(len(copies)))], bench.root)
    files = [path for path in sorted(bench.root.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name not in _NOT_READ] or [bench.root]
    path = files[int(rng.integers(len(files)))]
    if path.is_dir():
        return Verdict(_UNFINISHED, _UNFINISHED)
    how = damage_file(path, rng)
    fault = bench.verify(CASES[name])
    if fault.startswith("cannot be resumed") and "Traceback" not in fault and path.name in fault:
        fault = ""
    return Verdict(f"{_UNFINISHED}, {path.suffix}", _UNFINISHED, fault and f"{how}: {fault}")


def _corrupt_dataset(bench: Bench, rng: np.random.Generator) -> Verdict:
    """Damage a dataset: it is refused, read as before, or its fingerprint tells."""
    kept = bench.work / "finished" / "dataset"
    if not kept.exists():
        rows, length = 3_000, 5
        log = gelato.make_dataset(
            np.arange(2.0 * rows).reshape(-1, 2),
            np.full((rows, 1), 0.5),
            np.arange(rows) % 7,
            timeouts=np.arange(rows) % length == length - 1,
        )
        with use_store(kept):
            store.write_transitions("mine/log-v0", log, "a log")
    bench.clear()
    copy = Path(shutil.copytree(kept, bench.root / "store"))
    files = [path for path in sorted(copy.rglob("*")) if path.is_file()]
    path = files[int(rng.integers(len(files)))]
    with use_store(copy):
        clean = gelato.load("minari:mine/log-v0").transitions
        how = damage_file(path, rng)
        found, problem = attempt(lambda: gelato.load("minari:mine/log-v0").transitions)
    fault = ""
    if "Traceback" in problem:
        fault = problem
    elif not problem and found.fingerprint() == clean.fingerprint():
        same = np.array_equal(found.rewards, clean.rewards)
        fault = "" if same else "the fingerprint is that of other data"
    return Verdict(f"{_DATASET}, {path.suffix}", _DATASET, fault and f"{how}: {fault}")


def keep_finished(bench: Bench, name: str) -> None:
    """Keep the folder of a case that was just prepared."""
    kept = bench.work / "finished" / name.replace(" ", "-")
    if not kept.exists():
        assert not compare(describe(bench.root), bench.references[name])
        shutil.copytree(bench.root, kept)
