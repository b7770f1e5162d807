"""A column store gives the transitions of its source, survives kills, and refuses damage."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import gelato
from gelato.cli import main
from gelato.data import import_columns, make_dataset, summarise
from gelato.data.column_store import StoreWriter, find_partial, open_writer
from gelato.data.disk_columns import DiskColumn
from gelato.data.quality import find_warnings
from gelato.data.store import write_transitions
from gelato.data.transitions import Standardiser, split
from gelato.errors import InputError
from gelato.model.config import DEFAULT
from gelato.model.data_checks import check_data, warn_about_data
from gelato.model.split import split_dataset

EPISODES, STEPS = 30, 11
BLOCK = 37


def make_log(*, successors: bool = False, flags: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = EPISODES * STEPS
    states = rng.normal(size=(rows, 3)).astype(np.float32)
    ends = np.arange(rows) % STEPS == STEPS - 1
    terminals = ends & (np.arange(rows) // STEPS % 3 == 0)
    log = {
        "observations": states,
        "actions": rng.uniform(-1, 1, (rows, 2)),
        "rewards": rng.normal(size=rows),
    }
    if successors:
        following = np.roll(states, -1, axis=0)
        following[ends] = rng.normal(size=(EPISODES, 3))
        log["next_observations"] = following
    if flags:
        log |= {"terminals": terminals, "timeouts": ends & ~terminals}
    return log


def write_npz(folder: Path, log: dict[str, np.ndarray]) -> str:
    np.savez(folder / "log.npz", **log)
    return f"file:{folder / 'log.npz'}"


def write_compressed_npz(folder: Path, log: dict[str, np.ndarray]) -> str:
    np.savez_compressed(folder / "log.npz", **log)
    return f"file:{folder / 'log.npz'}"


def write_hdf5(folder: Path, log: dict[str, np.ndarray]) -> str:
    with h5py.File(folder / "log.hdf5", "w") as file:
        for name, values in log.items():
            file[name] = values
    return f"file:{folder / 'log.hdf5'}"


def write_parquet(folder: Path, log: dict[str, np.ndarray]) -> str:
    columns = {name: values.tolist() for name, values in log.items()}
    table = pa.table(columns)
    pq.write_table(table.slice(0, 100), folder / "part-1.parquet", row_group_size=20)
    pq.write_table(table.slice(100), folder / "part-2.parquet", row_group_size=50)
    return f"parquet:{folder}/part-*.parquet"


WRITERS = (write_npz, write_compressed_npz, write_hdf5, write_parquet)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("successors", [True, False])
@pytest.mark.parametrize("flags", [True, False])
def test_an_import_in_blocks_equals_loading_the_file(
    tmp_path: Path,
    write: Callable[[Path, dict[str, np.ndarray]], str],
    successors: bool,
    flags: bool,
):
    reference = write(tmp_path, make_log(successors=successors, flags=flags))
    whole = gelato.load(reference)
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert stored.transitions.on_disk and len(list_blocks(tmp_path / "store")) > 3
    assert stored.transitions.fingerprint() == whole.transitions.fingerprint()
    everything = stored.transitions.read(0, len(whole.transitions))
    assert everything.fingerprint() == whole.transitions.fingerprint()
    assert stored.columns == whole.columns and stored.state_names == whole.state_names
    again = gelato.load(stored.reference)
    assert again.transitions.fingerprint() == whole.transitions.fingerprint()


def list_blocks(path: Path) -> list[dict[str, object]]:
    return json.loads((path / "columns.json").read_text())["blocks"]


@pytest.mark.parametrize(
    "options",
    [",episode=run,time=clock", ",low=-2,high=2,scale=2", ",low=-0.5,high=0.5,clip=yes"],
)
def test_options_of_the_reference_hold_in_blocks(tmp_path: Path, options: str):
    log = make_log(flags=False)
    rows = np.arange(len(log["rewards"]))
    log |= {"run": rows // STEPS, "clock": rows % STEPS * 0.1}
    reference = write_hdf5(tmp_path, log) + options
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert stored.transitions.fingerprint() == gelato.load(reference).transitions.fingerprint()


def test_discrete_actions_and_several_columns_per_field(tmp_path: Path):
    rows = np.arange(100)
    columns = {"x1": rows * 0.1, "x2": -rows * 1.0, "move": rows % 3, "gain": rows * 1.0}
    columns["done"] = (rows % 10 == 9).astype(np.uint8)
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=7)
    reference = f"parquet:{tmp_path / 'log.parquet'},observations=x*,actions=move,rewards=gain"
    whole = gelato.load(reference)
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert stored.transitions.fingerprint() == whole.transitions.fingerprint()
    assert (stored.state_names, stored.action_names) == (("x1", "x2"), ("move",))


def test_a_minari_dataset_is_imported_episode_by_episode(tmp_path: Path, store: Path):
    log = make_log()
    dataset = make_dataset(
        log["observations"],
        log["actions"],
        log["rewards"],
        terminals=log["terminals"],
        timeouts=log["timeouts"],
    )
    write_transitions("mine/log-v0", dataset, "A log.")
    whole = gelato.load("minari:mine/log-v0")
    stored = import_columns("minari:mine/log-v0", tmp_path / "columns", block_rows=BLOCK)
    assert stored.transitions.fingerprint() == whole.transitions.fingerprint()


def test_a_source_without_blocks_is_loaded_and_imported(tmp_path: Path):
    log = make_log()
    names = {f"x{place}": log["observations"][:, place] for place in range(3)}
    table = pa.table({**names, "a": log["actions"][:, 0], "r": log["rewards"]})
    csv.write_csv(table, tmp_path / "log.csv")
    reference = f"csv:{tmp_path / 'log.csv'},observations=x*,actions=a,rewards=r"
    stored = import_columns(reference, tmp_path / "store")
    assert stored.transitions.fingerprint() == gelato.load(reference).transitions.fingerprint()


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("write", WRITERS)
def test_a_killed_import_continues_after_the_last_finished_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., str]
):
    reference = write(tmp_path, make_log(successors=True))
    append, written = StoreWriter.append, []

    def count(self: StoreWriter, *arguments: object) -> None:
        if len(written) == 3:
            raise KilledError
        written.append(self.done)
        append(self, *arguments)

    monkeypatch.setattr(StoreWriter, "append", count)
    with pytest.raises(KilledError):
        import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert not (tmp_path / "store").exists()
    with pytest.raises(InputError, match="interrupted; repeat"):
        gelato.load(f"columns:{tmp_path / 'store'}")
    # A half-written fourth block, as a kill leaves it.
    with (find_partial(tmp_path / "store") / "states.npy").open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"garbage!")
    resumed: list[int] = []

    def note_start(self: StoreWriter, *arguments: object) -> None:
        resumed.append(self.done)
        append(self, *arguments)

    monkeypatch.setattr(StoreWriter, "append", note_start)
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert resumed[0] > written[-1] > 0
    assert stored.transitions.fingerprint() == gelato.load(reference).transitions.fingerprint()
    assert not find_partial(tmp_path / "store").exists()


def test_an_import_does_not_mix_two_versions_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = make_log()
    reference = write_npz(tmp_path, log)
    append = StoreWriter.append

    def stop(self: StoreWriter, *arguments: object) -> None:
        append(self, *arguments)
        raise KilledError

    monkeypatch.setattr(StoreWriter, "append", stop)
    with pytest.raises(KilledError):
        import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    write_npz(tmp_path, {**log, "rewards": log["rewards"] + 1})
    monkeypatch.undo()
    with pytest.raises(InputError, match="unfinished import of other data"):
        import_columns(reference, tmp_path / "store", block_rows=BLOCK)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[gelato.Dataset]:
    reference = write_npz(tmp_path, make_log())
    yield import_columns(reference, tmp_path / "store", block_rows=BLOCK)


@pytest.fixture
def whole(stored: gelato.Dataset, tmp_path: Path) -> gelato.Dataset:
    return gelato.load(f"file:{tmp_path / 'log.npz'}")


def test_nothing_is_written_over_a_store(stored: gelato.Dataset, tmp_path: Path):
    with pytest.raises(InputError, match="exists already"):
        import_columns(f"file:{tmp_path / 'log.npz'}", tmp_path / "store")


def test_a_store_that_was_cut_short_is_refused(stored: gelato.Dataset, tmp_path: Path):
    path = tmp_path / "store" / "rewards.npy"
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InputError, match=r"rewards.npy: has .* cut short or changed"):
        gelato.load(stored.reference)


def test_changed_values_are_refused_and_a_copy_is_not(stored: gelato.Dataset, tmp_path: Path):
    path = tmp_path / "store" / "states.npy"
    os.utime(path, (1, 1))
    gelato.load(stored.reference)
    values = np.load(path, mmap_mode="r+")
    values[100, 0] += 1
    values.flush()
    os.utime(path, (2, 2))
    with pytest.raises(InputError, match="rows 73 to 110 were changed"):
        gelato.load(stored.reference)


@pytest.mark.parametrize("change", ["cut", "write"])
def test_a_store_that_changes_while_it_is_used_is_refused(
    stored: gelato.Dataset, tmp_path: Path, change: str
):
    path = tmp_path / "store" / "states.npy"
    if change == "cut":
        os.truncate(path, 1000)
    else:
        values = np.load(path, mmap_mode="r+")
        values[0] = 3
        values.flush()
        os.utime(path)
    for use in (
        lambda: stored.transitions.states[np.array([300])],
        lambda: np.asarray(stored.transitions.states),
        stored.transitions.fingerprint,
    ):
        with pytest.raises(InputError, match="changed or cut short while it was read"):
            use()


def test_rows_are_chosen_as_from_an_array(stored: gelato.Dataset, whole: gelato.Dataset):
    rng = np.random.default_rng(1)
    array = np.asarray(whole.transitions.states)
    column = stored.transitions.states
    assert isinstance(column, DiskColumn)
    for _ in range(20):
        mask = rng.random(len(array)) < rng.random()
        rows = rng.integers(-mask.sum(), mask.sum(), 50) if mask.any() else np.zeros(0, int)
        start, stop = sorted(rng.integers(0, mask.sum() + 1, 2))
        np.testing.assert_array_equal(np.asarray(column[mask]), array[mask])
        np.testing.assert_array_equal(column[mask][rows], array[mask][rows])
        part = column[mask][start:stop]
        np.testing.assert_array_equal(np.asarray(part), array[mask][start:stop])
        inside = rng.random(stop - start) < 0.5
        np.testing.assert_array_equal(np.asarray(part[inside]), array[mask][start:stop][inside])
    assert column[-1].tolist() == array[-1].tolist()
    np.testing.assert_array_equal(column[10:2:-3], array[10:2:-3])


def test_summary_split_and_scaling_equal_those_in_memory(
    stored: gelato.Dataset, whole: gelato.Dataset, monkeypatch: pytest.MonkeyPatch
):
    # Nearly every stage then reads several blocks.
    monkeypatch.setattr("gelato.data.disk_columns._BLOCK_BYTES", 600)
    there, here = summarise(stored), summarise(whole)
    for each in (there, here):
        each.pop("reference")
    assert there == here
    parts = split(stored.transitions), split(whole.transitions)
    for disk, memory in zip(*parts):
        assert disk.on_disk and disk.fingerprint() == memory.fingerprint()
        scaling = Standardiser.fit(disk.states), Standardiser.fit(memory.states)
        np.testing.assert_allclose(scaling[0].mean, scaling[1].mean, rtol=1e-6)
        np.testing.assert_allclose(scaling[0].scale, scaling[1].scale, rtol=1e-6)


def test_scaling_from_one_block_is_the_same_bit_for_bit(
    stored: gelato.Dataset, whole: gelato.Dataset
):
    for name in ("states", "next_states"):
        disk = Standardiser.fit(getattr(stored.transitions, name))
        memory = Standardiser.fit(getattr(whole.transitions, name))
        np.testing.assert_array_equal(disk.mean, memory.mean)
        np.testing.assert_array_equal(disk.scale, memory.scale)


def test_rows_without_a_successor_are_dropped_as_in_memory(
    stored: gelato.Dataset, whole: gelato.Dataset
):
    disk, memory = stored.transitions.with_successors(), whole.transitions.with_successors()
    assert disk.on_disk and len(disk) < len(stored.transitions)
    assert disk.fingerprint() == memory.fingerprint()


def test_no_stage_loads_a_whole_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reference = write_npz(tmp_path, make_log(successors=True))
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    limit = 600
    monkeypatch.setattr("gelato.data.disk_columns._BLOCK_BYTES", limit)
    monkeypatch.setattr("gelato.data.quality._ROWS", 5)
    load = DiskColumn.__array__

    def refuse_large(column: DiskColumn, *arguments: object, **options: object) -> np.ndarray:
        assert column.nbytes <= limit
        return load(column, *arguments, **options)

    monkeypatch.setattr(DiskColumn, "__array__", refuse_large)
    with pytest.raises(AssertionError):
        np.asarray(stored.transitions.states)
    summarise(stored)
    find_warnings(stored)
    parts = split_dataset(stored)
    check_data(parts, replace(DEFAULT, batch_size=32))
    warn_about_data(parts, DEFAULT)
    assert np.ptp(stored.transitions.states) > 0


def test_an_import_that_finds_no_room_continues_when_there_is_some(tmp_path: Path):
    reference = write_hdf5(tmp_path, make_log())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, hard))
    try:
        with pytest.raises(InputError, match=r"cannot be written .* Finished blocks are kept"):
            import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stored = import_columns(reference, tmp_path / "store", block_rows=BLOCK)
    assert stored.transitions.fingerprint() == gelato.load(reference).transitions.fingerprint()


def test_two_imports_into_one_store_do_not_mix(tmp_path: Path):
    reference = write_npz(tmp_path, make_log())
    with (
        open_writer(tmp_path / "store", {}, 10),
        pytest.raises(InputError, match="another process"),
    ):
        import_columns(reference, tmp_path / "store")


def test_the_command_line_imports_and_summarises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    reference = write_npz(tmp_path, make_log())
    main(["data", "import", reference, "--columns", str(tmp_path / "store")])
    capsys.readouterr()
    main(["data", "info", f"columns:{tmp_path / 'store'}", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["transitions"] == EPISODES * STEPS
