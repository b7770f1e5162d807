"""Check whether a dataset can be fitted, and say what may give a bad model."""

import numpy as np

from gelato.data.disk_columns import find_extremes, measure_width
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.model.config import ModelConfig
from gelato.model.split import Split
from gelato.progress import note

# A value this many times larger than the range of 98% of the values is probably an error.
_OUTLIER = 1e3
# Number of rows to estimate that range from.
_OUTLIER_ROWS = 10_000


def check_data(split: Split, config: ModelConfig) -> None:
    """Raise an error if the model cannot be fitted to the data with these settings."""
    reference, data = split.dataset.reference, split.dataset.transitions.with_successors()
    state_size = data.states.shape[1]
    largest = max(64, 8 * state_size)
    if config.latent_size > largest:
        raise InputError(
            f"latent size {config.latent_size} is too large for {state_size} state dimensions. "
            f"Use at most {largest}"
        )
    if len(data) < config.batch_size:
        raise InputError(
            f"{reference}: {len(data)} transitions with a successor are too few for batches of "
            f"{config.batch_size}. Record more, or use `gelato model fit --batch-size`"
        )
    if measure_width(data.states).max() == 0:
        raise InputError(f"{reference}: observations never change, so there are no dynamics")


def warn_about_data(split: Split, config: ModelConfig) -> None:
    """Print notes about data that can be fitted but may give a bad model."""
    reference, every = split.dataset.reference, split.dataset.transitions
    data = every.with_successors()
    if every.terminated.any() and not data.terminated.any():
        note(
            f"{reference}: no terminated step has a successor (`next_observations`), so the model "
            "cannot learn termination"
        )
    numbers = data.numbers if data.images else data.states  # Pixels have a known range.
    low, high = np.quantile(numbers[choose_evenly(data, _OUTLIER_ROWS)], (0.01, 0.99), axis=0)
    width, middle = high - low, (low + high) / 2
    beyond = np.max([np.abs(end - middle) for end in find_extremes(numbers)], axis=0)
    for column in np.flatnonzero((width > 0) & (beyond > _OUTLIER * width)):
        note(
            f"{reference}: column {column} of the observations has values up to "
            f"{beyond[column]:.2g}, but 98% of them lie within a range of {width[column]:.2g}; "
            "after normalisation the column looks constant to the model. Remove or clip the "
            "outliers"
        )
    if measure_width(data.actions).max() == 0:
        note(f"{reference}: the action never changes; the effect of other actions is unknown")
    if measure_width(data.rewards) == 0:
        note(f"{reference}: the reward is always {data.rewards[0]:g}; the model learns a constant")
    state_size, embedding_size = data.states.shape[1], config.latent_size + data.action_space.size
    if 2 * config.decoders * state_size < embedding_size:
        note(describe_rank_problem(config.decoders, state_size, embedding_size))


def describe_rank_problem(decoders: int, state_size: int, embedding_size: int) -> str:
    """Explain why `2·M·d_S < d_E` is a problem."""
    return (
        f"2 × decoders × state size = {2 * decoders * state_size} is less than the embedding size "
        f"{embedding_size}: the metric is singular and some directions have length zero. Use more "
        "decoders or a smaller latent size"
    )
