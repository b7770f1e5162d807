"""Kills, signals, full disks, deleted folders, other clocks and several processes.

A killed process leaves the files as they were at that moment. So there are two forms of kills:
`kill` ends a real process, and `kill at a call` runs a command once, copies its folder before every
call that changes files, and lets the command continue from each of these copies.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from experiments.chaos import commands
from experiments.chaos.commands import CASES, Case, compare, describe, run_case
from experiments.chaos.processes import Spawner, run_and_die, run_together, watch_calls
from gelato.runs.files import is_leftover

_LATE_SHARE = 0.9
NOT_KILLED = "ended before the kill"
_AFTER, _BEFORE = "after the first checkpoint", "before the first checkpoint"


@dataclass(frozen=True)
class Verdict:
    """What a trial found: the stage that was disturbed, and the fault, if any."""

    case: str
    stage: str
    fault: str = ""


@dataclass
class Bench:
    """A place to disturb commands, with what each of them leaves when nothing disturbs it."""

    work: Path
    spawner: Spawner
    references: dict[str, dict[str, object]] = field(default_factory=dict)
    snapshots: dict[str, list[Path]] = field(default_factory=dict)
    notify: object = None

    def __post_init__(self) -> None:
        self.root = self.work / "root"
        watch_calls(self.root, lambda event: self.notify(event) if self.notify else None)
        self.outside = self.work / "outside"
        self.outside.mkdir(exist_ok=True)
        (self.outside / "thesis.tex").write_text("nobody else writes here")

    def clear(self) -> None:
        """Make the folder of the next trial."""
        if self.root.is_mount():  # The harness was killed while it had mounted a small disk.
            subprocess.run(["umount", "--lazy", str(self.root)], check=True)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)

    def prepare(self, case: Case) -> None:
        """Run a case once without a fault, and keep its folder before every call."""
        if case.name in self.references:
            return
        self.clear()
        kept = self.work / "snapshots" / case.name.replace(" ", "-")
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        known: list[dict[str, object]] = []
        self.snapshots[case.name] = []

        def keep(_: str) -> None:
            self.notify = None
            state = {
                str(path): path.stat().st_size if path.is_file() else -1
                for path in sorted(self.root.rglob("*"))
            }
            if not known or state != known[-1]:
                known.append(state)
                copy = kept / f"{len(known):04d}"
                shutil.copytree(self.root, copy, symlinks=True)
                self.snapshots[case.name].append(copy)
            self.notify = keep

        self.notify = keep
        outcome = run_case(case, self.root)
        self.notify = None
        assert outcome.code == 0, outcome
        self.references[case.name] = describe(self.root)

    def verify(self, case: Case) -> str:
        """Repeat a disturbed command and say what is wrong with what it leaves, or nothing."""
        outcome = run_case(case, self.root)
        # A dataset that is complete already is refused, which is right.
        if outcome.code == 2 and "exists already" in outcome.output:
            outcome = commands.Outcome(0, outcome.output)
        if outcome.traceback or outcome.code:
            return f"cannot be resumed: {outcome.traceback or outcome.output}"
        leftovers = [path.name for path in self.root.rglob("*") if is_leftover(path.name)]
        if leftovers:
            return f"leftovers remain: {leftovers}"
        different = compare(describe(self.root), self.references[case.name])
        if different:
            return f"ends differently: {different}"
        if [path.name for path in self.outside.iterdir()] != ["thesis.tex"]:
            return "files outside changed"
        return ""

    def stage(self) -> str:
        """Say how far the disturbed command had come."""
        return _AFTER if has_progress(self.root) else _BEFORE


def has_progress(root: Path) -> bool:
    """Return whether a run has a checkpoint, or a part of it is finished."""
    names = ("checkpoints/*.npz", "model.npz", "members.npz", "last.npz")
    return any(next((root / "run").rglob(name), None) is not None for name in names)


def choose(cases: list[str], rng: np.random.Generator) -> Case:
    """Choose a case."""
    return CASES[cases[int(rng.integers(len(cases)))]]


def kill_at_call(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Continue from the folder that a kill at one file-system call leaves."""
    bench.prepare(case)
    copies = bench.snapshots[case.name]
    # Most of a long training comes after its first checkpoint.
    late = [copy for copy in copies if has_progress(copy)]
    if late and rng.random() < _LATE_SHARE:
        copies = late
    shutil.rmtree(bench.root, ignore_errors=True)
    shutil.copytree(copies[int(rng.integers(len(copies)))], bench.root, symlinks=True)
    if rng.random() < 0.1:
        # A clock that was wrong, in either direction.
        for path in bench.root.rglob("*"):
            moment = 1.8e9 + rng.uniform(-3e8, 3e8)
            os.utime(path, (moment, moment))
    stage = bench.stage()
    return Verdict(case.name, stage, bench.verify(case))


def kill(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Kill a real process at a call, after a time or in the middle of a write, and continue."""
    bench.prepare(case)
    bench.clear()
    how = ("call", "call", "call", "time", "size")[int(rng.integers(5))]
    calls = len(bench.snapshots[case.name])
    first = calls // 4 if case.compiles and rng.random() < _LATE_SHARE else 0
    when = {
        "call": float(rng.integers(first, calls)),
        "time": float(rng.uniform(1.0, 8.0) if case.compiles else rng.uniform(0.01, 0.3)),
        "size": float(rng.integers(1, 20_000)),
    }[how]
    status, _ = bench.spawner.call(run_and_die, case.name, bench.root, how, when)
    stage = bench.stage() if os.WIFSIGNALED(status) else NOT_KILLED
    return Verdict(case.name, stage, bench.verify(case))


def send_signal(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Send SIGINT or SIGTERM at a random call, and repeat the command."""
    bench.prepare(case)
    bench.clear()
    number = (signal.SIGINT, signal.SIGTERM)[int(rng.integers(2))]
    left = int(rng.integers(len(bench.snapshots[case.name])))

    def send(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            bench.notify = None
            os.kill(os.getpid(), number)

    bench.notify = send
    outcome = run_case(case, bench.root)
    bench.notify = None
    stage = bench.stage()
    if outcome.traceback or outcome.code not in (0, 128 + number):
        return Verdict(case.name, stage, f"code {outcome.code}: {outcome.traceback}")
    return Verdict(case.name, stage, bench.verify(case))


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a small disk at a folder; needs the rights of an administrator."""
    options = f"size={max(size, 4096)},nr_inodes=4k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount(work: Path) -> bool:
    """Return whether this process may mount a small disk; many containers do not allow it."""
    folder = work / "mount"
    folder.mkdir(exist_ok=True)
    try:
        with small_disk(folder, 4096):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill_disk(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Run a case on a disk that is too small, make room and repeat the command."""
    bench.prepare(case)
    bench.clear()
    needed = sum(path.stat().st_size for path in bench.snapshots[case.name][-1].rglob("*"))
    with small_disk(bench.root, int(rng.uniform(0.02, 1.0) * needed)):
        outcome = run_case(case, bench.root)
        stage = bench.stage()
        if outcome.traceback or outcome.code not in (0, 2):
            return Verdict(case.name, stage, f"code {outcome.code}: {outcome.traceback}")
        if outcome.code == 2 and "disk is full" not in outcome.output:
            return Verdict(case.name, stage, f"says {outcome.output}")
        subprocess.run(["mount", "-o", "remount,size=1g", str(bench.root)], check=True)
        return Verdict(case.name, stage, bench.verify(case))


def delete_folder(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Delete everything that a command has written while it runs, and repeat it."""
    bench.prepare(case)
    bench.clear()
    left = int(rng.integers(1, len(bench.snapshots[case.name])))

    def delete(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            bench.notify = None
            for path in bench.root.iterdir():
                shutil.rmtree(path, ignore_errors=True)

    bench.notify = delete
    outcome = run_case(case, bench.root)
    bench.notify = None
    if outcome.traceback or outcome.code not in (0, 2):
        return Verdict(case.name, _BEFORE, f"code {outcome.code}: {outcome.traceback}")
    bench.clear()
    return Verdict(case.name, _BEFORE, bench.verify(case))


def run_several(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Run one command in several processes that begin together. One of them does the work."""
    bench.prepare(case)
    bench.clear()
    count = int(rng.integers(2, 5))
    _, ends = bench.spawner.call(run_together, case.name, bench.root, count)
    if ends is None:
        return Verdict(case.name, _BEFORE, "a process died")
    wrong = [end for end in ends if end.code not in (0, 2) or end.traceback]
    worked = [end for end in ends if "expect about" in end.output or "resuming" in end.output]
    if wrong or len(worked) > 1 or all(end.code for end in ends):
        return Verdict(case.name, _BEFORE, f"ends: {ends}")
    return Verdict(case.name, _BEFORE, bench.verify(case))
