"""Find where episodes end: from flags, ids, time, time limits and jumps of the state."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from gelato.errors import InputError
from gelato.progress import note

Flags = Bool[np.ndarray, " n"]
States = Num[np.ndarray, "n *value"]

# Two states count as equal if they differ by less than this fraction of each column's standard
# deviation.
SAME_STATE = 1e-3
# A step of time counts as a jump if it is this many times the usual one.
_JUMP_IN_TIME = 10
# So many episodes that all terminate after the same number of steps look like a time limit.
_FEWEST_EQUAL = 3


def find_truncations(
    source: str,
    states: States,
    next_states: States | None,
    terminated: Flags,
    marked: Flags,
    *,
    episode_limit: int | None = None,
    flagged: Sequence[str] = (),
) -> Flags:
    """Return which rows end an episode without terminating it.

    `marked` are the rows where the recording stops. `flagged` names the fields that could have
    marked the ends of episodes.
    """
    truncated = marked.copy()
    if next_states is not None:
        unmarked = find_jumps(states, next_states) & ~terminated[:-1] & ~truncated[:-1]
        truncated[:-1] |= unmarked
        if unmarked.any():
            report_jumps(source, int(unmarked.sum()), int(np.argmax(unmarked)), len(states))
    elif episode_limit is not None and not truncated.any():
        truncated |= _limit_reached(terminated, episode_limit)
    elif len(states) > 1 and not (truncated | terminated).any():
        why = (
            f"{' and '.join(flagged)} {'are' if len(flagged) > 1 else 'is'} never set"
            if flagged
            else "no field marks the ends of episodes"
        )
        note(
            f"{source}: {why}, so all {len(states):,} steps are one episode; mark the last step of "
            "each episode in `terminals` or `timeouts`, or name a column of episode numbers "
            "(`episode`)"
        )
    truncated[-1] |= not terminated[-1]
    return truncated


def report_jumps(source: str, count: int, row: int, rows: int) -> None:
    """Say after how many rows an episode ends although no flag says so; `row` is the first."""
    message = (
        f"{source}: {count:,} rows whose successor is not the next row's state, the first at row "
        f"{row}; an episode ends at each of them"
    )
    if count > (rows - 1) / 2:
        message += ". These are most rows: are the rows in order of time?"
    note(message)


def find_jumps(states: States, next_states: States) -> Bool[np.ndarray, " m"]:
    """Return after which rows the next state differs from the recorded successor."""
    different = np.flatnonzero(
        (next_states[:-1] != states[1:]).any(axis=tuple(range(1, states.ndim)))
    )
    jumps = np.zeros(len(states) - 1, bool)
    if len(different):
        flat = states.reshape(len(states), -1)
        # Column by column: the double precision copy of all columns would be larger than the data.
        spread = np.array([column.std(dtype=np.float64) for column in flat.T])
        if states.dtype == np.uint8:  # Images: a difference of one shade may be noise.
            states, next_states = states.astype(np.int16), next_states.astype(np.int16)
        gap = np.abs(next_states[different] - states[different + 1]).reshape(len(different), -1)
        jumps[different] = (gap > SAME_STATE * spread).any(axis=1)
    return jumps


def _limit_reached(terminated: Flags, limit: int) -> Flags:
    """Return which steps reach the time limit, if nothing but it and terminations ends episodes."""
    steps = np.arange(len(terminated))
    starts = np.concatenate([[0], np.flatnonzero(terminated) + 1])
    since_start = steps - starts[np.searchsorted(starts, steps, side="right") - 1]
    return (since_start + 1) % limit == 0


def warn_about_time_limits(source: str, terminated: Flags, truncated: Flags, flag: str) -> None:
    """Warn if every episode terminates after the same number of steps. `flag` is the column."""
    ends = np.flatnonzero(terminated | truncated)
    lengths = np.diff(ends, prepend=-1)
    if len(ends) < _FEWEST_EQUAL or lengths[0] == 1 or np.ptp(lengths) or truncated[ends].any():
        return
    note(
        f"{source}: all {len(ends):,} episodes terminate after exactly {lengths[0]:,} steps. If "
        f"this is a time limit, add ,terminals=none,timeouts={flag}"
    )


def find_id_changes(ids: Shaped[np.ndarray, "n *k"], source: str) -> Flags:
    """Return the last row of each run of equal episode ids; no id may come back later."""
    rows = ids.reshape(len(ids), -1)
    last = np.ones(len(rows), bool)
    last[:-1] = (rows[1:] != rows[:-1]).any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    _, first, counts = np.unique(rows[starts], axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        value = rows[starts[first[np.argmax(counts > 1)]]]
        again = starts[(rows[starts] == value).all(axis=1)][1]
        name = "/".join(map(str, value))
        raise InputError(
            f"{source}: episode {name} continues in row {again} after other episodes; sort the "
            "rows by episode and time"
        )
    return last


def find_time_gaps(
    time: Float[np.ndarray, " n"], ends: Flags, gap: float | None, source: str
) -> Flags:
    """Check times within episodes, and return the rows after which a new episode starts.

    With a `gap`, an episode ends where time jumps by more than it, or runs backwards. Without one,
    time must not run backwards, and a jump gives a note.
    """
    bad = ~np.isfinite(time)
    if bad.any():
        raise InputError(f"{source}: time holds no number in row {int(np.argmax(bad))}")
    step, inside = np.diff(time), ~ends[:-1]
    found = np.zeros(len(time), bool)
    if gap is not None:
        found[:-1] = inside & ((step > gap) | (step < 0))
        return found
    backwards = inside & (step < 0)
    if backwards.any():
        row = int(np.argmax(backwards))
        raise InputError(
            f"{source}: time runs backwards after row {row}, from {time[row]:.10g} to "
            f"{time[row + 1]:.10g}; sort the rows, or add ,gap=SECONDS if a new episode starts "
            "there, or ,time=none to ignore times"
        )
    usual = float(np.median(step[inside])) if inside.any() else 0.0
    jumps = inside & (step > _JUMP_IN_TIME * usual) & (usual > 0)
    if jumps.any():
        row = int(np.argmax(jumps))
        note(
            f"{source}: time jumps in {int(jumps.sum()):,} places, the first after row {row} by "
            f"{step[row]:.4g} (usually {usual:.4g}); add ,gap={2 * usual:.2g} to end an episode at "
            "each jump"
        )
    repeated = inside & (step == 0)
    if repeated.any():
        row = int(np.argmax(repeated))
        note(
            f"{source}: {int(repeated.sum()):,} rows have the same time as the row before them, "
            f"the first is row {row + 1}"
        )
    return found


def read_splits(
    splits: Shaped[np.ndarray, " k"], rows: int, source: str
) -> Int[np.ndarray, " episodes"]:
    """Return the last row of each episode, from the first row of every later episode."""
    starts = splits.reshape(-1)
    if starts.dtype.kind not in "iu" or (np.diff(starts, prepend=0, append=rows) <= 0).any():
        raise InputError(
            f"{source}: splits must list the first row of each later episode, in increasing order, "
            f"above 0 and below {rows}"
        )
    return np.append(starts, rows).astype(np.int64) - 1


def pair_observations(
    observations: Num[np.ndarray, "longer *value"], last_rows: Int[np.ndarray, " episodes"]
) -> tuple[States, States]:
    """Split observations with one row more than steps in each episode into states and successors.

    `last_rows` are the numbers of the last step of each episode.
    """
    steps = int(last_rows[-1]) + 1
    episode = np.zeros(steps, np.int64)
    episode[last_rows[:-1] + 1] = 1
    place = np.arange(steps) + np.cumsum(episode)
    return observations[place], observations[place + 1]
