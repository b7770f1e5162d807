"""Datasets in pieces, for data that does not fit into memory: Minari, HDF5, .npz and Parquet.

The pieces together are the transitions that `load` gives. Flags, episode numbers and times are read
as a whole, because the end of an episode may depend on all of them. They take up to 25 bytes per
row. Everything else is read in blocks. The successor of a block's last row is in the next block, so
that row is held back until then.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import minari
import numpy as np

from gelato.data import build, store
from gelato.data.actions import (
    check_actions,
    check_probabilities,
    infer_space,
    scale_actions,
    warn_about_outliers,
    warn_if_normalised,
)
from gelato.data.column_store import StoreWriter
from gelato.data.columns import assemble, check_flags, check_floats, shift_states
from gelato.data.disk_columns import measure_moments
from gelato.data.episodes import (
    SAME_STATE,
    find_truncations,
    report_jumps,
    warn_about_time_limits,
)
from gelato.data.fields import choose_columns
from gelato.data.files import find_d4rl_settings, open_file
from gelato.data.layout import Layout, read_layout
from gelato.data.minari_episodes import collect, name_observations, read_episodes
from gelato.data.named import make_named, resolve_named
from gelato.data.recording import AbstractRecording
from gelato.data.sources import NAMED, Reference
from gelato.data.spaces import ActionSpace, Continuous
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError

BLOCK_ROWS = 2**18
# A block is smaller if its rows are large.
_BLOCK_BYTES = 2**26
_LIGHT = ("terminals", "timeouts", "episode", "time")
_SAMPLE = 100_000
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Piece:
    """Some rows. The next piece starts at `token` of the source."""

    rows: Transitions
    token: int
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Pieces:
    """A dataset in pieces. `stamp` changes when its files do."""

    rows: int
    stamp: str
    read: Callable[[int], Iterator[Piece]]
    describe: Callable[[], dict[str, Any]]
    complete: Callable[[StoreWriter], None] = lambda writer: None  # noqa: ARG005


@contextmanager
def open_pieces(reference: Reference, block_rows: int = BLOCK_ROWS) -> Iterator[Pieces | None]:
    """Open a source that can be read in pieces; yield None if it cannot."""
    options, target = dict(reference.options), reference.target
    with ExitStack() as stack:
        if {"reward", "history", "observe"} & options.keys():
            yield None
        elif reference.source == NAMED:
            named = resolve_named(reference)
            make_named(named)
            yield _cut_minari(named.dataset_id, block_rows)
        elif reference.source == "minari":
            yield _cut_minari(target, block_rows)
        elif reference.source in ("file", "d4rl"):
            path = Path(target)
            layout, limit = read_layout(options), None
            if reference.source == "d4rl":
                layout, limit = find_d4rl_settings(path)
            recording = stack.enter_context(open_file(path))
            yield _cut_recording(recording, layout, [path], limit, block_rows)
        elif reference.source == "parquet":
            from gelato.data.parquet import open_parquet

            tables, found = open_parquet(reference)
            yield _cut_recording(tables, read_layout(options), found, None, block_rows)
        else:
            yield None


def cut_dataset(dataset: Dataset, block_rows: int = BLOCK_ROWS) -> Pieces:
    """Cut a dataset that is in memory."""
    transitions = dataset.transitions
    size = _choose_block_rows(transitions.states.shape[1:], block_rows)

    def read(start: int) -> Iterator[Piece]:
        for first in range(start, len(transitions), size):
            stop = min(first + size, len(transitions))
            yield Piece(transitions.read(first, stop), stop)

    def describe() -> dict[str, Any]:
        return _describe(
            dataset.environment, dataset.columns, dataset.state_names, dataset.action_names
        )

    return Pieces(len(transitions), transitions.fingerprint(), read, describe)


def _describe(
    environment: str | None,
    columns: Mapping[str, Sequence[str]],
    state_names: Sequence[str],
    action_names: Sequence[str],
) -> dict[str, Any]:
    return {
        "environment": environment,
        "field_columns": {name: list(values) for name, values in columns.items()},
        "state_names": list(state_names),
        "action_names": list(action_names),
    }


def _stamp_files(files: Sequence[Path]) -> str:
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return json.dumps(stats)


def _choose_block_rows(shape: Sequence[int], most: int) -> int:
    row_bytes = 4 * int(np.prod(shape, dtype=np.int64))
    return max(1, min(most, _BLOCK_BYTES // max(row_bytes, 1)))


def _cut_minari(dataset_id: str, block_rows: int) -> Pieces:
    dataset = store.open_dataset(dataset_id)
    source = f"minari:{dataset_id}"
    size = _choose_block_rows(dataset.observation_space.shape or (1,), block_rows)

    def collect_all(episodes: Sequence[minari.EpisodeData]) -> Transitions:
        steps = sum(len(np.atleast_1d(episode.rewards)) for episode in episodes)
        return assemble(collect(episodes, steps, dataset))

    def read(start: int) -> Iterator[Piece]:
        waiting: list[minari.EpisodeData] = []
        steps, number = 0, start
        with store.report_episodes(dataset_id):
            for number, episode in enumerate(read_episodes(dataset, start), start + 1):
                waiting.append(episode)
                steps += len(np.atleast_1d(episode.rewards))
                if steps >= size:
                    yield Piece(collect_all(waiting), number)
                    waiting, steps = [], 0
            if waiting:
                yield Piece(collect_all(waiting), number)

    def describe() -> dict[str, Any]:
        names = name_observations(dataset.observation_space, source)
        return _describe(store.find_environment_id(dataset), {}, names, ())

    files = [file for file in sorted(Path(dataset.spec.data_path).iterdir()) if file.is_file()]
    return Pieces(int(dataset.total_steps), _stamp_files(files), read, describe)


def _cut_recording(
    recording: AbstractRecording,
    layout: Layout,
    files: Sequence[Path],
    episode_limit: int | None,
    block_rows: int,
) -> Pieces | None:
    """Cut a file with one row per step; None if its layout needs all rows together."""
    chosen = choose_columns(
        recording.names, layout.columns, recording.source, texts=recording.texts
    )
    heavy = {name: names for name, names in chosen.items() if name not in _LIGHT}
    rows = recording.count_rows(heavy)
    if rows is None or rows == 0 or "splits" in chosen:
        return None
    cutter = _Cutter(recording, layout, chosen, heavy, rows, episode_limit, block_rows)
    return Pieces(rows, _stamp_files(files), cutter.read, cutter.describe, cutter.complete)


@dataclass
class _Cutter:
    recording: AbstractRecording
    layout: Layout
    chosen: Mapping[str, Sequence[str]]
    heavy: Mapping[str, Sequence[str]]
    rows: int
    episode_limit: int | None
    block_rows: int

    @property
    def _source(self) -> str:
        return self.recording.source

    def read(self, start: int) -> Iterator[Piece]:
        terminated, truncated = self._find_ends()
        space = self._find_space()
        held: Arrays | None = None
        place = start
        for block in self.recording.iterate(self.heavy, start, self.block_rows):
            if held is not None:
                block = {name: np.concatenate([held[name], block[name]]) for name in block}
            ready = len(block["actions"]) - 1
            if ready > 0:
                yield self._assemble(block, ready, place, terminated, truncated, space)
                place += ready
            held = {name: values[ready:].copy() for name, values in block.items()}
        if held is not None:
            yield self._assemble(held, len(held["actions"]), place, terminated, truncated, space)

    def describe(self) -> dict[str, Any]:
        recording = self.recording
        if not recording.widths:  # A repeated command that found all rows written.
            next(recording.iterate(self.heavy, 0, 1), None)
        return _describe(
            self.layout.environment,
            self.chosen,
            recording.name_values(self.chosen["observations"]),
            recording.name_values(self.chosen["actions"]),
        )

    def complete(self, writer: StoreWriter) -> None:
        """End episodes where the successor of a row is not the next row, and warn."""
        if any(block.notes.get("breaks") for block in writer.blocks):
            _mark_jumps(writer, self._source)
        if "terminals" in self.chosen:
            written = writer.open_columns()
            flags = np.asarray(written.terminated), np.asarray(written.truncated)
            warn_about_time_limits(self._source, *flags, "|".join(self.chosen["terminals"]))

    def _find_ends(self) -> tuple[np.ndarray, np.ndarray]:
        light = {name: self.chosen[name] for name in _LIGHT if name in self.chosen}
        arrays = self.recording.read(light)
        # The functions below only need the number of rows.
        arrays["actions"] = np.empty((self.rows, 0), np.uint8)
        build.drop_unfit(arrays, self.layout.columns)
        boundaries = build.find_boundaries(arrays, None, self.layout, self._source)
        for name in ("terminals", "timeouts"):
            if name in arrays and arrays[name].shape[:1] != (self.rows,):
                raise InputError(
                    f"{self._source}: {name} has shape {arrays[name].shape}, but observations has "
                    f"{self.rows:,} rows; every field must have one row per step"
                )
        terminated = check_flags(arrays.get("terminals"), self._source, "terminals", self.rows)
        marked = check_flags(arrays.get("timeouts"), self._source, "timeouts", self.rows)
        if boundaries is not None:
            marked |= boundaries & ~terminated
        if "next_observations" in self.chosen:
            marked[-1] |= not terminated[-1]
            return terminated, marked
        truncated = find_truncations(
            self._source,
            arrays["actions"],
            None,
            terminated,
            marked,
            episode_limit=self.episode_limit,
            flagged=[name for name in ("terminals", "timeouts") if name in arrays],
        )
        return terminated, truncated

    def _find_space(self) -> ActionSpace:
        """Return the action space, from the range of all actions where nothing else says it."""
        space = self.layout.action_space
        names = {"actions": self.chosen["actions"]}
        if space is not None and not isinstance(space, Continuous):
            return space
        low = high = None
        samples = []
        step = -(-self.rows // _SAMPLE)
        for block in self.recording.iterate(names, 0, self.block_rows):
            actions = block["actions"].reshape(len(block["actions"]), -1)
            samples.append(actions[::step])
            ends = actions.min(axis=0), actions.max(axis=0)
            low = ends[0] if low is None else np.minimum(low, ends[0])
            high = ends[1] if high is None else np.maximum(high, ends[1])
        assert low is not None and high is not None
        sample = np.concatenate([*samples, [low, high]]).astype(samples[0].dtype)
        if isinstance(space, Continuous) and space.size == 1:
            size = sample.shape[1]
            space = Continuous(space.low * size, space.high * size)
        if space is None:
            warn_about_outliers(sample, self._source)
        if self.layout.scale is not None:
            sample = scale_actions(sample, self.layout.scale, self._source)
        else:
            warn_if_normalised(sample, space, self._source)
        if space is not None:
            return space
        values = check_floats(sample, self._source, "actions")
        return infer_space(sample, values.reshape(len(sample), -1), self._source)

    def _assemble(
        self,
        block: Arrays,
        rows: int,
        place: int,
        terminated: np.ndarray,
        truncated: np.ndarray,
        space: ActionSpace,
    ) -> Piece:
        """Make transitions of the first rows of a block; one more row shows the next state."""
        try:
            return self._make(block, rows, place, terminated, truncated, space)
        except InputError as error:
            where = f" (rows are counted from row {place:,})" if place else ""
            raise InputError(f"{error}{where}") from error

    def _make(
        self,
        block: Arrays,
        rows: int,
        place: int,
        terminated: np.ndarray,
        truncated: np.ndarray,
        space: ActionSpace,
    ) -> Piece:
        source, here = self._source, slice(place, place + rows)
        every = check_floats(block["observations"], source, "observations")
        shape, states = every.shape[1:], every[:rows]
        ends = terminated[here] | truncated[here]
        breaks = 0
        if "next_observations" in block:
            next_states = check_floats(block["next_observations"], source, "next_observations")
            next_states = next_states[:rows]
            if next_states.shape != states.shape:
                raise InputError(f"{source}: next_observations and observations differ in shape")
            known = np.ones(rows, bool)
            after = every[1 : rows + 1].reshape(-1, states[0].size)
            different = (next_states[: len(after)].reshape(after.shape) != after).any(axis=1)
            breaks = int((different & ~ends[: len(after)]).sum())
        else:
            known = ~ends
            # The last row of all data ends an episode, so every row with a successor has one here.
            after = shift_states(every, np.append(known, False)[: len(every)])
            next_states = after[:rows]
        actions = block["actions"][:rows].reshape(rows, -1)
        if self.layout.scale is not None:
            actions = scale_actions(actions, self.layout.scale, source)
        if self.layout.clip and isinstance(space, Continuous):
            actions = np.clip(actions, space.low, space.high).astype(np.float32)
        values = check_floats(actions, source, "actions").reshape(rows, -1)
        rewards = np.zeros((rows, 1), np.float32)
        if "rewards" in block:
            rewards = check_floats(block["rewards"][:rows], source, "rewards").reshape(rows, -1)
            if rewards.shape[1] != 1:
                raise InputError(
                    f"{source}: rewards has {rewards.shape[1]} values per row; it must have one"
                )
        probabilities = None
        if "action_probabilities" in block:
            column = block["action_probabilities"][:rows]
            column = check_floats(column, source, "action_probabilities").reshape(rows, -1)
            probabilities = check_probabilities(column, space, source)
        transitions = Transitions(
            states=states.reshape(rows, -1),
            actions=check_actions(values, space, source),
            rewards=rewards[:, 0],
            next_states=next_states.reshape(rows, -1),
            terminated=terminated[here],
            truncated=truncated[here],
            has_successor=known,
            observation_shape=shape,
            action_space=space,
            action_probabilities=probabilities,
        )
        return Piece(transitions, place + rows, {"breaks": breaks})


def _mark_jumps(writer: StoreWriter, source: str) -> None:
    """End an episode at each row whose successor is not the state of the next row."""
    data = writer.open_columns()
    _, spread = measure_moments(data.states)  # type: ignore[arg-type]
    count, first_row = 0, 0

    def change(start: int, truncated: np.ndarray) -> np.ndarray:
        nonlocal count, first_row
        stop = min(start + len(truncated) + 1, len(data))
        states, following = data.states[start + 1 : stop], data.next_states[start : stop - 1]
        gap = np.abs(np.asarray(following) - np.asarray(states))
        jumps = (gap > SAME_STATE * spread).any(axis=1)
        open_ends = ~np.asarray(data.terminated[start : stop - 1]) & ~truncated[: len(jumps)]
        unmarked = jumps & open_ends
        if unmarked.any() and count == 0:
            first_row = start + int(np.argmax(unmarked))
        count += int(unmarked.sum())
        changed = truncated.copy()
        changed[: len(unmarked)] |= unmarked
        return changed

    writer.replace_column("truncated", change)
    if count:
        report_jumps(source, count, first_row, len(data))
