"""`python -m experiments.chaos`: disturb gelato in every way we know, and count what happens.

Every trial is drawn from (seed, kind, number) and recorded in a file, so that the harness continues
where it was stopped. `--short` is a form of at most three minutes for continuous integration.
Any fault makes the exit code 1.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_QUICK = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
# How many trials of each kind the full form makes, and the short one.
PLAN = {
    "data kill": (150, 15),
    "corruption": (2_000, 120),
    "hostile npz": (700, 60),
    "hostile hdf5": (700, 60),
    "hostile minari": (300, 20),
    "hostile run folder": (300, 40),
    "kill at a call": (700, 12),
    "signal": (200, 6),
    "full disk": (50, 4),
    "deleted folder": (20, 2),
    "several processes": (40, 3),
    "kill": (200, 0),
    "hostile by Hypothesis": (40, 2),
    "clock": (40, 2),
}
_BATCH = 20
# The kinds of trials that a report counts by command.
_BY_CASE = ("data kill", "kill", "kill at a call", "signal", "full disk", "deleted folder")
_BY_CASE += ("several processes", "clock")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="at most three minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(PLAN), help="kinds of trials")
    parser.add_argument("--cases", nargs="+", help="commands to disturb (default: all)")
    parser.add_argument("--trials", type=int, help="trials of each kind, instead of the plan")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--work", type=Path, default=Path("chaos"), help="folder of the trials")
    parser.add_argument("--fresh", action="store_true", help="forget the trials made before")
    parser.add_argument("--results", type=Path, help="merge counts into this file of records")
    return parser.parse_args()


class Journal:
    """The trials that were made, one line each, so that another sitting continues."""

    def __init__(self, path: Path) -> None:
        self.path, self.trials = path, []
        if path.exists():
            self.trials = [json.loads(line) for line in path.read_text().splitlines()]

    def done(self, kind: str) -> set[int]:
        """Return the numbers of the trials of a kind that were made."""
        return {trial["number"] for trial in self.trials if trial["kind"] == kind}

    def add(self, **trial: Any) -> None:
        """Record a trial."""
        self.trials.append(trial)
        with self.path.open("a") as file:
            file.write(json.dumps(trial) + "\n")
        if trial["fault"]:
            print(f"FAULT in {trial['kind']} {trial['number']}: {trial['fault']}", flush=True)


def main() -> int:
    """Run the plan and print the counts."""
    begun = time.monotonic()
    options = _parse()
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    # These variables are read when gelato and JAX are imported.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = _QUICK
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(options.work / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["MINARI_DATASETS_PATH"] = str(options.work / "fixed-store")
    from experiments.chaos import commands, damage, faults, hostile, processes

    commands.prepare_process()
    if options.fresh:
        (options.work / f"trials-{options.seed}.jsonl").unlink(missing_ok=True)
    journal = Journal(options.work / f"trials-{options.seed}.jsonl")
    spawner = processes.Spawner()
    deadline = begun + (options.seconds or (150 if options.short else 1e9))
    bench = faults.Bench(options.work, spawner)
    named = options.cases or list(commands.CASES)
    if options.short and not options.cases:
        named = ["data make", "data import", commands.LOOP]
    commands.make_fixed(options.work, train=set(named) != {commands.LOOP} and not options.short)
    data = [name for name in named if not commands.CASES[name].compiles]
    trainings = [name for name in named if commands.CASES[name].compiles]
    disturb = {
        "data kill": (faults.kill, data),
        "kill": (faults.kill, trainings),
        "kill at a call": (faults.kill_at_call, trainings),
        "signal": (faults.send_signal, named),
        "full disk": (faults.fill_disk, named),
        "deleted folder": (faults.delete_folder, named),
        "several processes": (faults.run_several, named),
        "clock": (faults.change_clock, named),
    }
    batches = _plan(journal, options)
    if any(kind == "full disk" for kind, _ in batches) and not faults.can_mount(options.work):
        print("full disk: skipped, this process may not mount a small disk")
        batches = [(kind, numbers) for kind, numbers in batches if kind != "full disk"]
    if any(kind == "corruption" for kind, _ in batches):
        for name in trainings:
            _prepare(bench, commands.CASES[name], damage)
    while batches and time.monotonic() < deadline:
        kind, numbers = batches.pop(0)
        if kind == "hostile by Hypothesis":
            _search(spawner, journal, options, numbers[0], hostile)
            continue
        if kind.startswith("hostile"):
            _attack(spawner, journal, options, kind, numbers, hostile)
            continue
        rng = _draw(options.seed, kind, numbers[0])
        started = time.monotonic()
        if kind == "corruption":
            verdict = damage.corrupt(bench, numbers[0], rng)
        else:
            make, names = disturb[kind]
            if not names:
                continue
            case = commands.CASES[names[int(rng.integers(len(names)))]]
            _prepare(bench, case, damage)
            verdict = make(bench, case, rng)
        seconds = round(time.monotonic() - started, 2)
        label = {"case": verdict.case, "stage": verdict.stage, "fault": verdict.fault}
        journal.add(kind=kind, number=numbers[0], **label, seconds=seconds)
    spawner.close()
    if batches:
        left = sum(len(numbers) for _, numbers in batches)
        print(f"{left:,} trials of the plan are left, because the time was over")
    journal.add(kind="sitting", number=0, fault="", seconds=round(time.monotonic() - begun))
    return _report(journal, options)


def _plan(journal: Journal, options: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """List the missing trials in batches, of all kinds in turn: a sitting may be cut short."""
    batches = []
    for kind, (full, short) in PLAN.items():
        if options.only and kind not in options.only:
            continue
        count = options.trials or (short if options.short else full)
        done = journal.done(kind)
        missing = [number for number in range(count) if number not in done]
        size = _BATCH if kind.startswith("hostile") and not kind.endswith("Hypothesis") else 1
        for start in range(0, len(missing), size):
            numbers = missing[start : start + size]
            batches.append((numbers[0] / count, kind, numbers))
    return [(kind, numbers) for _, kind, numbers in sorted(batches)]


def _prepare(bench: Any, case: Any, damage: Any) -> None:
    if case.name not in bench.references:
        bench.prepare(case)
        if case.compiles:
            damage.keep_finished(bench, case.name)


def _draw(seed: int, kind: str, number: int) -> Any:
    import numpy as np

    return np.random.default_rng([seed, list(PLAN).index(kind), number])


def _attack(
    spawner: Any, journal: Journal, options: Any, kind: str, numbers: list[int], hostile: Any
) -> None:
    """Read hostile files in a process of their own; if it dies, read them one by one."""
    import shutil

    folder, begun = options.work / "hostile", time.monotonic()
    what = kind.removeprefix("hostile ")
    seeds = [(options.seed * 1000 + list(PLAN).index(kind), number) for number in numbers]
    shutil.rmtree(folder, ignore_errors=True)
    status, found = spawner.call(hostile.attack_many, what, seeds, folder)
    for place, number in enumerate(numbers):
        fault = found[place] if found else ""
        if found is None:
            shutil.rmtree(folder, ignore_errors=True)
            status, one = spawner.call(hostile.attack_many, what, [seeds[place]], folder)
            fault = one[0] if one else f"the process died (status {status})"
        seconds, begun = time.monotonic() - begun, time.monotonic()
        journal.add(
            kind=kind, number=number, case=what, stage="", fault=fault, seconds=round(seconds, 3)
        )
    shutil.rmtree(folder, ignore_errors=True)


def _search(spawner: Any, journal: Journal, options: Any, number: int, hostile: Any) -> None:
    """Let Hypothesis look for a harmful file, and record how many files it made."""
    import shutil

    folder, begun = options.work / "hostile", time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    kind = hostile.KINDS[number % len(hostile.KINDS)]
    seed = 1000 * options.seed + number
    status, found = spawner.call(hostile.search, kind, seed, _BATCH, folder)
    made, fault = found or (1, f"the process died (status {status})")
    journal.add(
        kind="hostile by Hypothesis",
        number=number,
        case=kind,
        stage="",
        fault=fault,
        files=made,
        seconds=round(time.monotonic() - begun, 3),
    )
    shutil.rmtree(folder, ignore_errors=True)


def _report(journal: Journal, options: argparse.Namespace) -> int:
    """Print counts by kind and stage, and merge them into a file of records."""
    from experiments.chaos import faults
    from gelato.runs.records import Record, merge_records

    trials, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for trial in journal.trials:
        if trial["kind"] == "sitting":
            continue
        key = (trial["kind"], trial["stage"] or trial["case"])
        if trial["stage"] == faults.NOT_DISTURBED:
            continue
        if trial["kind"] in _BY_CASE:
            key = (trial["kind"], f"{trial['case']}, {trial['stage']}")
        trials[key] += trial.get("files", 1)
        found[key] += bool(trial["fault"])
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, Linux {platform.release()}"
    records: list[Record] = []
    for (kind, where), count in sorted(trials.items()):
        print(f"{kind:20} {where:45} {count:6,} trials {found[kind, where]:4,} faults")
        records.append(
            {
                "kind": kind,
                "where": where,
                "trials": count,
                "faults": found[kind, where],
                "seed": options.seed,
            }
        )
    # A sitting that was killed has no line of its own, so the trials are added up.
    seconds = sum(trial["seconds"] for trial in journal.trials if trial["kind"] != "sitting")
    records.append(
        {
            "kind": "time",
            "where": machine,
            "seed": options.seed,
            "seconds": round(seconds),
        }
    )
    print(f"{sum(trials.values()):,} trials, {sum(found.values()):,} faults")
    if options.results is not None:
        merge_records(options.results, records, keys=("kind", "where", "seed"))
    return 1 if sum(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
