"""The groups of a sweep: what one program trains on one dataset, as an ordinary training run."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gelato.data.reference import load
from gelato.data.sources import NAMED, parse_reference
from gelato.data.transitions import Dataset
from gelato.options import set_options
from gelato.sweep.spec import Sweep, blame
from gelato.training.method import Method, group_methods
from gelato.training.presets import Parts, choose_parts, make_method
from gelato.training.variants import choose_methods

_LONGEST_NAME = 80


@dataclass(frozen=True)
class SweepGroup:
    """Methods with equal fit and agent on one dataset, and some of the seeds.

    `name` is the group's folder. A worker makes the methods again from the sweep; `methods` are
    their names. `fingerprint` is that of the data when the sweep was planned.
    """

    name: str
    dataset: str
    fingerprint: str
    methods: tuple[str, ...]
    first_seed: int
    seeds: int

    @property
    def trials(self) -> int:
        """The number of policies."""
        return len(self.methods) * self.seeds

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def read_group(fields: dict[str, Any]) -> SweepGroup:
    """Make a group from what `SweepGroup.describe` returned."""
    return SweepGroup(**{**fields, "methods": tuple(fields["methods"])})


def make_parts(sweep: Sweep, dataset: Dataset) -> Parts:
    """Return the settings of a sweep for one dataset."""
    parts = choose_parts(dataset, sweep.preset)
    if sweep.updates is not None:
        parts = parts.change_updates(sweep.updates)
    for option in sweep.settings:
        with blame("settings", option):
            parts = set_options(parts, (option,))
    counts = {"evaluations": sweep.evaluations, "episodes": sweep.episodes}
    given: dict[str, int] = {name: value for name, value in counts.items() if value is not None}
    return replace(parts, settings=replace(parts.settings, **given))


def make_methods(sweep: Sweep, parts: Parts) -> list[Method]:
    """Return the methods of a sweep and their variants."""
    for name in sweep.methods:
        with blame("methods", name):
            make_method(name, parts)
    names, penalty = tuple(sweep.methods), sweep.penalty
    weights = tuple(sweep.penalty_weights) or None
    # Apply the options one after another, so that a refusal is blamed on the option that is new.
    with blame("penalty"):
        choose_methods(names, parts, penalty, None, ())
    with blame("penalty_weights"):
        choose_methods(names, parts, penalty, weights, ())
    for fraction in sweep.real_fractions:
        with blame("real_fractions", fraction):
            choose_methods(names, parts, penalty, weights, (fraction,))
    return choose_methods(names, parts, penalty, weights, tuple(sweep.real_fractions))


def plan_dataset(sweep: Sweep, reference: str) -> list[SweepGroup]:
    """Load a dataset, or make it, and list the groups that train on it."""
    with blame("datasets", reference):
        dataset = load(reference)
    methods = make_methods(sweep, make_parts(sweep, dataset))
    fingerprint = dataset.transitions.fingerprint()
    found = []
    for group in group_methods(methods):
        names = tuple(method.name for method in group.methods)
        for first, count in sweep.seed_ranges:
            part = group.name if count == sweep.seeds else f"{group.name}-seed{first}"
            if 1 < count < sweep.seeds:
                part = f"{part}-{first + count - 1}"
            name = f"{_make_folder_name(reference)}-{part}"
            found.append(SweepGroup(name, reference, fingerprint, names, first, count))
    return found


def name_apart(groups: Sequence[SweepGroup]) -> list[SweepGroup]:
    """Number the groups whose names are equal, because each needs a folder of its own."""
    known: dict[str, int] = {}
    found = []
    for group in groups:
        known[group.name] = number = known.get(group.name, 0) + 1
        found.append(group if number == 1 else replace(group, name=f"{group.name}-{number}"))
    return found


def _make_folder_name(reference: str) -> str:
    """Return a name of a folder that tells the dataset."""
    parsed = parse_reference(reference)
    name = reference if parsed.source == NAMED else Path(parsed.target).stem
    return re.sub(r"[^\w=.]+", "-", name).strip("-.")[:_LONGEST_NAME] or "data"
