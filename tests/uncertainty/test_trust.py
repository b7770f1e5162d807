"""Trust promises what it can, measures it, and refuses what it cannot promise."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from gelato.cli import main
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.model import training
from gelato.model.config import preset
from gelato.model.training import FittedModel
from gelato.uncertainty.bounds import choose_calibration_rows, number_episodes
from gelato.uncertainty.conformal import measure_coverage
from gelato.uncertainty.trust import Trust


@pytest.fixture(scope="module")
def rooms(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> FittedModel:
    """Make an untrained model of Four Rooms. Each episode has one step."""
    del shared_store
    dataset = load("four-rooms,transitions=500")
    small = dataclasses.replace(
        preset("default", dataset), decoders=3, hidden=(16,), forward_hidden=(16,), batch_size=32
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        return training.fit_model(dataset, tmp_path_factory.mktemp("runs") / "rooms", config=small)


@pytest.fixture(scope="module")
def others(rooms: FittedModel) -> Dataset:
    """Make new episodes of the same process."""
    del rooms
    return load("four-rooms,transitions=400,seed=1")


def test_bounds_and_limit_hold_for_new_episodes(rooms: FittedModel, others: Dataset) -> None:
    trust = Trust(rooms, coverage=0.8, false_alarm_rate=0.1)
    assert (trust.episodes, trust.bounds.coverage) == (50, pytest.approx(0.8))
    assert trust.false_alarm_rate == pytest.approx(0.1)
    judged = trust.of_data(others, 400)
    held = np.mean([float(row["error"]) <= float(row["error_bound"]) for row in judged])
    assert 0.7 < held < 0.93
    assert 0.02 < 1 - np.mean([row["trusted"] for row in judged]) < 0.2
    rows = others.transitions
    verdict = trust(np.asarray(rows.states), np.asarray(rows.actions))
    errors = np.abs(verdict.next_states - np.asarray(rows.next_states))
    covered = (errors <= verdict.error_bounds).mean(axis=0)
    assert (covered > 0.7).all() and (covered < 0.95).all()


def test_trust_compiles_few_programs(rooms: FittedModel, others: Dataset) -> None:
    """Each program takes two megabytes. Single operations on arrays made 150 of them."""
    compiled = 0

    def count(event: str, seconds: float, **_: str | int) -> None:
        nonlocal compiled
        del seconds
        compiled += event == "/jax/core/compile/backend_compile_duration"

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        Trust(rooms).of_data(others, 50)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert 5 < compiled < 50


def test_other_calibration_episodes_are_used_and_those_of_the_fit_refused(
    rooms: FittedModel, others: Dataset
) -> None:
    trust = Trust(rooms, calibration=others)
    assert trust.episodes == 400
    again = trust.of_data(others, 400)
    penalties = np.array([row["penalty"] for row in again], float)
    # The limit is a quantile of just these rows.
    assert measure_coverage(penalties, np.arange(400), trust.limit) == pytest.approx(0.9525)
    with pytest.raises(InputError, match="is the data that the model was fitted to"):
        Trust(rooms, calibration=rooms.dataset)
    with pytest.raises(InputError, match="false_alarm_rate is 0"):
        Trust(rooms, false_alarm_rate=0.0)


def test_calibration_rows_are_the_same_number_of_each_long_episode() -> None:
    dataset = load("hopper-medium,transitions=1000,seed=3")
    rows = choose_calibration_rows(dataset.transitions, most=200)
    episodes = number_episodes(dataset.transitions)
    counts = np.bincount(episodes[rows])
    lengths = np.bincount(episodes)
    each = 200 // len(lengths)
    np.testing.assert_array_equal(counts, np.minimum(lengths, each))
    assert len(set(rows.tolist())) == len(rows)


def test_the_command_states_what_is_promised_and_what_was_measured(
    rooms: FittedModel, others: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["trust", str(rooms.run.folder), others.reference, "--rows", "200"]
    main([*command, "--json", "--coverage", "0.8"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["coverage"] == pytest.approx(0.8) and answer["calibration_episodes"] == 50
    held = [row["error"] <= row["error_bound"] for row in answer["rows"]]
    assert answer["covered"] == np.mean(held)
    main(command)
    shown = capsys.readouterr().out
    assert "error bound holds for" in shown and "nothing else" in shown
    for wrong, message in [
        (["trust", str(rooms.run.folder)], "name the data to judge, or add --policy"),
        ([*command, "--coverage", "2"], "coverage is 2.0"),
        (["trust", str(rooms.run.folder), "--policy"], "Give the folder of a `gelato train` run"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert message in capsys.readouterr().err
