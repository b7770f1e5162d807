"""Summary statistics of a dataset."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, Transitions
from gelato.tasks.task import normalise_score


def episode_returns(transitions: Transitions) -> Float[np.ndarray, " episodes"]:
    """Return the undiscounted return of each episode."""
    starts = [rows.start for rows in transitions.episode_slices]
    return np.add.reduceat(np.asarray(transitions.rewards, np.float64), starts)


def episode_lengths(transitions: Transitions) -> Int[np.ndarray, " episodes"]:
    """Return the number of steps of each episode."""
    return np.array([rows.stop - rows.start for rows in transitions.episode_slices])


def _bounds(values: tuple[float, ...]) -> list[float | None]:
    """Return bounds for JSON, with None for infinity."""
    return [value if np.isfinite(value) else None for value in values]


def _reduce(data: Transitions, how: Callable[..., Any]) -> list[float]:
    """Return the smallest or largest value of every number of the states, and of all pixels."""
    found: list[float] = how(data.numbers, axis=0).tolist()
    return [*found, float(how(data.pixels))] if data.images else found


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Return counts, lengths, returns, score, ranges and episode ends as values for JSON."""
    data = dataset.transitions
    returns, lengths = episode_returns(data), episode_lengths(data)
    space = data.action_space
    return {
        "reference": dataset.reference,
        "environment": dataset.environment,
        "transitions": len(data),
        "without_successor": int((~np.asarray(data.has_successor)).sum()),
        "episodes": len(lengths),
        "terminations": int(data.terminated.sum()),
        "truncations": int((data.truncated & ~data.terminated).sum()),
        "length_mean": float(lengths.mean()),
        "length_std": float(lengths.std()),
        "length_min": int(lengths.min()),
        "length_max": int(lengths.max()),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "normalised_score": normalise_score(dataset.environment, float(returns.mean())),
        "reward_range": [float(data.rewards.min()), float(data.rewards.max())],
        "observation_shape": list(data.observation_shape),
        "state_low": _reduce(data, np.min),
        "state_high": _reduce(data, np.max),
        "actions": {"discrete": space.n}
        if isinstance(space, Discrete)
        else {"low": _bounds(space.low), "high": _bounds(space.high)},
        "action_counts": np.bincount(data.actions, minlength=space.n).tolist()
        if isinstance(space, Discrete)
        else None,
        "action_range": None
        if isinstance(space, Discrete)
        else [data.actions.min(axis=0).tolist(), data.actions.max(axis=0).tolist()],
        "columns": {field: list(names) for field, names in dataset.columns.items()},
        "state_names": list(dataset.state_names),
        "action_names": list(dataset.action_names),
        "bytes": data.nbytes,
        "fingerprint": data.fingerprint(),
    }


def list_rows(
    dataset: Dataset, count: int = 5, most: int = 12
) -> tuple[list[str], list[list[str]]]:
    """Return headings and one line per column with its first values, as text.

    At most `most` states and as many actions are listed. An image is listed by its mean brightness.
    """
    data = dataset.transitions
    observed, first = data.observed, data[:count]
    states = first.numbers
    actions = np.asarray(data.actions[:count]).reshape(len(states), -1)
    lines = []
    action_names = [dataset.name_action(column) for column in range(actions.shape[1])]
    for values, names in ((states, dataset.list_state_names()), (actions, action_names)):
        for column in range(min(values.shape[1], most)):
            lines.append([names[column], *(f"{value:.4g}" for value in values[:, column])])
        if values.shape[1] > most:
            lines.append([f"… {values.shape[1] - most} more", *[""] * len(states)])
    for image, part in zip(observed.images, observed.image_parts, strict=True):
        name = f"image {'×'.join(map(str, image))}, mean"
        lines.append([name, *(f"{value:.4g}" for value in first.pixels[:, part].mean(axis=1))])
    lines.append(["reward", *(f"{value:.4g}" for value in data.rewards[:count])])
    ends = []
    for row in range(len(states)):
        kinds = [kind for kind in ("terminated", "truncated") if getattr(data, kind)[row]]
        ends.append(" ".join(kinds))
    lines.append(["end", *ends])
    return ["column", *(f"row {row}" for row in range(len(states)))], lines
