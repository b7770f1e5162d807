"""The plan of a training, checked before any file is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gelato.data.reference import load
from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset
from gelato.dynamics.fit import AbstractFit, AbstractFitted
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.model.split import Split, split_dataset
from gelato.model.training import FittedModel, load_model
from gelato.policy.evaluate import find_environment
from gelato.runs.folder import list_seeds
from gelato.training.method import Group, Method, describe_value, group_methods
from gelato.training.presets import Parts, PresetName, TrainSettings, choose_parts, make_grid

MethodLike = str | Method


@dataclass(frozen=True)
class Plan:
    """Data, methods and seeds of a training. `fitted` is a latent model that was fitted earlier."""

    dataset: Dataset
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    settings: TrainSettings
    environment: str | None
    fitted: FittedModel | None = None

    @cached_property
    def groups(self) -> list[Group]:
        """The methods, grouped by the program that trains them."""
        return group_methods(self.methods)

    @cached_property
    def fits(self) -> list[AbstractFit]:
        """The distinct fits of the methods."""
        return list(dict.fromkeys(group.fit for group in self.groups if group.fit is not None))

    @cached_property
    def _known_fits(self) -> dict[AbstractFit, AbstractFitted]:
        """What was fitted so far."""
        return {}

    @cached_property
    def splits(self) -> dict[float, Split]:
        """The split of the data for every fraction that a fit asks for."""
        fractions = {0.1} if None in (group.fit for group in self.groups) else set()
        fractions |= {fit.held_out_fraction for fit in self.fits}
        return {fraction: split_dataset(self.dataset, fraction) for fraction in fractions}

    def split_for(self, fit: AbstractFit | None) -> Split:
        """Return the split that a fit uses."""
        return self.splits[0.1 if fit is None else fit.held_out_fraction]

    def find_given_model(self, fit: AbstractFit) -> AbstractFitted | None:
        """Return the model that was fitted earlier, if it replaces this fit."""
        return None if self.fitted is None else fit.use_model(self.fitted)

    def fit(self, fit: AbstractFit | None, run: Path) -> AbstractFitted | None:
        """Fit every seed in the run folder, read an existing fit, or use the given model.

        Groups with equal fits share what was fitted.
        """
        if fit is None:
            return None
        if fit not in self._known_fits:
            self._known_fits[fit] = self.find_given_model(fit) or self._fit_in_folder(fit, run)
        return self._known_fits[fit]

    def _fit_in_folder(self, fit: AbstractFit, run: Path) -> AbstractFitted:
        # The first fit of a kind gets the plain name, a second one a number.
        same = [other for other in self.fits if other.folder == fit.folder]
        number = same.index(fit) + 1
        name = fit.folder if number == 1 else f"{fit.folder}-{number}"
        return fit.fit(self.split_for(fit), run / name, self.seeds)

    def describe(self) -> dict[str, object]:
        """Return everything that decides the results, as plain values for `run.json`."""
        data = {"reference": self.dataset.reference, "environment": self.dataset.environment}
        model = None if self.fitted is None else str(self.fitted.run.folder.absolute())
        return {
            "data": data,
            "fingerprint": self.dataset.transitions.fingerprint(),
            "methods": [method.describe() for method in self.methods],
            "settings": describe_value(self.settings),
            "seeds": list(self.seeds),
            "model": model,
        }


def make_plan(
    data: Dataset | str,
    methods: MethodLike | Sequence[MethodLike],
    *,
    seeds: int = 1,
    first_seed: int = 0,
    preset: PresetName = "default",
    settings: TrainSettings | None = None,
    model: Path | str | None = None,
) -> Plan:
    """Check everything that can be checked before a run folder exists."""
    dataset = load(data) if isinstance(data, str) else data
    transitions = dataset.transitions
    numbers = list_seeds(seeds, first_seed)
    _check_actions(dataset)
    environment = find_environment(
        dataset.environment, transitions.states.shape[1], transitions.action_space
    )
    parts = choose_parts(dataset, preset)
    chosen = _choose_methods(methods, parts)
    fitted = None if model is None else load_model(model, dataset).of_seeds(numbers)
    _check_images(dataset, chosen)
    plan = Plan(dataset, chosen, numbers, settings or parts.settings, environment, fitted)
    for group in plan.groups:
        group.agent.check(transitions.action_space)
        split = plan.split_for(group.fit)
        if group.fit is not None and plan.find_given_model(group.fit) is None:
            group.fit.check(split)
    return plan


def _choose_methods(methods: MethodLike | Sequence[MethodLike], parts: Parts) -> tuple[Method, ...]:
    given = [methods] if isinstance(methods, str | Method) else list(methods)
    chosen: list[Method] = []
    for method in given:
        chosen += make_grid(method, parts) if isinstance(method, str) else [method]
    names = [method.name for method in chosen]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"methods: {', '.join(names) or '(none)'}. Give at least one method, "
            "each with a different name"
        )
    return tuple(chosen)


def _check_images(dataset: Dataset, methods: Sequence[Method]) -> None:
    """Refuse methods that learn from the numbers of a state itself."""
    wrong = [method.name for method in methods if not isinstance(method.fit, LatentFit)]
    if dataset.transitions.images and wrong:
        raise InputError(
            f"{dataset.reference}: method {wrong[0]} cannot read images; use a method with the "
            "latent model, such as gelato"
        )


def _check_actions(dataset: Dataset) -> None:
    space = dataset.transitions.action_space
    if isinstance(space, Continuous) and not np.isfinite([space.low, space.high]).all():
        raise InputError(
            f"{dataset.reference}: the action range is unbounded. Set it; for a file add "
            ",low=A,high=B"
        )
