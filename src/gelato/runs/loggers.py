"""Log metrics to TensorBoard (extra `tensorboard`), in addition to metrics.csv."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gelato.errors import InputError

_LABELS = ("step", "method", "seed")
# A logger receives the metrics of one block, one row per method and seed.
Logger = Callable[[Sequence[Mapping[str, Any]]], None]


@contextmanager
def mirror(folder: Path) -> Iterator[Logger]:
    """Yield a logger that writes one TensorBoard run per method and seed below a folder."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise InputError(
            "TensorBoard logs need one more package: pip install 'gelato-rl[tensorboard]'"
        ) from error
    writers: dict[str, Any] = {}

    def write(rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            name = f"{row.get('method', 'model')}-{row['seed']}"
            if name not in writers:
                # Drop the values that an interrupted run wrote after its last checkpoint.
                writers[name] = SummaryWriter(str(folder / name), purge_step=int(row["step"]))
            for metric, value in row.items():
                if metric not in _LABELS and value != "":
                    writers[name].add_scalar(metric, float(value), int(row["step"]))
            writers[name].flush()

    try:
        yield write
    finally:
        # Call `close`: it waits for the background thread that writes. After Ctrl-C nothing else
        # waits for this thread.
        for writer in writers.values():
            writer.close()
