"""Penalty weights and fractions of real data that were tuned with returns in the simulator.

Tables of earlier versions were made with them. A user without a simulator cannot choose like this;
`gelato select` chooses from the log alone.
"""

from dataclasses import replace

from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.dynamics.fit import AbstractFit
from gelato.tasks.task import find_task
from gelato.training.method import Method
from gelato.training.presets import Parts, make_method

# λ of methods with a latent model and with a model of states, then the fractions of real data.
Weights = tuple[float, float, float, float]
_OTHERS: Weights = (4.0, 4.0, 0.05, 0.05)
_FOUR_ROOMS: Weights = (4.0, 4.0, 0.5, 0.05)
# λ on locomotion data of low scores.
_POOR = {"hopper": 1.0, "walker2d": 0.3, "halfcheetah": 0.3}
_MEDIUM: Weights = (10.0, 10.0, 0.5, 0.05)
_GOOD: Weights = (30.0, 10.0, 0.5, 0.5)
_MEDIUM_SCORE, _GOOD_SCORE = 10.0, 50.0


def choose_tuned(dataset: Dataset, fit: AbstractFit) -> tuple[float, float]:
    """Return λ and the fraction of real data that were tuned for such a dataset."""
    latent_weight, state_weight, latent_fraction, state_fraction = _find_row(dataset)
    if fit.space == "latent":
        return latent_weight, latent_fraction
    return state_weight, state_fraction


def make_tuned(name: str, parts: Parts, dataset: Dataset) -> Method:
    """Make the method of that name with the tuned values."""
    method = make_method(name, parts)
    if method.fit is None:
        return method
    weight, fraction = choose_tuned(dataset, method.fit)
    weight = weight if method.penalises else 0.0
    return replace(method, penalty_weight=weight, real_fraction=fraction)


def _find_row(dataset: Dataset) -> Weights:
    task = find_task(dataset.environment)
    if task is None:
        return _OTHERS
    if task.name == "four-rooms-goal":
        return _FOUR_ROOMS
    if task.name not in _POOR:
        return _OTHERS
    score = task.normalise_score(episode_returns(dataset.transitions).mean()) or 0.0
    if score >= _GOOD_SCORE:
        return _GOOD
    if score >= _MEDIUM_SCORE:
        return _MEDIUM
    poor = _POOR[task.name]
    return poor, poor, 0.05, 0.05
