"""A sweep in a run folder: many trainings, on this machine or on a Ray cluster.

sweep/
  run.json           the specification
  groups.json        the groups, planned once
  groups/NAME/       an ordinary training run for each group
  groups/NAME.log    the messages of the group's worker
  results.json       the records of all finished groups
"""

import shlex
import shutil
import sys
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gelato.errors import InputError
from gelato.progress import note, say
from gelato.runs.files import has_locks, hide_name, is_leftover, remove_leftovers
from gelato.runs.folder import Run, open_run
from gelato.runs.records import Record
from gelato.runs.sweeps import GROUPS, read_groups
from gelato.sweep.cluster import RayWorkers
from gelato.sweep.groups import SweepGroup, name_apart, read_group
from gelato.sweep.jobs import GroupJob, Outcome, PlanJob, describe_error, unpack_folder
from gelato.sweep.spec import Sweep, SweepSource
from gelato.sweep.table import LiveSweep
from gelato.sweep.workers import AbstractWorkers, LocalWorker


def run_sweep(
    sweep: Sweep,
    run: Path | str,
    *,
    address: str | None = None,
    cores: int | None = None,
    gpus: float | None = None,
    scratch: Path | str | None = None,
    source: SweepSource | None = None,
) -> list[Record]:
    """Run a sweep in a folder, or continue the sweep in that folder; return all records.

    Without an address the groups run one after another on this machine. An address of a Ray cluster
    is `auto`, `HOST:PORT`, or `local` for a new one on this machine. `cores` and `gpus` are for
    each group; part of a GPU, such as 0.25, lets groups share it. `scratch` is a folder on every
    node's own disk: groups run there and are copied to the run folder when they are finished.
    """
    source = source or SweepSource()
    folder = Path(run).absolute()
    _check_resources(cores, gpus, address, scratch)
    workers: AbstractWorkers = LocalWorker(cores)
    if address is not None:
        workers = RayWorkers(address, cores, gpus)
    described = {"sweep": sweep.describe()}
    with workers:
        # The plan needs no folder, so bad input leaves none behind.
        plan = None if (folder / f"{GROUPS}.json").exists() else _plan(sweep, source, workers)
        with open_run(folder, "sweep", **described) as opened:
            planned = [] if plan is None else [group.describe() for group in plan]
            opened.record(GROUPS, {"groups": planned})
            groups = [read_group(fields) for fields in read_groups(opened)]
            own_disk = None if scratch is None else Path(scratch)
            return _Running(opened, sweep, source, groups, workers, own_disk).run()


def _check_resources(
    cores: int | None, gpus: float | None, address: str | None, scratch: Path | str | None
) -> None:
    if cores is not None and cores < 1:
        raise InputError(f"--cores {cores}: must be at least 1")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus % 1)):
        raise InputError(f"--gpus {gpus:g}: must be a whole number, or a fraction below 1")
    if address is None and (gpus is not None or scratch is not None):
        name = "gpus" if gpus is not None else "scratch"
        raise InputError(f"--{name} needs a Ray cluster; add --address")


def _plan(sweep: Sweep, source: SweepSource, workers: AbstractWorkers) -> list[SweepGroup]:
    """Load or make every dataset, and list the groups that train on them."""
    jobs = [PlanJob(reference, sweep, source) for reference in sweep.datasets]
    found: dict[str, list[SweepGroup]] = {}
    say(f"preparing {len(jobs)} datasets" if len(jobs) > 1 else "preparing the dataset")
    for event in workers.run(jobs):
        if not isinstance(event, Outcome):
            continue
        if event.field is not None:
            raise source.locate(event.field)
        if event.error is not None:
            where = f" on {event.node}" if event.node else ""
            raise InputError(f"{event.job}{where}: {event.error}")
        found[event.job] = event.value
    return name_apart([group for reference in sweep.datasets for group in found[reference]])


class _Running:
    """A sweep that runs: its folder, its groups, and what failed so far."""

    def __init__(
        self,
        folder: Run,
        sweep: Sweep,
        source: SweepSource,
        groups: Sequence[SweepGroup],
        workers: AbstractWorkers,
        scratch: Path | None,
    ) -> None:
        self.folder, self.sweep, self.source = folder, sweep, source
        self.groups, self.workers, self.scratch = groups, workers, scratch
        self.records: dict[str, list[Record]] = {}
        self.failed: dict[str, str] = {}

    def run(self) -> list[Record]:
        """Run all groups that are not finished, and write the records of all that are."""
        groups = self.folder.folder / "groups"
        groups.mkdir(exist_ok=True)
        _remove_partial(groups)
        for group in self.groups:
            self._read_finished(group)
        self._write_records()
        left = [g for g in self.groups if g.name not in self.records and g.name not in self.failed]
        trials = sum(group.trials for group in left)
        say(f"{len(left)} of {len(self.groups)} groups to run ({trials:,} policies)")
        if left:
            self._run_groups(left)
        if self.failed:
            raise InputError(self._describe_failures())
        return self._list_records()

    def _run_groups(self, left: Sequence[SweepGroup]) -> None:
        scratch = self._choose_scratch()
        jobs = []
        for group in left:
            job = GroupJob(
                group.name,
                self.sweep,
                self.source,
                group=group,
                folder=self._find_folder(group),
                scratch=scratch,
            )
            jobs.append(job)
        names = [group.name for group in self.groups]
        table = LiveSweep(names, list(self.records))
        by_name = {group.name: group for group in self.groups}
        with table.show():
            for event in self.workers.run(jobs):
                if isinstance(event, Outcome):
                    event = self._keep(by_name[event.job], event)
                table.update(event)

    def _choose_scratch(self) -> Path | None:
        """Return the folder on the nodes' own disks, if groups cannot run in the run folder."""
        if self.scratch is None and self.workers.sees(str(self.folder.folder / "run.json")):
            return None
        identity = self.folder.check("run.json").stat()
        place = self.scratch or Path("/tmp") / "gelato-sweeps"
        if self.scratch is None:
            note(f"not every node sees {self.folder.folder}; groups run in {place} on the nodes")
        return place / f"{self.folder.folder.name}-{identity.st_ino}-{identity.st_mtime_ns}"

    def _keep(self, group: SweepGroup, outcome: Outcome) -> Outcome:
        """Keep what a group left: its folder, its log, and its records."""
        folder = self._find_folder(group)
        error = outcome.error
        if error is None:
            try:
                if isinstance(outcome.value, bytes):
                    _place_folder(outcome.value, folder)
                self._read_finished(group)
                self._write_records()
            except (InputError, OSError, tarfile.TarError) as problem:
                error = describe_error(problem)
        if error is not None:
            self.failed[group.name] = error
            log = folder.parent / f"{folder.name}.log"
            # The table shows the error too, so the sweep goes on without the log.
            with suppress(OSError), log.open("a") as file:
                file.write(f"{outcome.log}failed on {outcome.node or 'a node'}: {error}\n")
        return Outcome(outcome.job, outcome.node, error=error)

    def _read_finished(self, group: SweepGroup) -> None:
        """Read the records of a group if it is finished. Damage counts as a failure."""
        folder = Run(self._find_folder(group))
        if not (folder.folder / "results.json").exists():
            return
        try:
            self.records[group.name] = folder.read_records()
        except InputError as error:
            self.failed[group.name] = str(error)

    def _find_folder(self, group: SweepGroup) -> Path:
        return self.folder.folder / "groups" / group.name

    def _list_records(self) -> list[Record]:
        """Return the records of all finished groups, in the order of the plan."""
        found: list[Record] = []
        for group in self.groups:
            found += self.records.get(group.name, [])
        return found

    def _write_records(self) -> None:
        records = self._list_records()
        path = self.folder.folder / "results.json"
        if records and not (path.exists() and self.folder.read_records() == records):
            self.folder.write_records(records)

    def _describe_failures(self) -> str:
        """Say in one line what failed, where the logs are and how to run it again."""
        names = list(self.failed)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        logs = self.folder.folder / "groups"
        return (
            f"{len(names)} of {len(self.groups)} groups failed: {shown}. Their logs are "
            f"{logs}/NAME.log. Finished groups are kept; to run the failed ones again, repeat: "
            f"{describe_command()}"
        )


def describe_command() -> str:
    """Return the command that started this process, as one can type it."""
    program = Path(sys.argv[0]).name
    if program == "__main__.py":
        program = "python -m gelato"
    return f"{program} {shlex.join(sys.argv[1:])}".strip()


def _place_folder(packed: bytes, folder: Path) -> None:
    """Unpack a group's folder under a hidden name and rename it, so that it is whole or absent."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is a file or a link, not the folder of a group; remove it")
    partial = folder.with_name(hide_name())
    try:
        partial.mkdir()
        unpack_folder(packed, partial)
        if folder.exists():
            # An unfinished run of this group, from before it ran on the node's own disk.
            shutil.rmtree(folder)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_partial(groups: Path) -> None:
    """Remove what killed sweeps left behind.

    The sweep holds the lock of its folder. So a folder with a hidden name has no other owner, if
    locks work there.
    """
    remove_leftovers(groups)
    if not has_locks(groups):
        return
    for entry in groups.iterdir():
        if is_leftover(entry.name) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
