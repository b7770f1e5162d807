"""The training loop: blocks of updates with progress, metrics, checkpoints and resume.

A block is one compiled program. Its result depends only on the state and the step, so a killed run
resumes from its last checkpoint. The result is bit for bit the same as without the kill.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from gelato.errors import InputError
from gelato.progress import progress
from gelato.runs.folder import Run
from gelato.runs.signals import delay_signals, stop_between_blocks, stop_if_asked

CHECKPOINT_SECONDS = 60.0
State = TypeVar("State")
Metrics = Mapping[str, np.ndarray]
Row = Mapping[str, Any]
# Called with the step and the new rows after every block, and first with the step of the start.
Show = Callable[[int, Sequence[Row]], None]
# Opens a display, given the first step and the total.
Display = Callable[[int, int], AbstractContextManager[Show]]
_keepers: ContextVar[tuple[Callable[[Run], None], ...]] = ContextVar("keepers", default=())
# Called with the title of a training, the step, the total and the new rows after every block.
Watch = Callable[[str, int, int, Sequence[Row]], None]
_watchers: ContextVar[tuple[Watch, ...]] = ContextVar("watchers", default=())


@contextmanager
def on_checkpoint(keep: Callable[[Run], None]) -> Iterator[None]:
    """Call `keep` with a run when its rows of metrics.csv are final: no resume replaces them.

    This holds for all training loops in the context, such as those of fits.
    """
    token = _keepers.set((*_keepers.get(), keep))
    try:
        yield
    finally:
        _keepers.reset(token)


@contextmanager
def watch_blocks(watch: Watch) -> Iterator[None]:
    """Call `watch` at the start and after every block of all training loops in the context."""
    token = _watchers.set((*_watchers.get(), watch))
    try:
        yield
    finally:
        _watchers.reset(token)


def _announce_checkpoint(folder: Run) -> None:
    for keep in _keepers.get():
        keep(folder)


def run_blocks(
    folder: Run,
    state: State,
    block: Callable[[State, int], tuple[State, Metrics]],
    *,
    labels: Sequence[Mapping[str, Any]],
    total: int,
    length: int,
    title: str,
    first: int = 0,
    start: int | None = None,
    after: Callable[[State, int], Metrics] | None = None,
    shown: Sequence[str] = (),
    display: Display | None = None,
    is_done: Callable[[Metrics], bool] | None = None,
) -> State:
    """Run blocks of `length` updates until `total`, from the last checkpoint if there is one.

    A second training phase starts at step `first`; `total` includes the steps before it. If `start`
    is given, it is the step of `state`, and no checkpoint is read. `block` returns the new state
    and its metrics, arrays with one entry per label. `labels` are the columns that identify a row
    (method, seed). `after` adds metrics at the end of a block. A progress bar shows the means of
    the metrics `shown`; `display` replaces the bar. Training ends before `total` if `is_done` says
    so of a block's metrics.
    """
    step = first if start is None else start
    if start is None:
        step, state = last_checkpoint(folder, state, first) or (first, state)
        folder.forget_metrics_after(step)
    saved, types, finite = time.monotonic(), _types(state), _finite(state)
    display = display or partial(_show_bar, title, shown)
    with display(first, total) as show_rows, stop_between_blocks() as interrupted:

        def show(step: int, rows: Sequence[Row]) -> None:
            show_rows(step, rows)
            for watch in _watchers.get():
                watch(title, step, total, rows)

        show(step, folder.metrics if step > first else [])
        while step < total:
            begun = time.monotonic()
            updates = min(length, total - step)
            state, metrics = block(state, updates)
            assert _types(state) == types, (
                "the block changed a type (weak to strong, for example) and would compile twice"
            )
            _stop_at_nan(folder, metrics, labels, step, updates)
            step += updates
            rate = {"updates_per_second": round(updates / (time.monotonic() - begun), 1)}
            metrics = {**metrics, **(after(state, step) if after else {})}
            rows = [
                {"step": step, **label, **rate, **_entry(metrics, i)}
                for i, label in enumerate(labels)
            ]
            folder.log(rows)
            show(step, rows)
            if is_done is not None and is_done(metrics):
                break
            if step < total and (interrupted() or time.monotonic() - saved > CHECKPOINT_SECONDS):
                _stop_if_broken(folder, state, finite, step)
                folder.save_checkpoint(step, eqx.filter(state, eqx.is_array))
                saved = time.monotonic()
                _announce_checkpoint(folder)
                stop_if_asked()
    _stop_if_broken(folder, state, finite, step)
    return state


def finish(folder: Run, keep: Callable[[], None]) -> None:
    """Store the result of a training and drop its checkpoints. Ctrl-C waits until this is done."""
    with delay_signals():
        folder.close_log()
        keep()
        folder.remove_checkpoints()
        _announce_checkpoint(folder)
    stop_if_asked()


@contextmanager
def _show_bar(title: str, shown: Sequence[str], first: int, total: int) -> Iterator[Show]:
    """Show a progress bar with the means of some metrics."""
    before = first
    with progress(title, total - first) as advance:

        def show(step: int, rows: Sequence[Row]) -> None:
            nonlocal before
            parts = []
            for name in shown:
                values = [float(row[name]) for row in rows if row["step"] == step and row[name]]
                if values:
                    parts.append(f"{name.replace('_', ' ')} {np.mean(values):.3g}")
            advance(step - before, status=", ".join(parts))
            before = step

        yield show


def _types(state: Any) -> list[Any]:
    # Not where the array lies: a block may divide it among devices.
    kinds = [jax.typeof(leaf) for leaf in jax.tree.leaves(state) if eqx.is_array(leaf)]
    return [(kind.shape, kind.dtype, kind.weak_type) for kind in kinds]


def _entry(metrics: Metrics, index: int) -> dict[str, Any]:
    return {
        name: f"{value:.6g}" if np.isfinite(value := values[index]) else ""
        for name, values in metrics.items()
    }


def last_checkpoint(folder: Run, state: State, first: int = 0) -> tuple[int, State] | None:
    """Return the newest readable checkpoint from step `first` on, and its step."""
    arrays, static = eqx.partition(state, eqx.is_array)
    for step in reversed([step for step in folder.checkpoints if step >= first]):
        loaded = folder.load_checkpoint(step, arrays)
        if loaded is not None:
            return step, eqx.combine(jax.tree.map(jnp.asarray, loaded), static)
    return None


def _finite(state: Any) -> Bool[np.ndarray, " leaves"]:
    # This is not compiled: compiling takes a second for this many arrays, and checkpoints are rare.
    leaves = filter(eqx.is_inexact_array, jax.tree.leaves(state))
    return np.array([np.isfinite(leaf).all() for leaf in leaves], bool)


def _stop_if_broken(
    folder: Run, state: Any, before: Bool[np.ndarray, " leaves"], step: int
) -> None:
    """Raise an error if weights became infinite or NaN, before the state is stored.

    Values that were infinite from the start, such as a bound or a best loss, are allowed.
    """
    if (before & ~_finite(state)).any():
        raise InputError(
            f"{folder.folder}: weights are not finite after {step} updates; the last checkpoint is "
            "kept. Try a smaller learning rate"
        )


def _stop_at_nan(
    folder: Run, metrics: Metrics, labels: Sequence[Mapping[str, Any]], first: int, updates: int
) -> None:
    """Raise an error if a metric is not finite; name the metric, the updates and the row."""
    for name, values in metrics.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            which = ", ".join(f"{key} {value}" for key, value in labels[bad[0]].items())
            raise InputError(
                f"{folder.folder}: {name} became {values[bad[0]]} between updates {first} and "
                f"{first + updates} ({which}); the last checkpoint is kept. Try a smaller learning "
                "rate, or rewards of a smaller scale"
            )
