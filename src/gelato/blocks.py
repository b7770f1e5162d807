"""Training as blocks of updates in a run's folder: progress, a row of metrics a block, checkpoints, resume.

A block is one compiled program. What it computes depends on the state and the step alone, so a run that was killed goes
on from its last checkpoint and ends bit for bit where it would have ended.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from gelato.errors import InputError
from gelato.interrupts import between_blocks, stop_if_asked, unhurried
from gelato.progress import progress
from gelato.runs import Run

CHECKPOINT_SECONDS = 60.0
State = TypeVar("State")
Metrics = Mapping[str, np.ndarray]


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
    after: Callable[[State, int], Metrics] | None = None,
    status: Callable[[Metrics], str] | None = None,
    mirror: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
) -> State:
    """Run blocks of `length` updates until there were `total`, from the last checkpoint if there is one.

    What goes on where another training ended counts from there: `first` were done, and `total` includes them. `block`
    returns the new state and what it measured, each metric an array with an entry for each of `labels` (the
    columns that tell one row from another: method, seed). `after` adds to it at the end of a block, and `mirror` is
    given the rows that are logged.
    """
    step, state = last_checkpoint(folder, state, first) or (first, state)
    folder.forget_metrics_after(step)
    saved, types, finite = time.monotonic(), _types(state), _finite(state)
    with progress(title, total - first) as advance, between_blocks() as interrupted:
        advance(step - first)
        while step < total:
            begun = time.monotonic()
            updates = min(length, total - step)
            state, metrics = block(state, updates)
            assert _types(state) == types, "a block that changes a type (weak to strong, say) is compiled twice"
            _stop_at_nan(folder, metrics, labels, step, updates)
            step += updates
            rate = {"updates_per_second": round(updates / (time.monotonic() - begun), 1)}
            metrics = {**metrics, **(after(state, step) if after else {})}
            rows = [{"step": step, **label, **rate, **_entry(metrics, i)} for i, label in enumerate(labels)]
            folder.log(rows)
            if mirror is not None:
                mirror(rows)
            advance(updates, status=status(metrics) if status else "")
            if step < total and (interrupted() or time.monotonic() - saved > CHECKPOINT_SECONDS):
                _stop_if_broken(folder, state, finite, step)
                folder.save_checkpoint(step, eqx.filter(state, eqx.is_array))
                saved = time.monotonic()
                stop_if_asked()
    _stop_if_broken(folder, state, finite, step)
    return state


def finish(folder: Run, keep: Callable[[], None]) -> None:
    """Keep the result of a training, which Ctrl-C waits for, drop its checkpoints, and obey one that came late."""
    with unhurried():
        keep()
        folder.remove_checkpoints()
    stop_if_asked()


def _types(state: Any) -> list[Any]:
    return [jax.typeof(leaf) for leaf in jax.tree.leaves(state) if eqx.is_array(leaf)]


def _entry(metrics: Metrics, index: int) -> dict[str, Any]:
    return {name: f"{value:.6g}" if np.isfinite(value := values[index]) else "" for name, values in metrics.items()}


def last_checkpoint(folder: Run, state: State, first: int = 0) -> tuple[int, State] | None:
    """The newest whole checkpoint from step `first` on, with its step; `state` is what it looks like."""
    arrays, static = eqx.partition(state, eqx.is_array)
    for step in reversed([step for step in folder.checkpoints if step >= first]):
        loaded = folder.load_checkpoint(step, arrays)
        if loaded is not None:
            return step, eqx.combine(jax.tree.map(jnp.asarray, loaded), static)
    return None


def _finite(state: Any) -> Bool[np.ndarray, " leaves"]:
    # Not compiled: for as many small arrays that takes a second, and a checkpoint is rare and fetches them anyhow.
    leaves = filter(eqx.is_inexact_array, jax.tree.leaves(state))
    return np.array([np.isfinite(leaf).all() for leaf in leaves], bool)


def _stop_if_broken(folder: Run, state: Any, before: Bool[np.ndarray, " leaves"], step: int) -> None:
    """Stop before a state is kept of which something is no longer finite; a bound or a loss to beat may never be."""
    if (before & ~_finite(state)).any():
        raise InputError(
            f"{folder.folder}: weights are not finite after {step} updates; the last checkpoint is kept, if there was "
            "one. Try a smaller learning rate"
        )


def _stop_at_nan(folder: Run, metrics: Metrics, labels: Sequence[Mapping[str, Any]], first: int, updates: int) -> None:
    """Stop where a metric is not finite, and say which and where."""
    for name, values in metrics.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            which = ", ".join(f"{key} {value}" for key, value in labels[bad[0]].items())
            raise InputError(
                f"{folder.folder}: {name} became {values[bad[0]]} between updates {first} and {first + updates} "
                f"({which}); the last checkpoint is kept, if there was one. Try a smaller learning rate, or rewards "
                "of a smaller scale"
            )
