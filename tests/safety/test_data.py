"""Regression tests for every defect that attacks on datasets found."""

import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

import gelato
from gelato.cli import main
from gelato.data import store as minari_store
from gelato.data.named import Named, make_named
from gelato.data.recipes import RECIPES
from gelato.errors import InputError
from gelato.runs.memory import check_memory, find_free_memory


def make_log(path: Path, rewards: float = 0.0, episodes: int = 2) -> Path:
    ends = np.tile([0, 0, 0, 1], episodes)
    np.savez(
        path,
        observations=np.arange(8.0 * episodes).reshape(-1, 2),
        actions=np.full((4 * episodes, 1), 0.5),
        rewards=np.full(4 * episodes, rewards),
        timeouts=ends,
    )
    return path


def import_log(log: Path, name: str) -> None:
    main(["data", "import", f"file:{log}", "--name", name])


# 1. `data import --name X` deletes what is at X.
def test_an_import_into_a_namespace_deletes_no_dataset(store: Path, tmp_path: Path, capsys) -> None:
    log = make_log(tmp_path / "log.npz")
    import_log(log, "team-v2/log-v0")
    import_log(log, "team-v2/other-v0")
    with pytest.raises(SystemExit, match="2"):
        import_log(log, "team-v2")
    assert "team-v2 is not empty (it has log-v0)" in capsys.readouterr().err
    for name in ("team-v2/log-v0", "team-v2/other-v0"):
        assert len(gelato.load(f"minari:{name}").transitions) == 6
    with pytest.raises(InputError, match="not empty"):
        minari_store.write("team-v2", iter([]), 0)


def test_a_dataset_is_not_written_inside_another_one(store: Path, tmp_path: Path, capsys) -> None:
    log = make_log(tmp_path / "log.npz")
    import_log(log, "team-v2")
    with pytest.raises(SystemExit, match="2"):
        import_log(log, "team-v2/log-v0")
    assert "is a dataset and cannot hold another one" in capsys.readouterr().err
    (store / "mine-v0").write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        minari_store.check_id("mine-v0")
    (store / "empty-v0").mkdir()
    import_log(log, "empty-v0")
    assert len(gelato.load("minari:empty-v0").transitions) == 6


# 6. An HDF5 file can read the user's other files.
def write_private(folder: Path) -> Path:
    secret = folder / "secret.bin"
    secret.write_bytes(np.arange(8, dtype=np.float64).tobytes())
    return secret


def test_external_storage_is_refused(tmp_path: Path) -> None:
    secret = write_private(tmp_path)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["actions"], file["rewards"] = np.zeros((8, 1)), np.zeros(8)
        file.create_dataset("observations", (8, 1), "f8", external=[(str(secret), 0, 64)])
    with pytest.raises(InputError, match=r"values from other files \(external storage\)"):
        gelato.load(f"file:{tmp_path / 'log.hdf5'}")


def test_virtual_datasets_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["private"] = np.arange(8.0)
    layout = h5py.VirtualLayout((8,), "f8")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.hdf5", "private", (8,))
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file["actions"], file["observations"] = np.zeros((8, 1)), np.zeros((8, 1))
        file.create_virtual_dataset("rewards", layout)
    for source in ("file", "d4rl"):
        with pytest.raises(InputError, match=r"values from other files \(a virtual dataset\)"):
            gelato.load(f"{source}:{tmp_path / 'log.hdf5'}")


@pytest.mark.parametrize("how", ["link", "external", "virtual"])
def test_a_minari_dataset_reads_no_other_file(store: Path, tmp_path: Path, how: str) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    main_file = store / "mine" / "log-v0" / "data" / "main_data.hdf5"
    shutil.copy(main_file, tmp_path / "other.hdf5")
    with h5py.File(main_file, "a") as file:
        group = file["episode_1"]
        shape = group["rewards"].shape
        del group["rewards"]
        if how == "link":
            group["rewards"] = h5py.ExternalLink(tmp_path / "other.hdf5", "episode_1/rewards")
        elif how == "external":
            secret = write_private(tmp_path)
            group.create_dataset("rewards", shape, "f4", external=[(str(secret), 0, 64)])
        else:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "episode_1/rewards", shape)
            group.create_virtual_dataset("rewards", layout)
    with pytest.raises(InputError, match=r"minari:mine/log-v0: episode_1/rewards .*other file"):
        gelato.load("minari:mine/log-v0")


def test_a_minari_dataset_holds_no_deep_groups_and_no_texts(store: Path, tmp_path: Path) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    main_file = store / "mine" / "log-v0" / "data" / "main_data.hdf5"
    whole = main_file.read_bytes()
    with h5py.File(main_file, "a") as file:
        file.create_group("/".join(["a"] * 200))
    with pytest.raises(InputError, match="nested more than 100 levels deep"):
        gelato.load("minari:mine/log-v0")
    main_file.write_bytes(whole)
    with h5py.File(main_file, "a") as file:
        del file["episode_1/rewards"]
        file["episode_1"].create_dataset("rewards", data=["one", "two", "three"])
    with pytest.raises(InputError, match="episode_1/rewards holds texts or lists"):
        gelato.load("minari:mine/log-v0")


# 7. A file of 1,944 bytes costs 11 GB and 165 s.
def test_a_small_file_with_many_unwritten_rows_costs_nothing(tmp_path: Path) -> None:
    rows, path = 50_000_000, tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        for name, shape in {
            "observations": (rows, 2),
            "actions": (rows, 1),
            "rewards": (rows,),
        }.items():
            file.create_dataset(name, shape, "f4", chunks=(1000, *shape[1:]))
    assert path.stat().st_size < 10_000
    begun = time.monotonic()
    tracemalloc.start()
    with pytest.raises(InputError, match=r"observations claims 400 MB, but the file stores 0"):
        gelato.load(f"file:{path}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6 and time.monotonic() - begun < 10


def add_header(path: Path, shape: tuple[int, ...]) -> None:
    """Add the field `timeouts2` to a log: the header of an array of this shape, and no values."""
    described = str({"descr": "<f8", "fortran_order": False, "shape": shape})
    header = b"\x93NUMPY\x01\x00\x76\x00" + described.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("timeouts2.npy", header)


def test_a_zip_file_that_claims_more_than_it_holds_costs_nothing(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log.npz")
    add_header(path, (10**15, 1))
    with pytest.raises(InputError, match=r"timeouts2 cannot be read .its shape"):
        gelato.load(f"file:{path},timeouts=timeouts2")


def test_memory_is_compared_with_what_is_free() -> None:
    free = find_free_memory()
    if free is None:
        pytest.skip("this system does not say how much memory is free")
    check_memory("a file", 10**7, 1)
    with pytest.raises(InputError, match=r"a file needs .* GB of memory, but only"):
        check_memory("a file", 10 * free, 10 * free)


# 8. Containers that share a store delete each other's unfinished work.
def test_work_in_another_process_namespace_is_kept_and_that_of_the_dead_removed(
    store: Path,
) -> None:
    namespace = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("this machine does not let us make a process namespace")
    script = (
        "from gelato.data import store\n"
        "with store._open_partial() as partial:\n"
        "    print(partial, flush=True); input()"
    )
    store.mkdir()
    with subprocess.Popen(
        [*namespace, sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        partial = Path(other.stdout.readline().strip())
        make_named(Named(RECIPES["four-rooms"], 10), workers=1)
        assert partial.is_dir()
        other.kill()
        other.wait()
    deadline = time.monotonic() + 10  # The kernel ends the other namespace soon.
    while partial.exists() and time.monotonic() < deadline:
        minari_store.remove_stale()
        time.sleep(0.05)
    assert not partial.exists()
    assert not list(store.glob(".gelato-partial-*"))


def test_what_a_finished_import_left_is_removed_by_the_next_command(
    store: Path, tmp_path: Path
) -> None:
    """A process was killed after its dataset was complete, and the repeated command refuses."""
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    leftover = store / ".gelato-partial-0123456789abcdef"
    leftover.mkdir()
    (leftover / ".lock").touch()
    with pytest.raises(InputError, match="exists already"):
        minari_store.check_id("mine/log-v0")
    assert not leftover.exists()


def test_only_our_own_leftovers_are_removed_from_a_store(store: Path) -> None:
    kept = [store / ".gelato-partial-mine", store / ".gelato-partial-0123456789abcdef"]
    for folder in kept:
        folder.mkdir(parents=True)
        (folder / "thesis.tex").write_text("no lock is here, so gelato did not make it")
    (store / ".gelato-partial-fedcba9876543210").mkdir()
    make_named(Named(RECIPES["four-rooms"], 10), workers=1)
    assert all((folder / "thesis.tex").exists() for folder in kept)
    assert not (store / ".gelato-partial-fedcba9876543210").exists()


# 10. Other tracebacks.
@pytest.mark.slow
def test_every_damaged_byte_of_an_hdf5_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.zeros((4, 2)), np.zeros((4, 1))
        file["nested/rewards"], file["timeouts"] = np.zeros(4), np.ones(4)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        for value in (0, 255):
            if whole[place] == value:
                continue
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                gelato.load(f"file:{path},rewards=nested/rewards")
            except InputError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 100


def test_a_member_that_is_no_array_is_one_line(tmp_path: Path) -> None:
    path = make_log(tmp_path / "log.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("terminals", b"no array")
    with pytest.raises(InputError, match="terminals cannot be read"):
        gelato.load(f"file:{path}")


@pytest.mark.parametrize("shape", [(2**63,), (10**30, 2), (2**32, 2**32), (-4, 2)])
def test_a_shape_too_large_for_a_c_long_is_one_line(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = make_log(tmp_path / "log.npz")
    add_header(path, shape)
    with pytest.raises(InputError, match="timeouts2 cannot be read") as raised:
        gelato.load(f"file:{path},timeouts=timeouts2")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "name", ["aa/-v0", "-v0", "../x", "/tmp/x", "a//b-v0", "a b", "x/../../y", "a/b/../c-v0"]
)
def test_a_name_that_is_no_id_is_one_line(store: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not a Minari id"):
        minari_store.check_id(name)


# 11. The flat copy beside a Minari dataset is validated by size and time only.
def test_a_changed_dataset_with_its_old_time_is_read_again(store: Path, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log.npz", rewards=1.0, episodes=600)
    import_log(log, "mine/log-v0")
    folder = store / "mine" / "log-v0"
    copy, main_file = folder / ".gelato" / "transitions.npz", folder / "data" / "main_data.hdf5"
    assert copy.exists()
    before = main_file.stat()
    with h5py.File(main_file, "a") as file:
        file["episode_0/rewards"][0] = 99
    os.utime(main_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert main_file.stat().st_size == before.st_size
    assert gelato.load("minari:mine/log-v0").transitions.rewards[0] == 99


def test_a_dataset_that_was_copied_keeps_its_flat_copy(store: Path, tmp_path: Path) -> None:
    import_log(make_log(tmp_path / "log.npz", episodes=600), "mine/log-v0")
    shutil.copytree(store / "mine", store / "yours")
    metadata = store / "yours" / "log-v0" / "data" / "metadata.json"
    copy = store / "yours" / "log-v0" / ".gelato" / "transitions.npz"
    stamp = str(np.load(copy)["stamp"])
    first = gelato.load("minari:yours/log-v0").transitions.fingerprint()
    assert str(np.load(copy)["stamp"]) != stamp  # Its content was the same, so it was stamped.
    metadata.write_text(metadata.read_text() + " ")
    assert gelato.load("minari:yours/log-v0").transitions.fingerprint() == first


def test_a_flat_copy_with_other_columns_is_ignored(store: Path, tmp_path: Path) -> None:
    import_log(make_log(tmp_path / "log.npz", episodes=600), "mine/log-v0")
    copy = store / "mine" / "log-v0" / ".gelato" / "transitions.npz"
    before = gelato.load("minari:mine/log-v0").transitions.fingerprint()
    with np.load(copy) as saved:
        columns = dict(saved)
    for changed in ({"colour": np.zeros(3)}, {"rewards": np.zeros(3, np.float32)}):
        np.savez(copy, **{**columns, **changed})
        assert gelato.load("minari:mine/log-v0").transitions.fingerprint() == before


# 12. Threads, and paths outside the store.
@pytest.mark.slow
def test_two_threads_make_datasets_at_the_same_time(store: Path) -> None:
    names = [Named(RECIPES["four-rooms"], size) for size in (150, 200, 250, 300)]
    store.mkdir()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda named: make_named(named, workers=1), names))
    assert os.environ["MINARI_DATASETS_PATH"] == str(store)
    assert not list(store.glob(".gelato-partial-*"))
    together = [gelato.load(named.reference).transitions.fingerprint() for named in names]
    shutil.rmtree(store)
    alone = [gelato.load(named.reference).transitions.fingerprint() for named in names]
    assert together == alone


@pytest.mark.parametrize("name", ["../x-v0", "mine/../../x-v0", "{outside}/x-v0", "hf://../x-v0"])
def test_a_reference_reads_nothing_outside_the_store(
    store: Path, tmp_path: Path, name: str
) -> None:
    import_log(make_log(tmp_path / "log.npz"), "x-v0")
    shutil.move(store / "x-v0", tmp_path / "x-v0")
    with pytest.raises(InputError, match="not a Minari id"):
        gelato.load(f"minari:{name.format(outside=tmp_path)}")


# Found in the second round of attacks.
def test_the_name_of_a_field_is_no_command_for_the_terminal(tmp_path: Path) -> None:
    """The fuzzer found a name with line breaks in it."""
    np.savez(tmp_path / "log.npz", **{"obs\n\x1b[2J\r": np.zeros(3)})
    with pytest.raises(InputError, match="no field observations") as raised:
        gelato.load(f"file:{tmp_path / 'log.npz'}")
    assert str(raised.value).isprintable() and r"obs\n\x1b[2J\r" in str(raised.value)


@pytest.mark.parametrize("name", ["../../victim", "[" * 5000, "aa/-v0", "no-version"])
def test_a_dataset_with_a_false_id_is_one_line(store: Path, tmp_path: Path, name: str) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path = store / "mine" / "log-v0" / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dataset_id": name}))
    with pytest.raises(InputError, match="minari:mine/log-v0: Minari cannot open it"):
        gelato.load("minari:mine/log-v0")


@pytest.mark.parametrize("missing", ["action_space", "observation_space"])
def test_the_metadata_of_a_dataset_runs_no_program(
    store: Path, tmp_path: Path, missing: str
) -> None:
    """Minari makes the environment of a dataset without spaces: a program of the file's choice."""
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path, proof = store / "mine" / "log-v0" / "data" / "metadata.json", tmp_path / "proof"
    metadata = json.loads(path.read_text())
    del metadata[missing]
    spec = gymnasium.envs.registration.EnvSpec(
        "Hostile-v0",
        entry_point="subprocess:Popen",
        kwargs={"args": ["touch", str(proof)]},
    )
    metadata["env_spec"] = spec.to_json()
    path.write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=f"has no {missing}"):
        gelato.load("minari:mine/log-v0")
    time.sleep(0.2)
    assert not proof.exists()


def test_the_environment_of_a_dataset_imports_no_module(
    store: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path = store / "mine" / "log-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    spec = gymnasium.envs.registration.EnvSpec("Hostile-v0", entry_point="hostile:Env")
    described = json.loads(spec.to_json())
    metadata["env_spec"] = json.dumps({**described, "id": "hostile:Hostile-v0"})
    path.write_text(json.dumps(metadata))
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert gelato.load("minari:mine/log-v0").environment is None
    assert "it is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Box", "dtype": "float32", "shape": [10**10], "low": 0, "high": 1},
        {"type": "Tuple", "subspaces": [{"type": "Box", "shape": [10**6, 10**6]}]},
        "not a dictionary",
    ],
)
def test_a_space_of_any_size_costs_nothing(store: Path, tmp_path: Path, space: object) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path = store / "mine" / "log-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["observation_space"] = json.dumps(space)
    path.write_text(json.dumps(metadata))
    with pytest.raises(InputError, match="minari:mine/log-v0"):
        gelato.load("minari:mine/log-v0")


@pytest.mark.parametrize("count", [10**12, -1, "many", None])
def test_episodes_that_do_not_exist_cost_nothing(
    store: Path, tmp_path: Path, count: object
) -> None:
    import_log(make_log(tmp_path / "log.npz"), "mine/log-v0")
    path = store / "mine" / "log-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "total_episodes": count}))
    with pytest.raises(InputError, match="total_episodes"):
        gelato.load("minari:mine/log-v0")
