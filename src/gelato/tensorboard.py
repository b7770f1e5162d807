"""Metrics for TensorBoard (the extra `tensorboard`), beside metrics.csv."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gelato.errors import InputError

_LABELS = ("step", "method", "seed")


@contextmanager
def mirror(folder: Path) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """A function that writes rows of metrics below a folder, a TensorBoard run for each method and seed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard logs need one more package: pip install 'gelato-rl[tensorboard]'") from error
    writers: dict[str, Any] = {}

    def write(rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            name = f"{row.get('method', 'model')}-{row['seed']}"
            if name not in writers:
                # What an interrupted run wrote past its checkpoint is dropped.
                writers[name] = SummaryWriter(str(folder / name), purge_step=int(row["step"]))
            for metric, value in row.items():
                if metric not in _LABELS and value != "":
                    writers[name].add_scalar(metric, float(value), int(row["step"]))
            writers[name].flush()

    try:
        yield write
    finally:
        # What was flushed last may still be on its way to the file, in a thread that Ctrl-C does not wait for.
        for writer in writers.values():
            writer.close()
