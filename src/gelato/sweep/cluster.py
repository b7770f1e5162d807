"""Workers on a Ray cluster. Ray schedules, places and retries the jobs."""

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gelato.errors import InputError, first_line, import_extra
from gelato.sweep.jobs import (
    Job,
    Outcome,
    PlanJob,
    Progress,
    compare_versions,
    list_deciding_versions,
    run_job,
)
from gelato.sweep.workers import AbstractWorkers, Event, limit_cores

_SECONDS_TO_CONNECT, _SECONDS_TO_PROBE, _SECONDS_TO_STOP = 5.0, 120.0, 60.0
_POLL_SECONDS = 0.25
# How often Ray starts a job again whose node or process died.
_RETRIES = 3
# Share of a GPU's memory that JAX takes, of the share that the group has.
_MEMORY_SHARE = 0.9
# Variables that jobs inherit. The head may have another platform than the nodes.
_FORWARDED = re.compile(r"(GELATO|XLA|MINARI)_\w+|JAX_(?!PLATFORM)\w+")


@dataclass(frozen=True)
class Node:
    """A living node of a cluster."""

    id: str
    name: str
    cores: float
    gpus: float


@dataclass
class RayWorkers(AbstractWorkers):
    """Workers on a Ray cluster: `auto`, `HOST:PORT`, or `local` for a new one on this machine.

    Every group gets `cores` cores and `gpus` GPUs. Default: one core; on a cluster with GPUs one
    GPU and its share of the node's cores.
    """

    address: str
    cores: int | None = None
    gpus: float | None = None
    nodes: list[Node] = field(default_factory=list)
    _owns: bool = False

    def __enter__(self) -> "RayWorkers":
        ray = import_extra("ray", "ray")
        if not ray.is_initialized():
            _connect(ray, self.address)
            self._owns = True
        try:
            self.nodes = _list_nodes(ray)
            self._choose_resources()
            self._check_versions(ray)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        ray = import_extra("ray", "ray")
        if self._owns:
            ray.shutdown()
            self._owns = False

    def sees(self, marker: str) -> bool:
        ray = import_extra("ray", "ray")
        return all(seen for seen in self._ask_nodes(ray, _sees_file, marker))

    def run(self, jobs: Sequence[Job]) -> Iterator[Event | None]:
        ray = import_extra("ray", "ray")
        strategies = ray.util.scheduling_strategies
        # The board lives here, because the sweep needs it as long as this process.
        here = strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        task = ray.remote(_run_on_node)
        pending: dict[Any, Job] = {}
        try:
            for job in jobs:
                options = self._make_options(isinstance(job, PlanJob))
                pending[task.options(**options).remote(job, board)] = job
            while pending:
                done, _ = ray.wait(list(pending), num_returns=1, timeout=_POLL_SECONDS)
                yield from ray.get(board.read.remote())
                yield None
                for reference in done:
                    yield _take_outcome(ray, reference, pending.pop(reference))
        finally:
            _stop(ray, list(pending))

    def _choose_resources(self) -> None:
        """Choose the cores and GPUs of a group, and check that a node has them."""
        with_gpu = [node for node in self.nodes if node.gpus]
        if self.gpus is None:
            self.gpus = 1.0 if with_gpu else 0.0
        if self.cores is None:
            self.cores = 1
            if with_gpu and self.gpus:
                shares = [node.cores * min(1.0, self.gpus / node.gpus) for node in with_gpu]
                self.cores = max(1, int(min(shares)))
        if not any(node.cores >= self.cores and node.gpus >= self.gpus for node in self.nodes):
            largest = max(self.nodes, key=lambda node: (node.gpus, node.cores))
            raise InputError(
                f"no node has {self.cores} cores and {self.gpus:g} GPUs for a group; the largest, "
                f"{largest.name}, has {largest.cores:g} cores and {largest.gpus:g} GPUs. Change "
                "--cores or --gpus"
            )

    def _make_options(self, plans: bool) -> dict[str, Any]:
        """Return Ray's options of a job; making data uses all cores of a node."""
        assert self.cores is not None and self.gpus is not None
        cores, gpus = self.cores, self.gpus
        if plans:
            # Every node that can run a group can also make data.
            fitting = [n.cores for n in self.nodes if n.cores >= cores and n.gpus >= gpus]
            cores, gpus = int(min(fitting)), 0.0
        variables = {k: v for k, v in os.environ.items() if _FORWARDED.fullmatch(k)}
        variables |= limit_cores(cores)
        if plans:
            variables["JAX_PLATFORMS"] = "cpu"
        elif 0 < gpus < 1:
            variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_MEMORY_SHARE * gpus:.3f}"
        return {
            "num_cpus": cores,
            "num_gpus": gpus,
            "max_retries": _RETRIES,
            "runtime_env": {"env_vars": variables},
        }

    def _check_versions(self, ray: Any) -> None:
        """Refuse nodes on which the results would differ."""
        here = list_deciding_versions()
        for node, there in zip(self.nodes, self._ask_nodes(ray, list_deciding_versions)):
            compare_versions(node.name, there, here)

    def _ask_nodes(self, ray: Any, function: Any, *arguments: object) -> list[Any]:
        """Call a function on every node."""
        strategies = ray.util.scheduling_strategies
        asked = []
        for node in self.nodes:
            there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
            options = ray.remote(function).options(num_cpus=0, scheduling_strategy=there)
            asked.append(options.remote(*arguments))
        found = []
        for node, reference in zip(self.nodes, asked):
            try:
                found.append(ray.get(reference, timeout=_SECONDS_TO_PROBE))
            except ray.exceptions.RayError as error:
                why = _describe(ray, error)
                if "No module named 'gelato" in str(error):
                    why = f"gelato is not installed there; install gelato-rl on every node ({why})"
                raise InputError(f"node {node.name}: {why}") from error
        return found


class _Board:
    """Holds the newest progress of every job until the sweep reads it. A Ray actor."""

    def __init__(self) -> None:
        self._newest: dict[str, Progress] = {}

    def write(self, progress: Progress) -> None:
        self._newest[progress.job] = progress

    def read(self) -> list[Progress]:
        found, self._newest = list(self._newest.values()), {}
        return found


def _run_on_node(job: Job, board: Any) -> Outcome:
    return run_job(job, lambda progress: board.write.remote(progress))


def _sees_file(path: str) -> bool:
    return Path(path).exists()


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start one on this machine."""
    # Nothing is reported to Ray's developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if address != "auto":
        _check_answer(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if isinstance(error, ConnectionError) and address == "auto":
            raise InputError(
                "no Ray cluster found on this machine. Start one with `ray start --head`, give "
                "--address HOST:PORT, or use --address local"
            ) from error
        why = " ".join(str(error).split())
        raise InputError(f"{address}: cannot connect to the Ray cluster: {why}") from error


def _check_answer(address: str) -> None:
    """Raise an error if nothing listens at an address; Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--address {address}: write auto, local or HOST:PORT, such as head:6379")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{address}: no answer ({first_line(error)}). Start the cluster with `ray start "
            "--head`, or correct --address"
        ) from error


def _list_nodes(ray: Any) -> list[Node]:
    """List the living nodes that can run jobs."""
    found = []
    for node in ray.nodes():
        resources = node["Resources"]
        if not node["Alive"] or not resources.get("CPU"):
            continue
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        gpus = resources.get("GPU", 0.0)
        found.append(Node(node["NodeID"], name, resources["CPU"], gpus))
    if not found:
        raise InputError("the Ray cluster has no node with CPU cores. Add one with `ray start`")
    return found


def _take_outcome(ray: Any, reference: Any, job: Job) -> Outcome:
    """Return the outcome of a finished job; a crash of its process or node is an error."""
    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except ray.exceptions.RayError as error:
        return Outcome(job.name, "", error=_describe(ray, error))


def _describe(ray: Any, error: Exception) -> str:
    """Return an error of Ray as one line."""
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "Ray stopped it because the node ran out of memory; use fewer seeds per group"
    if isinstance(error, lost):
        return f"its process or node died {_RETRIES + 1} times"
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"no answer within {_SECONDS_TO_PROBE:.0f} s"
    cause = getattr(error, "cause", None)
    return f"{type(error).__name__}: {first_line(cause or error)}"


def _stop(ray: Any, references: list[Any]) -> None:
    """Interrupt jobs, and wait until they have stored their checkpoints."""
    for reference in references:
        with suppress(ray.exceptions.RayError):
            ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=_SECONDS_TO_STOP)
