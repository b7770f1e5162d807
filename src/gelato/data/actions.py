"""Check logged actions and their probabilities, and infer the action space."""

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.progress import note

# Rounding to float32 may move an action slightly beyond its bound.
_TOLERANCE = 1e-4
# Integers above this limit are probably not numbers of discrete actions.
_MOST_INFERRED = 1_000
# The range of actions consists of outliers if it is so many times wider than 90% of them.
_OUTLIER, _QUANTILE_ROWS = 5, 100_000
# Actions up to 1 in a declared range beyond this look normalised.
_NORMALISED = 1.05

Continuously = Float[np.ndarray, "n action"]


def find_range(values: Shaped[np.ndarray, "n action"]) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of each column.

    NumPy needs ten times as long to reduce the rows of a long, narrow array at once. Files can hold
    floats of 128 bits, which the annotation `Float` does not include.
    """
    low = np.array([column.min() for column in values.T])
    return low, np.array([column.max() for column in values.T])


def check_actions(
    values: Continuously, space: ActionSpace, source: str
) -> Num[np.ndarray, "n *action"]:
    """Return the actions as they are stored; each must be in the space."""
    if isinstance(space, Discrete):
        return _check_discrete(values, space, source)
    if values.shape[1] != space.size:
        raise InputError(
            f"{source}: actions has {values.shape[1]} values per row, but the action space has "
            f"{space.size}"
        )
    low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
    lowest, highest = find_range(values)
    if (lowest >= low).all() and (highest <= high).all():
        return values
    tolerance = _TOLERANCE * np.minimum(1, (high - low) / 2)
    outside = (values < low - tolerance) | (values > high + tolerance)
    if outside.any():
        row, column = map(int, np.argwhere(outside)[0])
        raise InputError(
            f"{source}: actions holds {values[row, column]:.6g} in row {row}, column {column}, "
            f"outside the space [{low[column]:.6g}, {high[column]:.6g}]. This is so in "
            f"{int(outside.any(axis=1).sum()):,} of {len(values):,} rows. For a file, add to the "
            "reference ,clip=yes if the environment clipped the actions, ,scale=F if the file has "
            "another unit, or ,low=A,high=B if the range is wrong"
        )
    return np.clip(values, low, high)


def scale_actions(actions: np.ndarray, scale: tuple[float, ...], source: str) -> Continuously:
    """Multiply actions, one factor for all dimensions or one for each."""
    values = actions.reshape(len(actions), -1)
    if len(scale) not in (1, values.shape[1]):
        raise InputError(
            f"{source}: scale= has {len(scale)} numbers, but actions has {values.shape[1]} values "
            "per row"
        )
    return values.astype(np.float32) * np.array(scale, np.float32)


def clip_actions(actions: np.ndarray, space: Continuous, source: str) -> Continuously:
    """Clip actions to their range and say how many were outside."""
    values = actions.reshape(len(actions), -1)
    if values.shape[1] != space.size:
        return values
    clipped = np.clip(values, space.low, space.high).astype(np.float32)
    count = int((clipped != values.astype(np.float32)).any(axis=1).sum())
    if count:
        note(f"{source}: the actions of {count:,} of {len(values):,} rows were clipped")
    return clipped


def warn_if_normalised(actions: np.ndarray, space: ActionSpace | None, source: str) -> None:
    """Warn if the declared range is larger than 1 but no action is: recorders normalise actions."""
    if not isinstance(space, Continuous):
        return
    low, high = float(actions.min()), float(actions.max())
    if max(-low, high) > 1 + _TOLERANCE or max(space.high) <= _NORMALISED:
        return
    declared = f"{_write_numbers(space.low)} to {_write_numbers(space.high)}"
    message = (
        f"{source}: actions vary from {low:.4g} to {high:.4g}, but the declared range is {declared}"
    )
    if np.allclose(space.low, -np.array(space.high)):
        message += (
            ". If the recorder normalised them to ±1, add "
            f",scale={_write_numbers(space.high)}, or the model learns from wrong actions"
        )
    else:
        message += ". If the recorder normalised them, convert them back before you save the file"
    note(message)


def warn_about_outliers(actions: np.ndarray, source: str) -> None:
    """Warn if the data's own range, which becomes the range of actions, consists of outliers."""
    values = actions.reshape(len(actions), -1)
    rows = choose_evenly(values, _QUANTILE_ROWS)
    if actions.dtype.kind in "iub" or not np.isfinite(values[rows]).all():
        return
    inner_low, inner_high = np.quantile(values[rows], (0.05, 0.95), axis=0)
    low, high = find_range(values)
    far = (high - low > _OUTLIER * (inner_high - inner_low)) & (np.maximum(-low, high) > 1)
    for column in np.flatnonzero(far & (inner_low < inner_high))[:1]:
        note(
            f"{source}: actions vary from {low[column]:.4g} to {high[column]:.4g} in column "
            f"{column}, but 90% of them lie between {inner_low[column]:.4g} and "
            f"{inner_high[column]:.4g}. If the environment clipped them, add its range: "
            ",low=A,high=B,clip=yes"
        )


def _write_numbers(values: tuple[float, ...]) -> str:
    shown = values[:1] if len(set(values)) == 1 else values
    return "/".join(f"{value:.6g}" for value in shown)


def check_probabilities(
    values: Float[np.ndarray, "n k"], space: ActionSpace, source: str
) -> Float[np.ndarray, " n"]:
    """Check the probabilities of logged actions; densities of continuous ones may exceed 1."""
    field = "action_probabilities"
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


def infer_space(raw: np.ndarray, values: Continuously, source: str) -> ActionSpace:
    """Infer the action space from the data.

    Integers are discrete actions. Others have the range [−1, 1], or a larger range of the data.
    """
    if raw.dtype.kind in "iub" and values.shape[1] == 1:
        largest = int(raw.max())
        if largest >= _MOST_INFERRED:
            raise InputError(
                f"{source}: actions are integers up to {largest}; if they are discrete, add "
                ",discrete=N"
            )
        return Discrete(max(largest + 1, 2))
    low, high = find_range(values)
    if (low >= -1 - _TOLERANCE).all() and (high <= 1 + _TOLERANCE).all():
        return Continuous((-1.0,) * values.shape[1], (1.0,) * values.shape[1])
    # A constant action needs a range of positive width. For large values a width of 1 is too small.
    room = np.where(low == high, np.maximum(1, 1e-3 * np.abs(low)), 0)
    low, high = low - room, high + room
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))


def _check_discrete(values: Continuously, space: Discrete, source: str) -> Int[np.ndarray, " n"]:
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
