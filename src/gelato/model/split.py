"""Split a dataset into training and held-out episodes. All later stages use the same split."""

from dataclasses import dataclass, replace

from gelato.data.transitions import Dataset, Transitions, split
from gelato.errors import InputError
from gelato.model.latent import Scaling


@dataclass(frozen=True)
class Split:
    """Training and held-out transitions of a dataset, and the scaling fitted to the training part.

    Only transitions with a known successor are in the two parts. `fingerprint` identifies the
    whole dataset.
    """

    dataset: Dataset
    train: Transitions
    held_out: Transitions
    scaling: Scaling
    fingerprint: str

    @property
    def parts(self) -> tuple[Transitions, Transitions]:
        """Training and held-out transitions."""
        return self.train, self.held_out

    def scale_rewards(self, *, to_unit_range: bool) -> "Split":
        """Return the same split with rewards standardised, or mapped to [−1, 1]."""
        scaling = self.scaling.scale_rewards(self.train, to_unit_range=to_unit_range)
        return replace(self, scaling=scaling)


def split_dataset(
    dataset: Dataset, held_out_fraction: float = 0.1, *, rewards_to_unit_range: bool = False
) -> Split:
    """Split a dataset by episode and fit the scaling to its training part."""
    data = dataset.transitions.with_successors()
    if len(data) == 0:
        raise InputError(
            f"{dataset.reference}: no step has a successor. Provide `next_observations` for "
            "episodes of one step"
        )
    try:
        train, held_out = split(data, held_out_fraction, seed=0)
    except InputError as error:
        raise InputError(f"{dataset.reference}: {error}") from error
    scaling = Scaling.fit(train, rewards_to_unit_range=rewards_to_unit_range)
    return Split(dataset, train, held_out, scaling, dataset.transitions.fingerprint())
