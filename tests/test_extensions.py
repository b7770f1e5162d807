"""A task, a source and a penalty of your own work together, with seeds, resume and the table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import examples.own_log  # noqa: F401 - registers the source `own-csv`
import gelato
from examples import own_penalty, own_task
from gelato.cli import main
from gelato.runs import loop
from gelato.training import group


def write_cart_log(path: Path) -> None:
    """Write the episodes of `own_task` as the CSV file that `own_log` reads."""
    rows = own_task.record_log(episodes=12).transitions
    last = rows.terminated | rows.truncated
    table = np.column_stack([rows.states, rows.actions, rows.rewards, last])
    np.savetxt(path, table, delimiter=",", header="s0,s1,a0,reward,last", comments="")


@pytest.fixture
def train_cart(tmp_path: Path) -> Callable[[str], list[gelato.runs.Record]]:
    """Return a function that trains the user's penalty in both spaces, two seeds each."""
    write_cart_log(tmp_path / "cart.csv")
    reference = f"own-csv:{tmp_path / 'cart.csv'},environment={own_task.CART.environment}"
    dataset = gelato.load(reference)
    parts = own_penalty.choose_tiny_parts(dataset)
    parts = replace(parts, sac=replace(parts.sac, hidden=(16,), updates=6, epoch=2, branches=8))
    methods = []
    for name in ("gelato", "mopo"):
        method = gelato.make_method(name, parts)
        methods.append(replace(method, penalty=own_penalty.build_nearest_point))
    settings = replace(parts.settings, points=300)

    def train(run: str) -> list[gelato.runs.Record]:
        return gelato.train(dataset, tmp_path / run, methods, seeds=2, settings=settings, workers=1)

    return train


@pytest.mark.slow
def test_a_task_a_source_and_a_penalty_of_your_own_resume_and_appear_in_the_table(
    train_cart: Callable[[str], list[gelato.runs.Record]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = train_cart("whole")
    assert [record["penalty"] for record in whole] == ["build_nearest_point"] * 4
    assert all(record["score"] is not None for record in whole), "the task gives scores"
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    original, calls = group.train_block, []

    def interrupt(*arguments, **settings):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    monkeypatch.setattr(group, "train_block", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_cart("killed")
    monkeypatch.setattr(group, "train_block", original)
    assert train_cart("killed") == whole
    for name in ("gelato", "mopo"):
        path = Path("policies") / name / "last.npz"
        first, second = np.load(tmp_path / "whole" / path), np.load(tmp_path / "killed" / path)
        for array in first.files:
            np.testing.assert_array_equal(first[array], second[array])
    main(["table", str(tmp_path / "whole")])
    shown = capsys.readouterr().out
    assert "| gelato |" in shown and "| mopo |" in shown
