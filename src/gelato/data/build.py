"""From the columns of an opened file to a dataset: choose, read, find episodes, check."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from gelato.data.actions import clip_actions, scale_actions, warn_about_outliers, warn_if_normalised
from gelato.data.columns import Columns, assemble
from gelato.data.episodes import (
    find_id_changes,
    find_time_gaps,
    pair_observations,
    read_splits,
    warn_about_time_limits,
)
from gelato.data.fields import choose_columns
from gelato.data.layout import Layout
from gelato.data.recording import AbstractRecording
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset
from gelato.errors import InputError

Arrays = dict[str, np.ndarray]
# Fields that a file can do without: a column of a usual name but another length is ignored.
_EXTRA = ("episode", "time", "splits", "action_probabilities")


def build_dataset(
    recording: AbstractRecording,
    layout: Layout,
    reference: str,
    *,
    episode_limit: int | None = None,
) -> Dataset:
    """Read the columns that the layout names, or that have usual names, into a dataset."""
    source = recording.source
    chosen = choose_columns(recording.names, layout.columns, source, texts=recording.texts)
    columns = _prepare_columns(recording.read(chosen), layout, source)
    columns.episode_limit = episode_limit
    transitions = assemble(columns)
    if "terminals" in chosen:
        flag = "|".join(chosen["terminals"])
        warn_about_time_limits(
            source, np.asarray(transitions.terminated), np.asarray(transitions.truncated), flag
        )
    used = {field: tuple(names) for field, names in chosen.items()}
    return Dataset(
        reference,
        layout.environment,
        transitions,
        used,
        recording.name_values(chosen["observations"]),
        recording.name_values(chosen["actions"]),
    )


def _prepare_columns(arrays: Arrays, layout: Layout, source: str) -> Columns:
    """Return the columns as `assemble` needs them: one row per step, episodes and actions known."""
    for field in ("observations", "actions", "rewards"):
        if field in arrays and arrays[field].ndim == 0:
            raise InputError(f"{source}: {field} is a single value; it must have one row per step")
    drop_unfit(arrays, layout.columns)
    splits = arrays.pop("splits", None)
    last_rows = None if splits is None else read_splits(splits, len(arrays["actions"]), source)
    boundaries = find_boundaries(arrays, last_rows, layout, source)
    _pair_if_one_more(arrays, boundaries, source)
    actions, space = _prepare_actions(arrays["actions"], layout, source)
    rewards = arrays.get("rewards")
    return Columns(
        source,
        arrays["observations"],
        actions,
        np.zeros(len(actions), np.float32) if rewards is None else rewards,
        arrays.get("next_observations"),
        arrays.get("terminals"),
        arrays.get("timeouts"),
        space,
        action_probabilities=arrays.get("action_probabilities"),
        boundaries=boundaries,
    )


def drop_unfit(arrays: Arrays, given: Mapping[str, str]) -> None:
    """Ignore extra columns that were found by their names only and cannot be what they seem."""
    rows = len(arrays["actions"])
    for field in _EXTRA:
        if field not in arrays or field in given:
            continue
        array = arrays[field]
        text = array.dtype.kind not in "fiubUSM"
        wrong_length = field != "splits" and (array.ndim == 0 or len(array) != rows)
        no_splits = field == "splits" and (array.ndim != 1 or len(array) >= rows)
        if text or wrong_length or no_splits:
            del arrays[field]


def find_boundaries(
    arrays: Arrays, last_rows: np.ndarray | None, layout: Layout, source: str
) -> Bool[np.ndarray, " n"] | None:
    """Return the rows after which a new episode starts: from splits, ids and time."""
    rows = len(arrays["actions"])
    ids, time = arrays.pop("episode", None), arrays.pop("time", None)
    for field, array in (("episode", ids), ("time", time)):
        if array is not None and (array.ndim == 0 or len(array) != rows):
            raise InputError(f"{source}: {field} must have one row per step, {rows:,} like actions")
    if layout.gap is not None and time is None:
        raise InputError(f"{source}: gap= needs a column of times; name it with ,time=NAME")
    if last_rows is None and ids is None and time is None:
        return None
    ends = np.zeros(rows, bool)
    if last_rows is not None:
        ends[last_rows] = True
    if ids is not None:
        ends |= find_id_changes(ids, source)
    if time is not None:
        marked = ends.copy()
        for field in ("terminals", "timeouts"):
            flags = arrays.get(field)
            if flags is not None and flags.size == rows:
                marked |= flags.reshape(-1) != 0
        ends |= find_time_gaps(_read_times(time, source), marked, layout.gap, source)
    return ends


def _read_times(time: np.ndarray, source: str) -> np.ndarray:
    """Return times in seconds or in the file's unit."""
    if time.dtype.kind == "M":
        return time.astype("datetime64[ns]").astype(np.int64).reshape(-1) / 1e9
    if time.dtype.kind not in "fiu" or time.size != len(time):
        raise InputError(
            f"{source}: time must be one number or one date per row; add ,time=none to ignore it"
        )
    return time.reshape(-1).astype(np.float64)


def _pair_if_one_more(
    arrays: Arrays, boundaries: Bool[np.ndarray, " n"] | None, source: str
) -> None:
    """Handle observations with one row more than actions in every episode.

    Flags with one value per episode become flags of the episode's last step.
    """
    rows, extra = len(arrays["actions"]), len(arrays["observations"]) - len(arrays["actions"])
    if extra <= 0 or "next_observations" in arrays:
        return
    last_rows = _find_last_rows(arrays, boundaries, rows)
    if len(last_rows) != extra:
        raise InputError(
            f"{source}: observations has {rows + extra:,} rows, but actions has {rows:,}. If every "
            f"episode has one more observation than actions, mark the last step of the {extra:,} "
            "episodes in terminals or timeouts, or give ,splits=NAME, a column with the first row "
            "of each later episode"
        )
    for field in ("terminals", "timeouts"):
        if field in arrays and arrays[field].shape[:1] == (extra,) and extra != rows:
            flags = np.zeros(rows, arrays[field].dtype)
            flags[last_rows] = arrays[field].reshape(extra)
            arrays[field] = flags
    arrays["observations"], arrays["next_observations"] = pair_observations(
        arrays["observations"], last_rows
    )


def _find_last_rows(
    arrays: Arrays, boundaries: Bool[np.ndarray, " n"] | None, rows: int
) -> np.ndarray:
    ends = np.zeros(rows, bool) if boundaries is None else boundaries.copy()
    for field in ("terminals", "timeouts"):
        if field in arrays and arrays[field].size == rows:
            ends |= arrays[field].reshape(-1) != 0
    ends[-1:] = True
    return np.flatnonzero(ends)


def _prepare_actions(
    actions: np.ndarray, layout: Layout, source: str
) -> tuple[np.ndarray, ActionSpace | None]:
    """Scale and clip actions as the layout says; use a range of one number for all dimensions."""
    space = layout.action_space
    if isinstance(space, Continuous) and space.size == 1:
        size = math.prod(actions.shape[1:])
        space = replace(space, low=space.low * size, high=space.high * size)
    if isinstance(space, Discrete) or actions.dtype.kind not in "fiub" or actions.size == 0:
        return actions, space
    if space is None:
        warn_about_outliers(actions, source)
    if layout.scale is not None:
        actions = scale_actions(actions, layout.scale, source)
    else:
        warn_if_normalised(actions, space, source)
    if layout.clip and isinstance(space, Continuous):
        actions = clip_actions(actions, space, source)
    return actions, space
