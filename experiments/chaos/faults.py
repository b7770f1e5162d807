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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from experiments.chaos import commands
from experiments.chaos.commands import Case, compare, describe, run_case
from experiments.chaos.processes import Spawner, run_and_die, run_together, watch_calls
from gelato.runs.files import is_leftover

# Most of a long training comes after its first checkpoint, so most disturbances do too.
_LATE_SHARE = 0.9
_BLOCK = 4096
NOT_DISTURBED = "ended before the disturbance"
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
    calls: dict[str, list[bool]] = field(default_factory=dict)
    """For every call of a case that changes files: whether a checkpoint was there before it."""
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
        self.snapshots[case.name], self.calls[case.name] = [], []

        def keep(_: str) -> None:
            self.notify = None
            self.calls[case.name].append(has_progress(self.root))
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

    def largest(self, case: Case) -> int:
        """Return the size of the largest file that a case writes."""
        files = (path for copy in self.snapshots[case.name] for path in copy.rglob("*"))
        return max(path.stat().st_size for path in files if path.is_file())

    def stage(self) -> str:
        """Say how far the disturbed command had come."""
        return _AFTER if has_progress(self.root) else _BEFORE


def has_progress(root: Path) -> bool:
    """Return whether a run has a checkpoint, or a part of it is finished."""
    names = ("checkpoints/*.npz", "model.npz", "members.npz", "last.npz")
    return any(next((root / "run").rglob(name), None) is not None for name in names)


def choose_late(late: Sequence[bool], rng: np.random.Generator) -> int:
    """Choose a place in a list; most often one that is marked as late, if there is one."""
    places = np.flatnonzero(late)
    if len(places) == 0 or rng.random() >= _LATE_SHARE:
        places = np.arange(len(late))
    return int(rng.choice(places))


def choose_snapshot(bench: Bench, case: Case, rng: np.random.Generator) -> Path:
    """Choose a moment of a case and return its folder at that moment."""
    copies = bench.snapshots[case.name]
    return copies[choose_late([has_progress(copy) for copy in copies], rng)]


def restore_snapshot(bench: Bench, case: Case, rng: np.random.Generator) -> str:
    """Leave the folder of a case as it was at some moment; return its stage."""
    shutil.rmtree(bench.root, ignore_errors=True)
    shutil.copytree(choose_snapshot(bench, case, rng), bench.root, symlinks=True)
    return bench.stage()


def kill_at_call(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Continue from the folder that a kill at one file-system call leaves."""
    stage = restore_snapshot(bench, case, rng)
    return Verdict(case.name, stage, bench.verify(case))


def change_clock(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Continue a killed command with a clock that jumps, from files with times of other years."""
    stage = restore_snapshot(bench, case, rng)
    for path in bench.root.rglob("*"):
        moment = 1.8e9 + rng.uniform(-3e8, 3e8)
        os.utime(path, (moment, moment))
    now = time.time
    jumps = rng.uniform(-3e8, 3e8, 1_000)
    with mock.patch.object(time, "time", lambda: now() + float(rng.choice(jumps))):
        return Verdict(case.name, stage, bench.verify(case))


def kill(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Kill a real process at a call, after a time or in the middle of a write, and continue."""
    bench.clear()
    how = ("call", "call", "call", "time", "size")[int(rng.integers(5))]
    when = {
        "call": float(choose_late(bench.calls[case.name], rng)),
        "time": float(rng.uniform(1.0, 8.0) if case.compiles else rng.uniform(0.01, 0.3)),
        "size": float(rng.integers(1, bench.largest(case) + 1)),
    }[how]
    status, _ = bench.spawner.call(run_and_die, case.name, bench.root, how, when)
    stage = bench.stage() if os.WIFSIGNALED(status) else NOT_DISTURBED
    return Verdict(case.name, stage, bench.verify(case))


def disturb_at_call(
    bench: Bench, case: Case, rng: np.random.Generator, disturb: Callable[[], object]
) -> tuple[commands.Outcome, str]:
    """Run a case and disturb it at one of its calls; return how it ended, and the stage."""
    bench.clear()
    left, stage = choose_late(bench.calls[case.name], rng) + 1, _BEFORE

    def count(_: str) -> None:
        nonlocal left, stage
        left -= 1
        if left == 0:
            bench.notify, stage = None, bench.stage()
            disturb()

    bench.notify = count
    outcome = run_case(case, bench.root)
    bench.notify = None
    return outcome, stage


def send_signal(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Send SIGINT or SIGTERM at a random call, and repeat the command."""
    number = (signal.SIGINT, signal.SIGTERM)[int(rng.integers(2))]
    outcome, stage = disturb_at_call(bench, case, rng, lambda: os.kill(os.getpid(), number))
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
    """Run a case on a disk that fills up at some moment, make room and repeat the command."""
    bench.clear()
    # A disk with room for about as much as the command had written at that moment.
    copy = choose_snapshot(bench, case, rng)
    sizes = [path.stat().st_size for path in copy.rglob("*") if path.is_file()]
    blocks = sum(-(-size // _BLOCK) for size in sizes) + int(rng.integers(-2, 2))
    with small_disk(bench.root, max(blocks, 1) * _BLOCK):
        outcome = run_case(case, bench.root)
        stage = bench.stage()
        if outcome.traceback or outcome.code not in (0, 2):
            return Verdict(case.name, stage, f"code {outcome.code}: {outcome.traceback}")
        if outcome.code == 2 and "disk is full" not in outcome.output:
            return Verdict(case.name, stage, f"says {outcome.output}")
        if outcome.code == 0:
            stage = NOT_DISTURBED
        subprocess.run(["mount", "-o", "remount,size=1g", str(bench.root)], check=True)
        return Verdict(case.name, stage, bench.verify(case))


def delete_folder(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Delete everything that a command has written while it runs, and repeat it."""

    def delete() -> None:
        for path in bench.root.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    outcome, stage = disturb_at_call(bench, case, rng, delete)
    if outcome.traceback or outcome.code not in (0, 2):
        return Verdict(case.name, stage, f"code {outcome.code}: {outcome.traceback}")
    bench.clear()
    return Verdict(case.name, stage, bench.verify(case))


def run_several(bench: Bench, case: Case, rng: np.random.Generator) -> Verdict:
    """Let several processes start or continue a command together. One of them does the work."""
    stage = restore_snapshot(bench, case, rng)
    count = int(rng.integers(2, 5))
    _, ends = bench.spawner.call(run_together, case.name, bench.root, count)
    if ends is None:
        return Verdict(case.name, stage, "a process died")
    wrong = [end for end in ends if end.code not in (0, 2) or end.traceback]
    worked = [end for end in ends if "expect about" in end.output or "resuming" in end.output]
    refused = [end for end in ends if end.code and "exists already" not in end.output]
    if wrong or len(worked) > 1 or len(refused) == count:
        return Verdict(case.name, stage, f"ends: {ends}")
    return Verdict(case.name, stage, bench.verify(case))
