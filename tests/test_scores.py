"""The tables of scores and the units that make them. The scripts themselves need a GPU."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gelato
from experiments.benchmarks import ablation, locomotion
from experiments.docs import render
from experiments.units import TINY, Clock, are_recorded
from gelato.cli.settings import set_options
from gelato.runs.records import Record
from gelato.training import choose_parts, make_method
from tests.golden.test_golden import CONTINUOUS


def make_record(dataset: str, change: str, seed: int, score: float) -> Record:
    return {
        "dataset": dataset,
        "change": change,
        "recipe": "",
        "penalty_weight": 3.0,
        "updates": 300_000,
        "seed": seed,
        "score": score,
        "late_score": score - 1,
    }


def render_file(name: str, records: list[Record], folder: Path, word: str = "") -> list[list[str]]:
    (folder / f"{name}.json").write_text(json.dumps(records))
    text = render(f"<!-- results/{name}.json {word}-->\n<!-- end -->", folder)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_difference_of_a_change_is_paired_and_has_an_interval_over_seeds(
    tmp_path: Path,
) -> None:
    base = {"hopper": (50.0, 60.0, 70.0), "walker2d": (10.0, 10.0, 10.0)}
    records = []
    for dataset, scores in base.items():
        for seed, score in enumerate(scores):
            records.append(make_record(dataset, "none", seed, score))
            # Seeds of the recipe differ by 10, but the change adds 4, 5 or 6 to each.
            records.append(make_record(dataset, "forwards", seed, score + 4 + seed))
    records.append(make_record("halfcheetah", "forwards", 0, 99.0))
    none, change = render_file("ablation", records, tmp_path)
    assert none == ["none", "3", "300,000", "2 × 3", "35.0", "34.0", "–"]
    # t of 4 degrees of freedom is 2.776; the error of each dataset's mean is 1/√3.
    half = 2.776 * np.sqrt(2 * (1 / 3)) / 2
    assert change[:2] == ["forwards", "3"]
    assert change[-1] == f"+5.0 ({5 - half:+.1f} to {5 + half:+.1f})"
    by_dataset = render_file("ablation", records, tmp_path, "datasets ")
    assert ["hopper", "forwards", "65.0", "54.0, 65.0, 76.0"] in by_dataset


def test_all_changes_together_are_the_first_nine() -> None:
    together = ablation.CHANGES["all"].settings
    alone = ("truncation-only", "weak-penalty", "one-discount", "long-fit", "many-updates")
    for name, change in ablation.CHANGES.items():
        inside = set(change.settings) <= set(together)
        assert inside == (name not in alone[2:]), name
    assert len(together) == len(set(together)) == 10


def test_every_change_is_a_setting_of_train_and_differs_from_the_recipe() -> None:
    dataset = gelato.load(CONTINUOUS)
    parts = choose_parts(dataset)
    for name, change in ablation.CHANGES.items():
        changed = set_options(parts, change.settings)
        if change.settings:
            assert (changed.sac, changed.latent) != (parts.sac, parts.latent), name
        method = make_method("gelato", changed)
        assert method.agent == changed.sac and method.fit == changed.latent
    set_options(parts, TINY)


def make_cell(method: str, weight: float, score: float, selected: bool) -> list[Record]:
    common: Record = {
        "dataset": "hopper-medium",
        "method": method,
        "penalty_weight": weight,
        "real_fraction": 0.05,
        "selected": selected,
        "recipe": "",
        "return": 100 * score,
    }
    return [{**common, "seed": seed, "score": score + seed} for seed in range(2)]


def test_the_table_shows_the_selected_cell_next_to_the_best_one(tmp_path: Path) -> None:
    records = [
        *make_cell("gelato", 1.0, 70.0, selected=False),
        *make_cell("gelato", 10.0, 60.0, selected=True),
        *make_cell("bc", 0.0, 40.0, selected=True),
    ]
    gelato_row, bc_row, *means = render_file("locomotion_cells", records, tmp_path)
    assert gelato_row[2:] == ["λ 10, 5% real", "60.5", "60.0, 61.0", "70.5 (λ 1, 5% real)", "2"]
    assert bc_row[2:4] == ["λ 0, 5% real", "40.5"]
    assert [row[:4] for row in means] == [
        ["mean of 1", "gelato", "–", "60.5"],
        ["mean of 1", "bc", "–", "40.5"],
    ]
    locomotion.publish(records, tmp_path / "published.json")
    published = json.loads((tmp_path / "published.json").read_text())
    assert [(row["method"], row["penalty_weight"], row["seed"]) for row in published] == [
        ("bc", 0.0, 0),
        ("bc", 0.0, 1),
        ("gelato", 10.0, 0),
        ("gelato", 10.0, 1),
    ]
    assert all("selected" not in row for row in published)


def test_a_unit_is_done_when_every_seed_has_a_record_with_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    wanted = [{"method": "gelato", "penalty_weight": weight} for weight in (1.0, 10.0)]
    assert not are_recorded(path, wanted, 2)
    cells = [make_cell("gelato", 1.0, 1.0, False), make_cell("gelato", 10.0, 1.0, True)]
    path.write_text(json.dumps(cells[0]))
    assert not are_recorded(path, wanted, 2)
    path.write_text(json.dumps([*cells[0], *cells[1]]))
    assert are_recorded(path, wanted, 2)
    assert not are_recorded(path, wanted, 3)
    assert not are_recorded(path, [{**wanted[0], "updates": 5}], 2)


def test_a_unit_that_took_longer_than_what_is_left_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops: list[float] = []
    monkeypatch.setattr("experiments.units.stop_after", stops.append)
    clock = Clock(9.0)
    assert stops == [540.0]
    assert clock.has_time_for("gelato")
    clock.note("gelato", 600.0)
    assert not clock.has_time_for("gelato") and clock.has_time_for("bc")
    assert Clock(None).has_time_for("gelato")


def test_the_grid_has_one_cell_for_each_weight_and_fraction_a_method_uses() -> None:
    dataset = gelato.load(CONTINUOUS)
    parts = replace(
        choose_parts(dataset),
        penalty_weights=locomotion.WEIGHTS,
        real_fractions=locomotion.FRACTIONS,
    )
    counts = {}
    for group in locomotion.GROUPS:
        for name in group:
            counts[name] = len(locomotion.make_grid(name, parts))
    many = dict.fromkeys(("gelato", "gelato-l2", "gelato-ensemble", "mopo", "mobile"), 6)
    assert counts == {**many, "mbpo": 2, "sac": 1, "rebrac": 1, "iql": 1, "bc": 1}
