"""Check raw columns, as files contain them, and assemble them into `Transitions`.

Every loader ends here, so that each check is written once. Errors name the source, the field and
the row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

from gelato.data.actions import check_actions, check_probabilities, infer_space
from gelato.data.episodes import find_truncations
from gelato.data.observations import MixedRows, is_image
from gelato.data.recording import refuse_image
from gelato.data.spaces import ActionSpace
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError

# A column as recorded: `assemble` checks its length, shape and type.
Column = np.ndarray
Recorded = Sequence[Any] | np.ndarray


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
    boundaries: Bool[np.ndarray, " n"] | None = None
    """Rows after which a new episode starts, known from other columns than the two flags."""


def assemble(columns: Columns) -> Transitions:
    """Check columns and assemble them into transitions; find episode ends and successors."""
    _check_lengths(columns)
    states = _read_observations(columns.observations, columns.source, "observations")
    observation_shape = states.shape[1:]
    rewards = check_floats(columns.rewards, columns.source, "rewards").reshape(len(states), -1)
    if rewards.shape[1] != 1:
        raise InputError(
            f"{columns.source}: rewards has {rewards.shape[1]} values per row; it must have one"
        )
    terminated = check_flags(columns.terminals, columns.source, "terminals", len(states))
    next_states = None
    if columns.next_observations is not None:
        next_states = _read_observations(
            columns.next_observations, columns.source, "next_observations"
        )
        if (next_states.shape, next_states.dtype) != (states.shape, states.dtype):
            raise InputError(
                f"{columns.source}: next_observations has shape {next_states.shape}"
                f"{_name_bytes(next_states)}, but observations has {states.shape}"
                f"{_name_bytes(states)}; the shapes must be equal. If the file's "
                "next_observations belong to other observations, add ,next_observations=none"
            )
    marked = check_flags(columns.timeouts, columns.source, "timeouts", len(states))
    if columns.boundaries is not None:
        marked |= columns.boundaries & ~terminated
    named = [name for name in ("terminals", "timeouts") if getattr(columns, name) is not None]
    truncated = find_truncations(
        columns.source,
        states,
        next_states,
        terminated,
        marked,
        episode_limit=columns.episode_limit,
        flagged=named,
    )
    has_successor = np.ones(len(states), bool)
    if next_states is None:
        has_successor = ~(terminated | truncated)
        next_states = shift_states(states, has_successor)
    actions, space, probabilities = _assemble_actions(columns)
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
        action_probabilities=probabilities,
        images=(observation_shape,) if states.dtype == np.uint8 else (),
    )


def _assemble_actions(
    columns: Columns,
) -> tuple[Num[np.ndarray, "n *action"], ActionSpace, Float[np.ndarray, " n"] | None]:
    raw, source, space = columns.actions, columns.source, columns.action_space
    values = check_floats(raw, source, "actions").reshape(len(raw), -1)
    if values.shape[1] == 0:
        raise InputError(f"{source}: actions has no columns")
    if space is None:
        space = infer_space(raw, values, source)
    actions = check_actions(values, space, source)
    if columns.action_probabilities is None:
        return actions, space, None
    column = check_floats(columns.action_probabilities, source, "action_probabilities")
    return actions, space, check_probabilities(column.reshape(len(raw), -1), space, source)


def make_dataset(
    observations: Recorded | Mapping[str, Any],
    actions: Recorded,
    rewards: Recorded,
    *,
    next_observations: Recorded | Mapping[str, Any] | None = None,
    terminals: Recorded | None = None,
    timeouts: Recorded | None = None,
    action_space: ActionSpace | None = None,
    action_probabilities: Recorded | None = None,
    environment: str | None = None,
    reference: str = "arrays",
) -> Dataset:
    """Check arrays with one row per step and make a dataset from them.

    Observations may be images (uint8), or a dictionary of arrays and images, also nested. It is
    flattened in the order of its sorted keys, images after all numbers, and the columns are named
    after their keys.
    `terminals` marks steps that end the task, `timeouts` steps after which the recording stops.
    Without `next_observations`, the successor of a step is the next row. Without an `action_space`,
    integers are discrete actions; other actions have the range [−1, 1], or the range of the data if
    it is larger. `action_probabilities` holds the probability with which the recording policy chose
    each action; importance weighting uses it. `environment` is the Gymnasium id to evaluate
    policies in. Errors name the data by `reference`.
    """
    states, names, images = _flatten(observations, "observations", reference)
    successors, next_images = None, None
    if next_observations is not None:
        found = _flatten(next_observations, "next_observations", reference)
        successors, next_names, next_images = found
        same_shapes = [each.shape for each in next_images] == [each.shape for each in images]
        if next_names != names or not same_shapes:
            raise InputError(f"{reference}: next_observations has other keys than observations")
    columns = Columns(
        reference,
        states,
        np.asarray(actions),
        np.asarray(rewards),
        successors,
        None if terminals is None else np.asarray(terminals),
        None if timeouts is None else np.asarray(timeouts),
        action_space,
        action_probabilities=None
        if action_probabilities is None
        else np.asarray(action_probabilities),
    )
    transitions = assemble(columns)
    if images:
        transitions = _join_images(transitions, images, next_images)
    return Dataset(reference, environment, transitions, state_names=names)


def _join_images(
    transitions: Transitions, images: Sequence[np.ndarray], following: Sequence[np.ndarray] | None
) -> Transitions:
    """Append images to the numbers of states; without those of the next states, shift them."""
    if following is None:
        known = np.asarray(transitions.has_successor)
        following = [shift_states(each, known) for each in images]

    def join(numbers: np.ndarray, parts: Sequence[np.ndarray]) -> MixedRows:
        flat = [part.reshape(len(part), -1) for part in parts]
        return MixedRows(numbers, np.concatenate(flat, axis=1))

    states = join(np.asarray(transitions.states), images)
    return replace(
        transitions,
        states=states,
        next_states=join(np.asarray(transitions.next_states), following),
        observation_shape=states.shape[1:],
        images=tuple(each.shape[1:] for each in images),
    )


def _flatten(
    observations: Recorded | Mapping[str, Any], field: str, source: str
) -> tuple[np.ndarray, tuple[str, ...], list[np.ndarray]]:
    """Return observations as one array; of a dictionary also the columns' names and the images."""
    if not isinstance(observations, Mapping):
        return _read_array(observations, field, source), (), []
    parts: list[np.ndarray] = []
    images: list[np.ndarray] = []
    names: list[str] = []

    def visit(values: Any, name: str) -> None:
        if isinstance(values, Mapping):
            for key in sorted(values):
                visit(values[key], f"{name}.{key}" if name else str(key))
            return
        array = _read_array(values, f"{field} {name}", source)
        what = f"{source}: {field} {name}"
        known = [*parts, *images]
        if array.ndim == 0 or (known and len(array) != len(known[0])):
            raise InputError(f"{what} must have one row per step, like the other keys")
        if is_image(array.dtype, array.shape[1:]):
            images.append(np.ascontiguousarray(array))
            return
        refuse_image(array.dtype, array.shape[1:], what)
        rows = array.reshape(len(array), -1)
        parts.append(rows)
        width = rows.shape[1]
        names.extend([name] if width == 1 else [f"{name}[{place}]" for place in range(width)])

    visit(observations, "")
    if not parts and len(images) == 1:
        return images[0], (), []
    if not parts:
        what = "holds several images but no numbers" if images else "is an empty dictionary"
        raise InputError(f"{source}: {field} {what}; add at least one column of numbers")
    return np.concatenate(parts, axis=1), tuple(names), images


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
                f"{columns.source}: {field} has {rows}, but observations has {length}; every field "
                "must have one row per step"
            )


def _read_array(values: Recorded, field: str, source: str) -> np.ndarray:
    """Return values as one array; refuse images of different shapes in words of their own."""
    try:
        return np.asarray(values)
    except ValueError:
        shapes = list(dict.fromkeys(np.shape(value) for value in values))
        if len(shapes) < 2 or not all(len(shape) > 1 for shape in shapes):
            raise
    first, other = ("×".join(map(str, shape)) for shape in shapes[:2])
    raise InputError(
        f"{source}: {field} holds images of different shapes, such as {first} and {other}; scale "
        "them to one shape"
    )


def _read_observations(column: Column, source: str, field: str) -> Num[np.ndarray, "n *value"]:
    """Return observations as floats; images stay bytes."""
    if is_image(column.dtype, column.shape[1:]):
        return np.ascontiguousarray(column)
    return check_floats(column, source, field)


def _name_bytes(states: Num[np.ndarray, "n *value"]) -> str:
    return " (images)" if states.dtype == np.uint8 else ""


def check_floats(column: Column, source: str, field: str) -> Num[np.ndarray, "n *value"]:
    """Return a column in single precision; every value must be finite."""
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


def check_flags(
    column: Column | None, source: str, field: str, length: int
) -> Bool[np.ndarray, " n"]:
    """Return flags as booleans; every value must be 0 or 1. Without a column, none is set."""
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


def shift_states(
    states: Num[np.ndarray, "n *value"], has_successor: Bool[np.ndarray, " n"]
) -> Num[np.ndarray, "n *value"]:
    """Return the next row's state for each row; a row without successor keeps its own state."""
    successors = np.empty_like(states)
    successors[:-1] = states[1:]
    alone = np.flatnonzero(~has_successor)
    successors[alone] = states[alone]
    return successors
