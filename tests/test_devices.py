"""Several devices in one process give the numbers of one device, without communication."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.devices import PARTS, measure_difference, run_on
from experiments.pendulum import write_log
from gelato.devices import BY_SEED, join_devices, make_mesh, place
from gelato.runs.folder import Run
from gelato.training import sharding
from gelato.training.program import Population
from gelato.training.sharding import list_parts
from tests.sweep.small import make_environment

# Relative to the largest weight of an array, after 40 updates; measured: 3.3e-7.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[int, tuple[Path, dict]]:
    folder = tmp_path_factory.mktemp("devices")
    log = write_log(folder / "log.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", make_environment()["PYTHONPATH"])
        return {n: (folder / f"{n}", run_on(n, log, folder / f"{n}")) for n in (1, 8)}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_eight_devices_equal_one_up_to_rounding(runs, part):
    difference = measure_difference(runs[1][0] / f"{part}.npz", runs[8][0] / f"{part}.npz")
    assert difference < TOLERANCE


@pytest.mark.slow
def test_the_records_agree(runs):
    one, eight = (Run(runs[count][0]).read_records() for count in (1, 8))
    assert len(one) == len(eight) == 32
    for first, second in zip(one, eight, strict=True):
        assert first["return"] == pytest.approx(second["return"], rel=0.02)
        assert {**first, **second}.keys() == first.keys()


@pytest.mark.slow
def test_eight_devices_run_eight_parts_that_exchange_nothing(runs):
    _, found = runs[8]
    assert found["devices"] == 8 and found["partitions"] == [8, 8]
    assert found["exchange"] == ["all-gather"], "the search must find what it looks for"
    assert found["collectives"] == []
    assert runs[1][1] == {"devices": 1, "partitions": [], "collectives": [], "exchange": []}


def test_one_device_keeps_its_program():
    assert jax.device_count() == 1 and make_mesh(8, (1, 2)) is None
    tree = {"a": jnp.ones(3)}
    assert place(tree, None, BY_SEED) is tree and join_devices(tree, None) is tree


def test_devices_that_do_not_divide_the_work_are_named(capsys):
    four = jax.devices() * 4
    mesh = make_mesh(5, (1, 3), four)
    assert mesh.shape == {"variants": 3, "seeds": 1}
    assert "using 3 of 4 devices, because 5 seeds" in capsys.readouterr().err
    assert make_mesh(6, (1, 2), four).shape == {"variants": 2, "seeds": 2}
    assert capsys.readouterr().err == ""


def test_variants_are_divided_only_if_their_penalties_repeat():
    assert list_parts((0, 0, 0, 0)) == [1, 2, 4]
    assert list_parts((0, 1, 0, 1)) == [1, 2]
    assert list_parts((0, 0, 1, 1)) == [1]


def test_every_array_of_a_population_is_divided():
    arrays = {each.name for each in fields(Population) if not each.metadata.get("static")}
    assert set(sharding._SPECS) == arrays


@pytest.mark.slow
def test_a_training_that_ends_imagined_episodes_at_a_limit_is_divided():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-m", "tests.truncated_parts"],
        env=make_environment(XLA_FLAGS=flags),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
