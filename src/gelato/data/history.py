"""Windows of the last observations and actions, for environments that show only part of the state.

A window of length H is one flat vector of H rows `(o, a, 1)`, newest first. The newest row holds
the current observation; its action is not chosen yet and is zero. A row from before the start of
the episode is zero in all columns, also in the last one. So a window never shows another episode,
and the window at the start of an episode is known without any data.

The *memory* is a window without its newest row. Someone who runs a policy carries it from step to
step, and starts with zeros:

    window = open(o, memory)      a = policy(window)      memory = remember(window, a)

With a history of 1 the window is the observation itself, and the memory is empty.
"""

from dataclasses import dataclass
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, UInt8

from gelato.data.observations import MixedRows
from gelato.data.spaces import ActionSpace, Discrete
from gelato.errors import InputError
from gelato.runs.memory import find_free_memory

Rows = np.ndarray | Array
# Python refuses to read numbers of thousands of digits.
_MOST_DIGITS = 9


@dataclass(frozen=True)
class WindowLayout:
    """The columns of a window. Actions are encoded: discrete ones are one-hot."""

    history: int
    state_size: int
    action_size: int

    @property
    def row_size(self) -> int:
        """Number of values in a row of a window."""
        return self.state_size + self.action_size + 1

    @property
    def size(self) -> int:
        """Number of values in a window."""
        return self.state_size if self.history == 1 else self.history * self.row_size

    @property
    def memory_size(self) -> int:
        """Number of values in a memory."""
        return (self.history - 1) * self.row_size

    def start(self) -> Float[np.ndarray, " memory"]:
        """Return the memory at the start of an episode."""
        return np.zeros(self.memory_size, np.float32)

    def open(
        self, observation: Float[Rows, "*batch state"], memory: Float[Rows, "*batch memory"]
    ) -> Float[Rows, "*batch window"]:
        """Return the window of an observation and the memory before it."""
        if self.history == 1:
            return observation
        numpy = _find_numpy(observation)
        shape = observation.shape[:-1]
        no_action = numpy.zeros((*shape, self.action_size), observation.dtype)
        known = numpy.ones((*shape, 1), observation.dtype)
        return numpy.concatenate([observation, no_action, known, memory], axis=-1)

    def remember(
        self, window: Float[Rows, "*batch window"], action: Float[Rows, "*batch action"]
    ) -> Float[Rows, "*batch memory"]:
        """Return the memory after the action of a window was taken."""
        numpy = _find_numpy(window)
        if self.history == 1:
            return numpy.zeros((*window.shape[:-1], 0), window.dtype)
        kept = window[..., self.row_size : self.size - self.row_size]
        known = window[..., self.row_size - 1 : self.row_size]
        parts = [window[..., : self.state_size], action, known, kept]
        return numpy.concatenate(parts, axis=-1)

    def normalise(
        self,
        windows: Num[Rows, "*batch window"],
        mean: Float[Rows, " state"],
        scale: Float[Rows, " state"],
    ) -> Float[Rows, "*batch window"]:
        """Standardise the observations of windows; unknown rows stay zero."""
        if self.history == 1:
            return (windows - mean) / scale
        rows, level, unit = self._split_rows(windows, mean, scale)
        return ((rows - level) / unit).reshape(windows.shape)

    def restore(
        self,
        windows: Float[Rows, "*batch window"],
        mean: Float[Rows, " state"],
        scale: Float[Rows, " state"],
    ) -> Float[Rows, "*batch window"]:
        """Convert normalised windows back to the data's units."""
        if self.history == 1:
            return windows * scale + mean
        rows, level, unit = self._split_rows(windows, mean, scale)
        return (rows * unit + level).reshape(windows.shape)

    def _split_rows(self, windows: Rows, mean: Rows, scale: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the rows of windows, and what to subtract from them and to divide them by."""
        numpy = _find_numpy(windows, mean)
        others = (0, self.action_size + 1)
        rows = windows.reshape(*windows.shape[:-1], self.history, self.row_size)
        level = numpy.pad(mean, others) * rows[..., -1:]
        return rows, level, numpy.pad(scale, others, constant_values=1)


def _find_numpy(*arrays: Rows) -> ModuleType:
    """Return the module for these arrays; policies run without JAX."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def encode_actions(
    space: ActionSpace, actions: Num[np.ndarray, "*given"] | np.int64
) -> Float[np.ndarray, "*encoded"]:
    """Return actions as windows hold them: discrete ones are one-hot."""
    if isinstance(space, Discrete):
        return np.equal(np.asarray(actions)[..., None], np.arange(space.n)).astype(np.float32)
    return np.asarray(actions, np.float32)


class Past(eqx.Module):
    """Where the past of chosen rows is. Windows are gathered from the whole log when needed.

    `states` and `actions` are those of the whole log, which shares them with its `Transitions`.
    `places` are the rows of the log that were chosen, and `ages` the steps since the start of their
    episodes, at most `length − 1`.
    """

    states: Float[Rows, "rows state"] | UInt8[Rows, "rows state"] | MixedRows
    actions: Num[Rows, "rows *action"]
    places: Int[Rows, " n"]
    ages: Int[Rows, " n"]
    length: int = eqx.field(static=True)

    def choose(self, rows: slice | Num[Rows, " k"] | Bool[Rows, " n"]) -> "Past":
        """Return the past of some of the rows."""
        kept = rows if isinstance(rows, slice) else np.asarray(rows)
        places, ages = np.asarray(self.places)[kept], np.asarray(self.ages)[kept]
        return Past(self.states, self.actions, places, ages, self.length)

    def check_memory(self, space: ActionSpace, copies: int = 1) -> None:
        """Raise an error if windows of the chosen rows do not fit into memory so many times."""
        layout = WindowLayout(self.length, self.states.shape[1], space.size)
        needed = 4 * len(self.places) * layout.size * copies
        free = find_free_memory()
        if free is not None and needed > free:
            raise InputError(
                f"the windows of {len(self.places):,} rows with history={self.length} need "
                f"{needed / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are free; use a "
                "shorter history or less data"
            )

    def gather(self, space: ActionSpace) -> Float[np.ndarray, "n window"]:
        """Return the windows of the chosen rows, in the data's units."""
        states = self.states if isinstance(self.states, MixedRows) else np.asarray(self.states)
        actions = np.asarray(self.actions)
        layout = WindowLayout(self.length, states.shape[1], space.size)
        places, ages = np.asarray(self.places), np.asarray(self.ages)
        self.check_memory(space)
        windows = np.zeros((len(places), self.length, layout.row_size), np.float32)
        windows[:, 0, : layout.state_size] = states[places]
        windows[:, 0, -1] = 1
        for back in range(1, self.length):
            known = np.flatnonzero(ages >= back)
            rows = places[known] - back
            windows[known, back, : layout.state_size] = states[rows]
            windows[known, back, layout.state_size : -1] = encode_actions(space, actions[rows])
            windows[known, back, -1] = 1
        return windows.reshape(len(places), layout.size)


def read_history(text: str, reference: str) -> int:
    """Read the value of the option `history`."""
    digits = text.replace("_", "")
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS or int(digits) < 2:
        raise InputError(
            f"{reference}: history={text} must be a whole number of at least 2 observations, with "
            f"at most {_MOST_DIGITS} digits; the current one alone needs no option"
        )
    return int(digits)


def find_past(
    states: Float[np.ndarray, "rows state"] | UInt8[np.ndarray, "rows state"] | MixedRows,
    actions: Num[np.ndarray, "rows *action"],
    episodes: list[slice],
    length: int,
) -> Past:
    """Return the past of every row of a log."""
    ages = np.empty(len(states), np.int32)
    for rows in episodes:
        ages[rows] = np.minimum(np.arange(rows.stop - rows.start), length - 1)
    return Past(states, actions, np.arange(len(states), dtype=np.int32), ages, length)
