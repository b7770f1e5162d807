"""A fit from the disk gives the weights of a fit from memory, and resumes bit for bit."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest

from gelato.data import import_columns, load
from gelato.errors import InputError
from gelato.model import pools, training
from gelato.model.fit import MEANS, VARIANCES
from gelato.model.pools import Pools
from gelato.model.split import split_dataset
from gelato.model.training import fit_model
from tests.model.test_fit import TINY, linear_gaussian

# Every phase has several blocks of updates.
CONFIG = replace(TINY, updates=500, variance_updates=300)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("columns"))


def write_store(folder: Path) -> str:
    data = linear_gaussian(2_000).transitions
    np.savez(
        folder / "log.npz",
        observations=data.states,
        actions=data.actions,
        rewards=data.rewards,
        next_observations=data.next_states,
        terminals=data.terminated,
        timeouts=data.truncated,
    )
    reference = f"file:{folder / 'log.npz'},low=-1,high=1"
    return import_columns(reference, folder / "store", block_rows=333).reference


def use_small_pools(patch: pytest.MonkeyPatch) -> None:
    """Make a few hundred rows too many for the device."""
    patch.setattr(pools, "BLOCK_ROWS", 64)
    patch.setattr(pools, "POOL_ROWS", 256)


def test_a_small_store_is_fitted_like_the_same_data_in_memory(reference: str, tmp_path: Path):
    stored = fit_model(load(reference), tmp_path / "disk", config=CONFIG)
    memory = fit_model(linear_gaussian(2_000), tmp_path / "memory", config=CONFIG)
    assert stored.split.fingerprint == memory.split.fingerprint
    assert eqx.tree_equal(stored.models, memory.models)


def test_pools_hold_the_same_rows_from_the_disk_and_from_memory(reference: str):
    found = []
    for dataset in (load(reference), linear_gaussian(2_000)):
        split = split_dataset(dataset)
        with Pools(*split.parts, split.scaling, CONFIG, (0, 3), pool_rows=256, block_rows=64) as it:
            of_both = [
                it.choose_pool(phase, 8 * number, length=8, total=80)
                for phase in (MEANS, VARIANCES)
                for number in range(9)
            ]
            found.append((of_both, it.choose_inputs(100)))
    assert eqx.tree_equal(*found)
    assert found[0][0][0].rows.shape == (256, 7)


def test_every_block_is_used_once_per_pass_in_another_order(reference: str):
    split = split_dataset(load(reference))
    with Pools(*split.parts, split.scaling, CONFIG, (0,), pool_rows=256, block_rows=64) as it:
        blocks = -(-len(split.train) // 64)
        order = np.concatenate([it.list_blocks(MEANS, number) for number in range(blocks)])
        passes = order.reshape(-1, blocks)
        assert (np.sort(passes, axis=1) == np.arange(blocks)).all()
        assert (passes[0] != passes[1]).any() and len(passes) == 4
        again = np.concatenate([it.list_blocks(MEANS, number) for number in range(blocks)])
        np.testing.assert_array_equal(order, again)


def test_a_model_does_not_depend_on_the_seeds_fitted_with_it(reference: str):
    split = split_dataset(load(reference))

    def read(seeds: tuple[int, ...]) -> np.ndarray:
        with Pools(*split.parts, split.scaling, CONFIG, seeds, pool_rows=256, block_rows=64) as it:
            return np.asarray(it.choose_pool(MEANS, 16, length=8, total=20).counts[-1])

    np.testing.assert_array_equal(read((0, 5)), read((5,)))


@pytest.mark.slow
def test_pools_learn_as_well_as_all_rows_together(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = replace(CONFIG, updates=2_000, variance_updates=200)
    together = fit_model(load(reference), tmp_path / "memory", config=config)
    use_small_pools(monkeypatch)
    pooled = fit_model(load(reference), tmp_path / "pools", config=config)
    losses = []
    for fitted in (together, pooled):
        rows = [row for row in fitted.run.metrics if row["phase"] == "means"]
        losses.append(min(float(row["held_out"]) for row in rows))
    assert not eqx.tree_equal(together.models, pooled.models)
    assert losses[1] < losses[0] + 0.2


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import pytest
from gelato.data import load
from gelato.runs import loop
from tests.model.test_pools import CONFIG, use_small_pools, fit_model
loop.CHECKPOINT_SECONDS = 0.0
use_small_pools(pytest.MonkeyPatch())
fit_model(load(sys.argv[1]), sys.argv[2], config=CONFIG)
"""


@pytest.mark.slow
def test_a_fit_from_the_disk_that_was_killed_ends_bit_for_bit_the_same(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_small_pools(monkeypatch)
    whole = fit_model(load(reference), tmp_path / "whole", config=CONFIG)
    script = SCRIPT.format(tests=str(Path(__file__).parents[2]))
    for after in (100, CONFIG.updates + 100):
        process = subprocess.Popen(
            [sys.executable, "-c", script, reference, str(tmp_path / "killed")],
            stderr=subprocess.PIPE,
        )
        deadline, newest = time.monotonic() + 120, 0
        while newest < after and process.poll() is None and time.monotonic() < deadline:
            files = (tmp_path / "killed/checkpoints").glob("[0-9]*.npz")
            newest = max((int(file.stem) for file in files), default=0)
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "killed/model.npz").exists(), "it was killed before the end"
    resumed = fit_model(load(reference), tmp_path / "killed", config=CONFIG)
    assert eqx.tree_equal(resumed.models, whole.models)


def test_a_store_cut_short_during_a_fit_stops_it_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dataset = load(write_store(tmp_path))
    use_small_pools(monkeypatch)
    run_block = training.run_block

    def cut(*given: object, **options: object) -> object:
        os.truncate(tmp_path / "store" / "rewards.npy", 1_000)
        return run_block(*given, **options)

    monkeypatch.setattr(training, "run_block", cut)
    with pytest.raises(InputError, match=r"rewards.npy: .*cut short"):
        fit_model(dataset, tmp_path / "run", config=CONFIG)
