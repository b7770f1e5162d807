"""A sweep on a real Ray cluster of three nodes on this machine, with nodes and drivers that die."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gelato.errors import InputError
from gelato.runs.folder import Run
from gelato.sweep import run_sweep
from gelato.sweep.spec import read_sweep
from tests.sweep.small import (
    list_policies,
    make_command,
    make_environment,
    run_command,
    write_log,
    write_spec,
)

pytestmark = pytest.mark.integration
ray = pytest.importorskip("ray", reason="needs the extra ray")
_NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
_SECONDS = 600.0


class Machines:
    """A cluster whose head has no cores, and nodes that a test adds and kills."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {**_NODE, "num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **options: object) -> object:
        return self.cluster.add_node(**{**_NODE, **options})

    def kill(self, node: object) -> None:
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONPATH",):
            patch.setenv(name, make_environment()[name])
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = Machines()
        try:
            yield found
        finally:
            ray.shutdown()
            found.cluster.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    logs = [write_log(folder / f"log{number}.npz", number) for number in range(2)]
    # 2 logs × 2 methods × 6 seeds, each in a group of its own: 24 trials.
    write_spec(folder / "many.py", logs, seeds=6, seeds_per_group=1, updates=400, evaluations=4)
    write_spec(folder / "few.py", logs[:1], seeds=2)
    return folder


def list_finished(run: Path) -> list[Path]:
    return sorted(run.glob("groups/*/results.json"))


def wait_for(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until this number of groups is finished."""
    deadline = time.monotonic() + _SECONDS
    while len(list_finished(run)) < count:
        assert process.poll() is None, "the sweep ended early"
        assert time.monotonic() < deadline, f"only {len(list_finished(run))} groups are finished"
        time.sleep(0.05)


def test_24_trials_survive_a_dead_node_and_a_dead_driver_bit_for_bit(
    machines: Machines, place: Path, tmp_path: Path
):
    nodes = [machines.add(), machines.add()]
    run = tmp_path / "run"
    arguments = (place / "many.py", "--run", run, "--address", machines.address, "--cores", 1)
    process = subprocess.Popen(
        make_command(*arguments),
        env=make_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(run, 5, process)
    machines.kill(nodes[0])
    wait_for(run, 10, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = list_finished(run)
    assert 10 <= len(finished) < 24
    kept = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in finished}
    logs = {path: _find_log(path).read_text() for path in finished}
    machines.add()

    repeated = run_command(*arguments)
    assert repeated.returncode == 0, repeated.stderr
    assert f"{24 - len(finished)} of 24 groups to run" in repeated.stderr
    assert len(list_finished(run)) == 24
    for path in finished:
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == kept[path]
        assert _find_log(path).read_text() == logs[path]

    alone = tmp_path / "alone"
    sequential = run_command(place / "many.py", "--run", alone, "--cores", 1)
    assert sequential.returncode == 0, sequential.stderr
    assert len(Run(run).read_records()) == 24
    assert (run / "results.json").read_bytes() == (alone / "results.json").read_bytes()
    assert len(list_policies(run)) == 24 and list_policies(run) == list_policies(alone)


def _find_log(results: Path) -> Path:
    return results.parent.with_name(f"{results.parent.name}.log")


def test_groups_on_the_nodes_own_disks_are_copied_back(
    machines: Machines, place: Path, tmp_path: Path
):
    machines.add()
    sweep, source = read_sweep(place / "few.py")
    options = {"address": machines.address, "cores": 1, "source": source}
    shared = run_sweep(sweep, tmp_path / "shared", **options)
    copied = run_sweep(sweep, tmp_path / "copied", scratch=tmp_path / "disk", **options)
    assert copied == shared
    assert list_policies(tmp_path / "copied") == list_policies(tmp_path / "shared")
    assert len(list((tmp_path / "disk").glob("*/*/results.json"))) == 2
    assert not list((tmp_path / "copied/groups").glob("*.log"))


def test_small_groups_share_a_gpu(machines: Machines, place: Path, tmp_path: Path):
    """Ray counts GPUs that a node claims to have; the groups themselves run on the CPU."""
    machines.add(num_cpus=2, num_gpus=1)
    arguments = (place / "few.py", "--address", machines.address, "--cores", 1)
    done = run_command(*arguments, "--run", tmp_path / "half", "--gpus", 0.5)
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ")[1] for line in done.stderr.splitlines() if "log0-" in line]
    assert [line.split()[0] for line in lines] == ["started", "started", "finished", "finished"]
    done = run_command(*arguments, "--run", tmp_path / "whole", "--gpus", 1)
    lines = [line.split(": ")[1] for line in done.stderr.splitlines() if "log0-" in line]
    assert [line.split()[0] for line in lines] == ["started", "finished", "started", "finished"]
    with pytest.raises(InputError, match="no node has 2 cores and 2 GPUs for a group"):
        sweep, source = read_sweep(place / "few.py")
        run_sweep(sweep, tmp_path / "two", address=machines.address, gpus=2.0, source=source)


def test_a_node_with_another_version_is_refused(machines: Machines, place: Path, tmp_path: Path):
    folder = tmp_path / "other" / "jax-0.1.2.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.1.2\n")
    path = f"{folder.parent}{os.pathsep}{make_environment()['PYTHONPATH']}"
    machines.add()
    machines.add(env_vars={"PYTHONPATH": path})
    sweep, source = read_sweep(place / "few.py")
    with pytest.raises(InputError) as error:
        run_sweep(sweep, tmp_path / "run", address=machines.address, source=source)
    wanted = r"node .* has jax 0\.1\.2, but the sweep was started with jax [\d.]+\. Install the "
    assert re.match(wanted, str(error.value))
    assert not (tmp_path / "run").exists()


def test_a_node_without_the_data_is_one_line(machines: Machines, place: Path, tmp_path: Path):
    """The store of the second node is empty and closed, so it cannot make the dataset either."""
    machines.add()
    log = write_log(tmp_path / "log.npz")
    sweep, source = read_sweep(write_spec(tmp_path / "spec.py", [log], methods=["bc"]))
    options = {"address": machines.address, "cores": 1, "source": source}
    run_sweep(sweep, tmp_path / "planned", **options)
    for path in (tmp_path / "planned/groups").iterdir():
        subprocess.run(["rm", "-r", str(path)], check=True)
    log.unlink()
    with pytest.raises(InputError, match=r"1 of 1 groups failed: log-bc\. Their logs are"):
        run_sweep(sweep, tmp_path / "planned", **options)
    text = (tmp_path / "planned/groups/log-bc.log").read_text()
    assert f"failed on {socket.gethostname()}: " in text and "no such file" in text


def test_ctrl_c_stores_checkpoints_and_the_command_continues(
    machines: Machines, place: Path, tmp_path: Path
):
    machines.add()
    log = place / "log0.npz"
    spec = write_spec(tmp_path / "long.py", [log], methods=["bc"], updates=200_000)
    arguments = (spec, "--run", tmp_path / "run", "--address", machines.address, "--cores", 1)
    process = subprocess.Popen(
        make_command(*arguments), env=make_environment(), stderr=subprocess.PIPE, text=True
    )
    group = tmp_path / "run/groups/log0-bc/policies/bc"
    deadline = time.monotonic() + _SECONDS
    while not (group / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=_SECONDS)
    assert process.returncode == 130 and "finished work is saved" in text
    assert len(Run(group).checkpoints) == 1
    assert not (group / "results.json").exists()


def test_a_full_disk_on_a_node_fails_its_groups_in_one_line(
    machines: Machines, place: Path, tmp_path: Path
):
    machines.add()
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        done = run_command(
            *(place / "few.py", "--run", tmp_path / "run", "--address", machines.address),
            *("--cores", 1, "--scratch", disk),
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 2
    # The disk holds one group. Its folder is in the run; that of the other is not.
    *_, line, last = done.stderr.splitlines()
    assert line.startswith("log0-iql: failed on ") and "No space left on device" in line
    assert last.startswith("gelato: 1 of 2 groups failed: log0-iql. Their logs are ")
    records = Run(tmp_path / "run").read_records()
    assert [record["method"] for record in records] == ["bc", "bc"]


def test_no_cluster_at_the_address_is_one_line(place: Path, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address, problem in (
        (f"127.0.0.1:{port}", f"127.0.0.1:{port}: no answer (.*). Start the cluster with"),
        ("head", "--address head: write auto, local or HOST:PORT"),
        ("auto", "no Ray cluster found on this machine"),
    ):
        done = run_command(place / "few.py", "--run", tmp_path / "run", "--address", address)
        assert done.returncode == 2
        assert re.match(f"gelato: {problem}", done.stderr), done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()
