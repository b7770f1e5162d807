"""Check raw columns, as files contain them, and assemble them into `Transitions`.

Every loader ends here, so that each check is written once. Errors name the source, the field and
the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Num

from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError
from gelato.progress import note

# A column as recorded: `assemble` checks its length, shape and type.
Column = np.ndarray
Recorded = Sequence[Any] | np.ndarray

# Rounding to float32 may move an action slightly beyond its bound.
_ACTION_TOLERANCE = 1e-4
# Two states count as equal if they differ by less than this fraction of each column's standard
# deviation.
_SAME_STATE = 1e-3
# Integers above this limit are probably not numbers of discrete actions.
_MOST_INFERRED_ACTIONS = 1_000


@dataclass
class Columns:
    """Columns as recorded. Errors name the data by `source`."""

    source: str
    observations: Column
    actions: Column
    rewards: Column
    next_observations: Column | None = None
    terminals: Column | None = None
    timeouts: Column | None = None
    action_space: ActionSpace | None = None
    episode_limit: int | None = None
    action_probabilities: Column | None = None


def assemble(columns: Columns) -> Transitions:
    """Check columns and assemble them into transitions; find episode ends and successors."""
    _check_lengths(columns)
    states = _floats(columns.observations, columns.source, "observations")
    observation_shape = states.shape[1:]
    rewards = _floats(columns.rewards, columns.source, "rewards").reshape(len(states), -1)
    if rewards.shape[1] != 1:
        raise InputError(
            f"{columns.source}: rewards has {rewards.shape[1]} values per row; it must have one"
        )
    terminated = _flags(columns.terminals, columns.source, "terminals", len(states))
    next_states = None
    if columns.next_observations is not None:
        next_states = _floats(columns.next_observations, columns.source, "next_observations")
        if next_states.shape != states.shape:
            raise InputError(
                f"{columns.source}: next_observations has shape {next_states.shape}, observations "
                f"{states.shape}; the shapes must be equal"
            )
    truncated = _truncations(columns, states, next_states, terminated)
    has_successor = np.ones(len(states), bool)
    if next_states is None:
        has_successor = ~(terminated | truncated)
        next_states = _shift_states(states, has_successor)
    actions, space = _actions(columns)
    return Transitions(
        states=states.reshape(len(states), -1),
        actions=actions,
        rewards=rewards[:, 0],
        next_states=next_states.reshape(len(states), -1),
        terminated=terminated,
        truncated=truncated,
        has_successor=has_successor,
        observation_shape=observation_shape,
        action_space=space,
        action_probabilities=_probabilities(columns, space),
    )


def make_dataset(
    observations: Recorded,
    actions: Recorded,
    rewards: Recorded,
    *,
    next_observations: Recorded | None = None,
    terminals: Recorded | None = None,
    timeouts: Recorded | None = None,
    action_space: ActionSpace | None = None,
    action_probabilities: Recorded | None = None,
    environment: str | None = None,
    reference: str = "arrays",
) -> Dataset:
    """Check arrays with one row per step and make a dataset from them.

    `terminals` marks steps that end the task, `timeouts` steps after which the recording stops.
    Without `next_observations`, the successor of a step is the next row. Without an `action_space`,
    integers are discrete actions; other actions have the range [−1, 1], or the range of the data if
    it is larger. `action_probabilities` holds the probability with which the recording policy chose
    each action; importance weighting uses it. `environment` is the Gymnasium id to evaluate
    policies in. Errors name the data by `reference`.
    """
    columns = Columns(
        reference,
        np.asarray(observations),
        np.asarray(actions),
        np.asarray(rewards),
        None if next_observations is None else np.asarray(next_observations),
        None if terminals is None else np.asarray(terminals),
        None if timeouts is None else np.asarray(timeouts),
        action_space,
        action_probabilities=None
        if action_probabilities is None
        else np.asarray(action_probabilities),
    )
    return Dataset(reference, environment, assemble(columns))


def _check_lengths(columns: Columns) -> None:
    if columns.observations.ndim == 0:
        raise InputError(
            f"{columns.source}: observations is a single value; it must have one row per step"
        )
    length = len(columns.observations)
    if columns.observations.size == 0 and length > 0:
        raise InputError(f"{columns.source}: observations has no columns")
    if length == 0:
        raise InputError(f"{columns.source}: observations is empty; the dataset has no transitions")
    optional = ("next_observations", "terminals", "timeouts", "action_probabilities")
    for field in ("actions", "rewards", *optional):
        column = getattr(columns, field)
        if column is not None and (column.ndim == 0 or len(column) != length):
            rows = "no rows" if column.ndim == 0 else f"{len(column)} rows"
            raise InputError(
                f"{columns.source}: {field} has {rows}, observations {length}; every field must "
                "have one row per step"
            )


def _floats(column: Column, source: str, field: str) -> Num[np.ndarray, "n *value"]:
    if column.dtype.kind not in "fiub":
        raise InputError(f"{source}: {field} holds {column.dtype}, not real numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(column, dtype=np.float32)
        # If the sum is finite, all values are. This is faster than testing each value, and needs
        # no mask of the array's size.
        finite = np.isfinite(values.sum(dtype=np.float64))
    if not finite:
        row = int(np.argmin(np.isfinite(values).reshape(len(values), -1).all(axis=1)))
        value = values[row].ravel()
        bad = value[~np.isfinite(value)][0]
        why = " (or a value too large for float32)" if np.isinf(bad) else ""
        raise InputError(
            f"{source}: {field} holds {bad}{why} in row {row}; remove or repair that row"
        )
    return values


def _flags(column: Column | None, source: str, field: str, length: int) -> Bool[np.ndarray, " n"]:
    if column is None:
        return np.zeros(length, bool)
    flags = column.reshape(length, -1)
    if flags.shape[1] != 1:
        raise InputError(f"{source}: {field} has {flags.shape[1]} values per row; it must have one")
    odd = (flags[:, 0] != 0) & (flags[:, 0] != 1)
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(
            f"{source}: {field} holds {flags[row, 0]} in row {row}; flags must be 0 or 1"
        )
    return flags[:, 0].astype(bool)


def _truncations(
    columns: Columns,
    states: Num[np.ndarray, "n *value"],
    next_states: Num[np.ndarray, "n *value"] | None,
    terminated: Bool[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """Return which rows end an episode without terminating it."""
    truncated = _flags(columns.timeouts, columns.source, "timeouts", len(states))
    if next_states is not None:
        # An episode also ends where a row's successor differs from the next row's state.
        unmarked = _jumps(states, next_states) & ~terminated[:-1] & ~truncated[:-1]
        truncated[:-1] |= unmarked
        if unmarked.any() and columns.timeouts is not None:
            row = int(np.argmax(unmarked))
            note(
                f"{columns.source}: {unmarked.sum():,} rows whose successor is not the next row's "
                f"state, the first at row {row}; an episode ends at each of them"
            )
    elif columns.episode_limit is not None and not truncated.any():
        truncated |= _limit_reached(terminated, columns.episode_limit)
    elif columns.terminals is None and columns.timeouts is None:
        note(
            f"{columns.source}: no field marks the ends of episodes, so all {len(states):,} steps "
            "are one episode; mark the last step of each episode in `terminals` or `timeouts`"
        )
    truncated[-1] |= not terminated[-1]
    return truncated


def _jumps(
    states: Num[np.ndarray, "n *value"], next_states: Num[np.ndarray, "n *value"]
) -> Bool[np.ndarray, " m"]:
    """Return after which rows the next state differs from the recorded successor."""
    different = np.flatnonzero(
        (next_states[:-1] != states[1:]).any(axis=tuple(range(1, states.ndim)))
    )
    jumps = np.zeros(len(states) - 1, bool)
    if len(different):
        spread = states.std(axis=0, dtype=np.float64)
        gap = np.abs(next_states[different] - states[different + 1])
        jumps[different] = (gap > _SAME_STATE * spread).reshape(len(different), -1).any(axis=1)
    return jumps


def _limit_reached(terminated: Bool[np.ndarray, " n"], limit: int) -> Bool[np.ndarray, " n"]:
    """Return which steps reach the time limit, if nothing but it and terminations ends episodes."""
    steps = np.arange(len(terminated))
    starts = np.concatenate([[0], np.flatnonzero(terminated) + 1])
    since_start = steps - starts[np.searchsorted(starts, steps, side="right") - 1]
    return (since_start + 1) % limit == 0


def _shift_states(
    states: Num[np.ndarray, "n *value"], has_successor: Bool[np.ndarray, " n"]
) -> Num[np.ndarray, "n *value"]:
    """Return the next row's state for each row; a row without successor keeps its own state."""
    successors = states.copy()
    successors[:-1][has_successor[:-1]] = states[1:][has_successor[:-1]]
    return successors


def _actions(columns: Columns) -> tuple[Num[np.ndarray, "n *action"], ActionSpace]:
    raw, source, space = columns.actions, columns.source, columns.action_space
    values = _floats(raw, source, "actions").reshape(len(raw), -1)
    if values.shape[1] == 0:
        raise InputError(f"{source}: actions has no columns")
    if space is None:
        space = _infer_space(raw, values, source)
    if isinstance(space, Discrete):
        return _discrete_actions(values, space, source), space
    if values.shape[1] != space.size:
        raise InputError(
            f"{source}: actions has {values.shape[1]} values per row, the action space {space.size}"
        )
    low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    tolerance = _ACTION_TOLERANCE * np.minimum(1, (high - low) / 2)
    outside = (values < low - tolerance) | (values > high + tolerance)
    if outside.any():
        row, column = map(int, np.argwhere(outside)[0])
        raise InputError(
            f"{source}: actions holds {values[row, column]:.6g} in row {row}, column {column}, "
            f"outside the space [{low[column]:.6g}, {high[column]:.6g}]; correct the row, or set "
            "the range of a file's actions: file:PATH,low=A,high=B"
        )
    return np.clip(values, low, high), space


def _probabilities(columns: Columns, space: ActionSpace) -> Num[np.ndarray, " n"] | None:
    """Check the probabilities of logged actions; densities of continuous ones may exceed 1."""
    if columns.action_probabilities is None:
        return None
    field, source = "action_probabilities", columns.source
    values = _floats(columns.action_probabilities, source, field).reshape(len(columns.rewards), -1)
    if values.shape[1] != 1:
        raise InputError(
            f"{source}: {field} has {values.shape[1]} values per row; it must have one"
        )
    largest = 1.0 + 1e-6 if isinstance(space, Discrete) else np.inf
    outside = (values[:, 0] <= 0) | (values[:, 0] > largest)
    if outside.any():
        row = int(np.argmax(outside))
        bounds = "above 0 and at most 1" if isinstance(space, Discrete) else "above 0"
        raise InputError(
            f"{source}: {field} holds {values[row, 0]:.6g} in row {row}; it must be {bounds}, "
            "because the recorded action was chosen"
        )
    return values[:, 0]


def _infer_space(raw: Column, values: Num[np.ndarray, "n action"], source: str) -> ActionSpace:
    """Infer the action space from the data.

    Integers are discrete actions. Others have the range [−1, 1], or a larger range of the data.
    """
    if raw.dtype.kind in "iub" and values.shape[1] == 1:
        largest = int(raw.max())
        if largest >= _MOST_INFERRED_ACTIONS:
            raise InputError(
                f"{source}: actions are integers up to {largest}; if they are discrete, add "
                ",discrete=N"
            )
        return Discrete(max(largest + 1, 2))
    low, high = values.min(axis=0), values.max(axis=0)
    if (low >= -1 - _ACTION_TOLERANCE).all() and (high <= 1 + _ACTION_TOLERANCE).all():
        return Continuous((-1.0,) * values.shape[1], (1.0,) * values.shape[1])
    # A constant action needs a range of positive width. For large values a width of 1 is too small.
    room = np.where(low == high, np.maximum(1, 1e-3 * np.abs(low)), 0)
    low, high = low - room, high + room
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))


def _discrete_actions(
    values: Num[np.ndarray, "n action"], space: Discrete, source: str
) -> Int[np.ndarray, " n"]:
    if values.shape[1] != 1:
        raise InputError(
            f"{source}: actions has {values.shape[1]} values per row; a discrete action is one "
            "integer"
        )
    actions = values[:, 0]
    outside = (actions != np.round(actions)) | (actions < 0) | (actions >= space.n)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"{source}: actions holds {actions[row]:g} in row {row}, outside the space "
            f"0…{space.n - 1}; correct the row, or describe a file's actions: "
            "file:PATH,discrete=N or, if continuous, file:PATH,low=A,high=B"
        )
    return actions.astype(np.int32)
