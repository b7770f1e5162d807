"""The interface of a fit: from a split dataset to dynamics that policies can learn in."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gelato.compilation import Work
from gelato.dynamics.interface import AbstractDynamics
from gelato.model.latent import Scaling
from gelato.model.networks import GaussianMLP
from gelato.model.split import Split
from gelato.model.training import FittedModel
from gelato.uncertainty.build import Penalty
from gelato.uncertainty.penalty import AbstractPenalty
from gelato.uncertainty.registry import Space


@dataclass(frozen=True)
class PenaltySettings:
    """Settings of the penalties' search: find `neighbours` among `points` transitions."""

    neighbours: int = 20
    points: int = 100_000


class AbstractFitted(ABC):
    """Fitted dynamics of several seeds.

    `dynamics` has one entry per seed. `encoders` is None where policies act on states; otherwise
    its arrays have the seed as their first axis.
    """

    dynamics: tuple[AbstractDynamics, ...]
    encoders: GaussianMLP | None
    scaling: Scaling

    @abstractmethod
    def build_penalties(
        self, index: int, penalties: Sequence[Penalty], settings: PenaltySettings
    ) -> list[AbstractPenalty]:
        """Build and calibrate penalties for the dynamics of one seed."""


class AbstractFit(ABC):
    """Settings of a fit, as a frozen dataclass.

    Methods with equal fits share the fitted dynamics.
    """

    # The folder of the run in which the fit keeps its files.
    folder: str
    # The space in which penalties of this fit work (see `register_penalty`).
    space: Space

    @property
    def held_out_fraction(self) -> float:
        """The share of episodes that is held out."""
        return 0.1

    def check(self, split: Split) -> None:  # noqa: B027 - nothing to check is a valid answer
        """Raise an `InputError` for data that cannot be fitted, before any file is written."""

    @abstractmethod
    def fit(self, split: Split, folder: Path, seeds: tuple[int, ...]) -> AbstractFitted:
        """Fit every seed in a run folder, or read what was fitted there."""

    def use_model(self, model: FittedModel) -> AbstractFitted | None:
        """Return a latent model that was fitted earlier as dynamics, or None if this fit has none.

        The fit is then not needed.
        """
        del model
        return None

    def describe_settings(self) -> dict[str, float]:
        """Return the settings, by the name of a record's field, that tell policies apart."""
        return {}

    def estimate_work(self, state_size: int, action_size: int) -> Work:
        """Estimate the cost of fitting one seed."""
        del state_size, action_size
        return Work()

    def count_step_products(
        self, state_size: int, action_size: int, settings: PenaltySettings
    ) -> float:
        """Estimate the multiply-adds of one imagined step with its penalty."""
        del state_size, action_size, settings
        return 0.0

    def latent_size(self, state_size: int) -> int:
        """Return the size of the policy's input."""
        return state_size
