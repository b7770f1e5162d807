"""Summary statistics of a dataset."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gelato.data.disk_columns import cut_blocks, find_extremes
from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, Rows, Transitions
from gelato.tasks.task import normalise_score


def episode_returns(transitions: Transitions) -> Float[np.ndarray, " episodes"]:
    """Return the undiscounted return of each episode."""
    stops = transitions.episode_stops
    parts = []
    for episodes in _group_episodes(stops) if transitions.on_disk else [slice(0, len(stops))]:
        starts = np.concatenate([[0], stops])[episodes.start : episodes.stop]
        rows = slice(int(starts[0]), int(stops[episodes.stop - 1]))
        rewards = np.asarray(transitions.rewards[rows], np.float64)
        parts.append(np.add.reduceat(rewards, starts - rows.start))
    return np.concatenate(parts)


def _group_episodes(stops: Int[np.ndarray, " episodes"]) -> Iterator[slice]:
    """Yield groups of whole episodes that fit into memory easily."""
    for rows in cut_blocks(int(stops[-1]), 8):
        first, last = np.searchsorted(stops, [rows.start, rows.stop], side="right")
        if first < last:
            yield slice(int(first), int(last))


def episode_lengths(transitions: Transitions) -> Int[np.ndarray, " episodes"]:
    """Return the number of steps of each episode."""
    return np.diff(transitions.episode_stops, prepend=0)


def _bounds(values: tuple[float, ...]) -> list[float | None]:
    """Return bounds for JSON, with None for infinity."""
    return [value if np.isfinite(value) else None for value in values]


def _find_state_range(data: Transitions) -> tuple[list[float], list[float]]:
    """Return the smallest and largest value of every number of the states, and of all pixels."""
    if not data.images:
        low, high = find_extremes(data.states)
        return low.tolist(), high.tolist()
    numbers, pixels = data.numbers, data.pixels
    return (
        [*numbers.min(axis=0).tolist(), float(pixels.min())],
        [*numbers.max(axis=0).tolist(), float(pixels.max())],
    )


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Return counts, lengths, returns, score, ranges and episode ends as values for JSON."""
    data = dataset.transitions
    returns, lengths = episode_returns(data), episode_lengths(data)
    space = data.action_space
    reward_low, reward_high = find_extremes(data.rewards, None)
    state_low, state_high = _find_state_range(data)
    action_low, action_high = find_extremes(data.actions)
    return {
        "reference": dataset.reference,
        "environment": dataset.environment,
        "transitions": len(data),
        "without_successor": len(data) - int(data.has_successor.sum()),
        "episodes": len(lengths),
        "terminations": int(data.terminated.sum()),
        "truncations": _count_truncations(data),
        "length_mean": float(lengths.mean()),
        "length_std": float(lengths.std()),
        "length_min": int(lengths.min()),
        "length_max": int(lengths.max()),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "normalised_score": normalise_score(dataset.environment, float(returns.mean())),
        "reward_range": [float(reward_low), float(reward_high)],
        "observation_shape": list(data.observation_shape),
        "state_low": state_low,
        "state_high": state_high,
        "actions": {"discrete": space.n}
        if isinstance(space, Discrete)
        else {"low": _bounds(space.low), "high": _bounds(space.high)},
        "action_counts": _count_actions(data.actions, space).tolist()
        if isinstance(space, Discrete)
        else None,
        "action_range": None
        if isinstance(space, Discrete)
        else [action_low.tolist(), action_high.tolist()],
        "columns": {field: list(names) for field, names in dataset.columns.items()},
        "state_names": list(dataset.state_names),
        "action_names": list(dataset.action_names),
        "bytes": data.nbytes,
        "fingerprint": data.fingerprint(),
    }


def _count_truncations(data: Transitions) -> int:
    count = 0
    for rows in cut_blocks(len(data), 1):
        terminated = np.asarray(data.terminated[rows])
        count += int((np.asarray(data.truncated[rows]) & ~terminated).sum())
    return count


def _count_actions(actions: Rows, space: Discrete) -> Int[np.ndarray, " n"]:
    counts = np.zeros(space.n, np.int64)
    for rows in cut_blocks(len(actions), 8):
        counts += np.bincount(np.asarray(actions[rows]), minlength=space.n)
    return counts


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
    lines.append(["reward", *(f"{value:.4g}" for value in np.asarray(data.rewards[:count]))])
    ends = []
    for row in range(len(states)):
        kinds = [kind for kind in ("terminated", "truncated") if getattr(data, kind)[row]]
        ends.append(" ".join(kinds))
    lines.append(["end", *ends])
    return ["column", *(f"row {row}" for row in range(len(states)))], lines
