"""Logged transitions as one pytree of arrays, with scaling and splitting.

Row `i` holds `(s, a, r, s′)`. The rows of an episode are consecutive and in order of time. An
episode ends at a row where `terminated` (the task is over: a fall, a goal) or `truncated` (the
recording stops: a time limit) is set. The last row of the data always ends an episode. In some
files the last step of an episode has no successor. Such a row keeps its reward and flags, and its
`has_successor` is false.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, UInt8

from gelato.data.disk_columns import DiskColumn, cut_blocks, measure_moments
from gelato.data.history import Past, WindowLayout, encode_actions, find_past
from gelato.data.observations import ImageShape, MixedRows, ObservationLayout, split_parts
from gelato.data.spaces import ActionSpace
from gelato.errors import InputError
from gelato.tasks.task import name_states

# A column on the disk is used like an array that cannot be written.
if TYPE_CHECKING:
    Rows = np.ndarray | Array
else:
    Rows = np.ndarray | Array | DiskColumn
# Inputs of windows or images that are in memory together: rows, and values.
_PART_ROWS, _PART_VALUES = 65_536, 2**26
# Images whose mean and variance are summed together, and the variance of images that never change.
_IMAGE_ROWS, _LEAST_VARIANCE = 1_024, 1e-6


class Transitions(eqx.Module):
    """`n` logged transitions; every array has the row as its first axis."""

    states: Float[Rows, "n state"] | UInt8[Rows, "n state"] | MixedRows
    actions: Num[Rows, "n *action"]
    rewards: Float[Rows, " n"]
    next_states: Float[Rows, "n state"] | UInt8[Rows, "n state"] | MixedRows
    terminated: Bool[Rows, " n"]
    truncated: Bool[Rows, " n"]
    has_successor: Bool[Rows, " n"]
    observation_shape: tuple[int, ...] = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    action_probabilities: Float[Rows, " n"] | None = None
    """Probability of each logged action under the policy that chose it; a density if continuous."""
    reward_code: str = eqx.field(static=True, default="")
    """Source text of the user's reward function, if one computed the rewards."""
    past: Past | None = None
    """Where the rows before each row are, if policies and models read a history."""
    images: tuple[ImageShape, ...] = eqx.field(static=True, default=())
    """The shapes of the images at the end of each state."""

    def __len__(self) -> int:
        return len(self.rewards)

    def __getitem__(self, rows: slice | Num[Rows, " k"] | Bool[Rows, " n"]) -> "Transitions":
        chosen: Transitions = jax.tree.map(lambda column: column[rows], self._without_past())
        return chosen if self.past is None else replace(chosen, past=self.past.choose(rows))

    def _without_past(self) -> "Transitions":
        return self if self.past is None else replace(self, past=None)

    def with_history(self, length: int) -> "Transitions":
        """Return the same rows, with the last `length` observations and actions as their inputs.

        Rows on the disk are loaded, because windows are gathered from all of them.
        """
        if self.on_disk:
            return self.read(0, len(self)).with_history(length)
        states = self.states if isinstance(self.states, MixedRows) else np.asarray(self.states)
        past = find_past(states, np.asarray(self.actions), self.episode_slices, length)
        return replace(self, past=past)

    @property
    def layout(self) -> WindowLayout:
        """The columns of the inputs."""
        history = 1 if self.past is None else self.past.length
        return WindowLayout(history, self.states.shape[1], self.action_space.size)

    @property
    def observed(self) -> ObservationLayout:
        """The parts of a state."""
        pixels = ObservationLayout(0, self.images).size
        return ObservationLayout(self.states.shape[1] - pixels, self.images)

    @property
    def numbers(self) -> Float[np.ndarray, "n numbers"]:
        """The states without their images."""
        return split_parts(self.states, self.observed.numbers)[0].astype(np.float32, copy=False)

    @property
    def pixels(self) -> Num[np.ndarray, "n pixels"]:
        """The images of the states."""
        return split_parts(self.states, self.observed.numbers)[1]

    @property
    def part_size(self) -> int:
        """How many rows to take `inputs` of at once: windows and images take much memory."""
        if self.images:
            return min(_PART_ROWS, max(1, _PART_VALUES // self.layout.size))
        return max(1, len(self)) if self.past is None else _PART_ROWS

    @property
    def inputs(self) -> Float[np.ndarray, "n input"] | UInt8[np.ndarray, "n input"]:
        """What policies and models read at each row: the state, or the window that ends there.

        With a history the result is `history` times as large as the states: choose rows first.
        """
        if self.past is None:
            return np.asarray(self.states)
        return self.past.gather(self.action_space)

    @property
    def next_inputs(self) -> Float[np.ndarray, "n input"] | UInt8[np.ndarray, "n input"]:
        """What policies and models read after each row."""
        following = np.asarray(self.next_states)
        if self.past is None:
            return following
        following = following.astype(np.float32, copy=False)
        actions = encode_actions(self.action_space, np.asarray(self.actions))
        layout = self.layout
        return np.asarray(layout.open(following, layout.remember(self.inputs, actions)))

    @property
    def on_disk(self) -> bool:
        """Whether the rows are on the disk, so that stages should read them in blocks."""
        return isinstance(self.states, DiskColumn)

    def read(self, start: int, stop: int) -> "Transitions":
        """Return some rows as arrays in memory."""
        if not self.on_disk:
            return self[start:stop]

        def load(column: object) -> np.ndarray:
            if isinstance(column, DiskColumn):
                return column.read(start, stop)
            return np.asarray(column)[start:stop]

        return jax.tree.map(load, self)

    @property
    def ends(self) -> Bool[Rows, " n"]:
        """Whether each row is the last of its episode."""
        return self.terminated | self.truncated

    @property
    def episode_stops(self) -> Int[np.ndarray, " episodes"]:
        """The row after each episode; the last episode may have no end flag."""
        # Flags of a billion rows are too large for memory.
        parts = [np.zeros(0, np.int64)]
        for rows in cut_blocks(len(self), 1) if self.on_disk else [slice(0, len(self))]:
            ends = np.asarray(self.terminated[rows]) | np.asarray(self.truncated[rows])
            parts.append(np.flatnonzero(ends) + rows.start + 1)
        stops = np.concatenate(parts)
        if len(self) and (len(stops) == 0 or stops[-1] < len(self)):
            stops = np.append(stops, len(self))
        return stops

    @property
    def episode_slices(self) -> list[slice]:
        """The rows of each episode, in order; the last episode may have no end flag."""
        return [slice(start, stop) for start, stop in pairwise([0, *self.episode_stops.tolist()])]

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._without_past()))

    def with_successors(self) -> "Transitions":
        """Return the rows with a known successor.

        An episode that loses its last row is truncated at the row before it.
        """
        if self.has_successor.all():
            return self
        known = np.asarray(self.has_successor)
        cut = known & ~np.append(known[1:], True) & ~np.asarray(self.ends)
        kept = self[known]
        truncated = np.asarray(kept.truncated) | cut[known]
        return eqx.tree_at(lambda t: t.truncated, kept, truncated)

    def fingerprint(self, after_block: Callable[[np.ndarray], None] | None = None) -> str:
        """Return a hash of all values, shapes and spaces, which does not depend on the file.

        `after_block` is called with the values that were read last.
        """
        described = describe_kind(self.observation_shape, self.action_space, self.reward_code)
        if self.past is not None:
            described += f"history={self.past.length}"
        if self.images:
            described += f"images={self.images}"
        leaves = jax.tree.leaves(self._without_past())
        stored = _find_stored_fingerprint(leaves, described)
        if stored is not None:
            return stored
        digest = hashlib.blake2b(described.encode(), digest_size=16)
        for leaf in leaves:
            digest.update(f"{leaf.dtype}{leaf.shape}".encode())
            for block in leaf.iterate() if isinstance(leaf, DiskColumn) else [leaf]:
                digest.update(np.ascontiguousarray(block).data)
                if after_block is not None:
                    after_block(block)
        return digest.hexdigest()


def describe_kind(observation_shape: tuple[int, ...], space: ActionSpace, reward_code: str) -> str:
    """Return what a fingerprint depends on besides the columns."""
    return repr((observation_shape, space)) + reward_code


def _find_stored_fingerprint(leaves: list[Rows], described: str) -> str | None:
    """Return the fingerprint that a column store recorded, if these are all its rows."""
    every: list[object] = list(leaves)
    whole = [leaf for leaf in every if isinstance(leaf, DiskColumn) and leaf.is_whole]
    known = {leaf.file.fingerprint for leaf in whole}
    if len(whole) < len(leaves) or len(known) > 1:
        return None
    for leaf in whole:
        leaf.file.check()
    fingerprint, dependencies = known.pop()
    return fingerprint if fingerprint and dependencies == described else None


@dataclass(frozen=True)
class Dataset:
    """Transitions, the reference they were loaded from and the environment's id."""

    reference: str
    environment: str | None
    transitions: Transitions
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Field → the columns of the file that it was read from; empty if the source has no columns."""
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    whole_states: Float[np.ndarray, "n whole"] | None = None
    """With hidden columns: the states that a simulator can be set to. Only judges read them."""

    def list_state_names(self) -> list[str]:
        """Return the names of the states: those of the file, else those of the task."""
        observed = self.transitions.observed
        names = list(self.state_names) or name_states(self.environment, observed.numbers)
        return names + [f"pixel[{place}]" for place in range(observed.pixels)]

    def name_action(self, column: int) -> str:
        """Return the name of a column of the actions, for figures and messages."""
        return self.action_names[column] if self.action_names else f"action[{column}]"


class Standardiser(eqx.Module):
    """`x ↦ (x − mean) / scale`, column by column, and its inverse."""

    mean: Float[Rows, " column"]
    scale: Float[Rows, " column"]

    @staticmethod
    def fit(columns: Float[Rows, "n *column"]) -> "Standardiser":
        """Compute mean and standard deviation of each column; constant columns get scale 1.

        A column on the disk is read once, in blocks.
        """
        if isinstance(columns, DiskColumn):
            mean, deviation = measure_moments(columns)
        else:
            columns = np.asarray(columns)
            mean = columns.mean(axis=0, dtype=np.float64)
            deviation = columns.std(axis=0, dtype=np.float64, mean=mean[None])
        # Rounding errors give a constant column a tiny standard deviation. Division by it would
        # amplify noise.
        constant = deviation <= 1e-6 * np.maximum(np.abs(mean), 1e-6)
        # A column that varies but is far from zero, such as a date in seconds, keeps its standard
        # deviation.
        scale = np.where(constant, np.maximum(deviation, 1.0), deviation)
        return Standardiser(mean.astype(np.float32), scale.astype(np.float32))

    @staticmethod
    def fit_observations(transitions: Transitions) -> "Standardiser":
        """Fit to the states. Each pixel has its own mean, and an image has one scale.

        The mean of the pixels is the background. The scale is the root of the mean variance: with a
        scale for each pixel, noise in constant pixels would count as much as what moves.
        """
        states = transitions.states
        if not transitions.images and not isinstance(states, MixedRows):
            return Standardiser.fit(states)
        found, rows = Standardiser.fit(transitions.numbers), transitions.pixels
        means, scales = [found.mean], [found.scale]
        for part in transitions.observed.image_parts:
            total, squares = np.zeros(part.stop - part.start), 0.0
            for start in range(0, len(rows), _IMAGE_ROWS):
                chunk = rows[start : start + _IMAGE_ROWS, part].astype(np.float32)
                total += chunk.sum(axis=0, dtype=np.float64)
                squares += float(np.square(chunk).sum(dtype=np.float64))
            mean = total / len(rows)
            variance = squares / (len(rows) * len(mean)) - float(np.mean(mean**2))
            scale = np.sqrt(variance) if variance > _LEAST_VARIANCE else 1.0
            means.append(mean.astype(np.float32))
            scales.append(np.full(len(mean), scale, np.float32))
        return Standardiser(np.concatenate(means), np.concatenate(scales))

    def __call__(self, x: Num[Rows, "*batch column"]) -> Float[Rows, "*batch column"]:
        return (x - self.mean) / self.scale

    def __getitem__(self, columns: slice) -> "Standardiser":
        return Standardiser(self.mean[columns], self.scale[columns])

    def inverse(self, x: Float[Rows, "*batch column"]) -> Float[Rows, "*batch column"]:
        """Convert standardised values back to the data's units."""
        return x * self.scale + self.mean


def split(
    transitions: Transitions, held_out_fraction: float = 0.1, *, seed: int = 0
) -> tuple[Transitions, Transitions]:
    """Split by episode into training and held-out transitions.

    Neighbouring steps are similar, so they must not be in different parts.
    """
    held_out = find_held_out(transitions, held_out_fraction, seed=seed)
    return transitions[~held_out], transitions[held_out]


def find_held_out(
    transitions: Transitions, held_out_fraction: float = 0.1, *, seed: int = 0
) -> Bool[np.ndarray, " n"]:
    """Return which rows `split` holds out."""
    if not 0 < held_out_fraction < 1:
        raise InputError(f"held_out_fraction={held_out_fraction}: must be above 0 and below 1")
    stops = transitions.episode_stops
    if len(stops) < 2:
        raise InputError(
            "the data has a single episode, so none can be held out; record at least two, or "
            "divide a long one with `timeouts`"
        )
    held_out_count = min(max(1, round(held_out_fraction * len(stops))), len(stops) - 1)
    chosen = np.random.default_rng(seed).permutation(len(stops))[:held_out_count]
    held_out = np.zeros(len(transitions), bool)
    for episode in chosen:
        held_out[stops[episode - 1] if episode else 0 : stops[episode]] = True
    return held_out


def choose_evenly(rows: Sized, most: int) -> Int[np.ndarray, " k"]:
    """Return the numbers of at most `most` rows, spread evenly."""
    return np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)
