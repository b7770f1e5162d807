"""What exists of a run, read once. Whatever cannot be read is missing, with the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int

from gelato.data.reference import load, load_stored
from gelato.data.transitions import Dataset, find_held_out
from gelato.errors import InputError
from gelato.model.training import FittedModel, NoModelError, load_model
from gelato.policy.policy import DeployedPolicy
from gelato.progress import working
from gelato.runs.folder import Run
from gelato.runs.records import Record, read_records
from gelato.training.policies import TrainedPolicy, trained_policies
from gelato.uncertainty.trust import Trust

Value = TypeVar("Value")
_KINDS = ("policies", "model")


@dataclass(frozen=True)
class Source:
    """A run, and the parts of it that the sections share."""

    folder: Path
    fitted_to: str | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @cached_property
    def description(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        found = Run(self.folder).description
        if found["kind"] not in _KINDS:
            raise InputError(
                f"{self.folder}: is a run of kind {found['kind']}. Give the folder of `gelato "
                "train` or `gelato model fit`"
            )
        return found

    @cached_property
    def is_training(self) -> bool:
        """Whether the run trains policies, and not a model alone."""
        return bool(self.description["kind"] == "policies")

    @cached_property
    def dataset(self) -> Dataset | None:
        """The data of the run, if it can be read and did not change."""
        reference = self.fitted_to or self.description["data"]["reference"]

        def read() -> Dataset:
            dataset = load(reference) if self.fitted_to else load_stored(reference)
            if dataset.transitions.fingerprint() != self.description["fingerprint"]:
                raise InputError(
                    f"{reference} is not the data of this run (fingerprints differ). Name the "
                    "right data with --fitted-to"
                )
            return dataset

        return self.try_to("data", read)

    @cached_property
    def fitted(self) -> FittedModel | None:
        """The latent model of the run."""
        if self.dataset is None:
            self.missing["model"] = "The data of the model cannot be read."
            return None
        try:
            return load_model(self.folder, self.dataset)
        except NoModelError:
            self.missing["model"] = self._explain_missing_model()
        except (InputError, FileNotFoundError) as error:
            self.missing["model"] = f"The model is not finished or cannot be read ({error})."
        return None

    def _explain_missing_model(self) -> str:
        fits = {(method["fit"] or {}).get("type") for method in self.description.get("methods", [])}
        if "LatentFit" in fits:
            return "The latent model is not fitted yet. Repeat the training command to continue."
        return (
            "The methods of this run learn without a latent model, so there is no map and no "
            "judgement of trust. Train with `--method gelato` for both."
        )

    @cached_property
    def trust(self) -> Trust | None:
        """The judge of state-actions, for the model of the shown seed."""
        if self.fitted is None:
            self.missing["trust"] = self.missing["model"]
            return None
        fitted = self.fitted
        with working("measuring where the model can be trusted"):
            return self.try_to("trust", lambda: Trust(fitted, seed=self.seed))

    @cached_property
    def selection(self) -> dict[str, Any] | None:
        """What `select` decided about this run."""
        if not (self.folder / "selection.json").exists():
            return None
        return self.try_to("selection", lambda: Run(self.folder).read_json("selection"))

    @cached_property
    def groups(self) -> list[Run]:
        """The folders of policies that were trained together; version 0.1 kept them in the run."""
        described = [*self.folder.glob("policies/*/run.json"), *self.folder.glob("*/run.json")]
        found = [Run(path.parent) for path in sorted(described)]
        return [run for run in found if run.description["kind"] == "agents"]

    @cached_property
    def results(self) -> list[Record]:
        """The results of all policies that are finished."""
        whole = self.folder / "results.json"

        def read() -> list[Record]:
            if whole.exists():
                return read_records(Run(self.folder).check("results.json"))
            return [record for run in self.groups for record in run.read_records()]

        return self.try_to("results", read) or []

    @cached_property
    def finished(self) -> bool:
        """Whether the training or the fit is complete."""
        return (self.folder / ("results.json" if self.is_training else "model.npz")).exists()

    @cached_property
    def policies(self) -> list[TrainedPolicy]:
        """The trained policies."""
        if not self.is_training or not self.results:
            return []
        return self.try_to("trained", lambda: trained_policies(self.folder)) or []

    @cached_property
    def chosen(self) -> TrainedPolicy | None:
        """The policy that the page is about: the selected one, else the first one."""
        wanted = (self.selection or {}).get("chosen") or {}
        for trained in self.policies:
            if (trained.method, trained.seed) == (wanted.get("method"), wanted.get("seed")):
                return trained
        return self.policies[0] if self.policies else None

    @property
    def policy(self) -> DeployedPolicy | None:
        """The weights of the chosen policy."""
        return None if self.chosen is None else self.chosen.policy

    @cached_property
    def seed(self) -> int:
        """The seed of the model that the page shows."""
        seeds = () if self.fitted is None else self.fitted.seeds
        if self.chosen is not None and self.chosen.seed in seeds:
            return self.chosen.seed
        return seeds[0] if seeds else 0

    @cached_property
    def model_index(self) -> int:
        """The place of the shown seed among the seeds of the model."""
        return 0 if self.fitted is None else self.fitted.seeds.index(self.seed)

    @cached_property
    def rows_of_parts(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
        """The rows of the data in the training and in the held-out part of the model's split."""
        assert self.fitted is not None
        transitions = self.fitted.dataset.transitions
        known = np.flatnonzero(np.asarray(transitions.has_successor))
        held_out = find_held_out(
            transitions.with_successors(), self.fitted.config.held_out_fraction
        )
        return known[~held_out], known[held_out]

    def try_to(self, part: str, read: Callable[[], Value]) -> Value | None:
        """Read a part; if that fails on bad input, note the reason."""
        try:
            return read()
        except (InputError, FileNotFoundError) as error:
            self.missing[part] = f"{error}."
            return None


def open_source(run: Path | str, fitted_to: str | None = None) -> Source:
    """Open a run; raise an error if the folder holds none."""
    source = Source(Path(run), fitted_to)
    assert source.description
    return source


def name_actions(dataset: Dataset) -> tuple[str, ...]:
    """Name the columns of the actions."""
    actions = dataset.transitions.actions
    count = 1 if actions.ndim == 1 else actions.shape[1]
    return tuple(dataset.name_action(column) for column in range(count))
