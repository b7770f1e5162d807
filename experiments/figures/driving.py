"""Draw return and crash rate of driving tasks over training steps, one column per task.

python experiments/figures/driving.py --run results/driving.json --out FILE.png
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.command import run_figure
from experiments.tables import last_records, mean_of, select
from gelato.errors import InputError
from gelato.report.figures import FigureRequest
from gelato.report.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    add_legend,
    half_width,
    label_panels,
    save,
)
from gelato.runs.records import Record, read_records
from gelato.tasks.driving import DRIVING_TASKS

TASKS = {task.name: task for task in DRIVING_TASKS}

# Colour, line style and marker each identify a method, so that readers need only one of them.
_LOOKS = {
    "gelato": ("geodesic (GELATO)", BLUE, "-", "o"),
    "gelato-l2": ("latent ℓ2", ORANGE, "--", "s"),
    "gelato-ensemble": ("ensemble", "#5a8f3c", "-.", "^"),
    "gelato-none": ("no penalty", GREY, ":", "D"),
}
_WRITER = "`python experiments/benchmarks/driving.py`"


def read_driving(path: Path) -> list[Record]:
    """Read the records that the figure shows."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; {_WRITER} writes results/driving.json")
    records = read_records(path)
    needed = {"dataset", "method", "seed", "steps", "return", "crash_rate"}
    missing = needed - set(records[0] if records else ())
    if missing:
        raise InputError(
            f"{path}: not results of driving: records lack {', '.join(sorted(missing))}"
        )
    if not any(record["dataset"] in TASKS for record in records):
        raise InputError(f"{path}: no records of driving; {_WRITER} writes them")
    return records


def draw_driving(request: FigureRequest) -> None:
    """Draw return above and crash rate below, one column per task."""
    records = read_driving(request.run)
    tasks = [name for name in TASKS if select(records, dataset=name)]
    figure = Figure(figsize=(max(2.1 * len(tasks), 8.0), 4.2), layout="constrained")
    axes = figure.subplots(2, len(tasks), sharex="col", squeeze=False)
    for column, task in enumerate(tasks):
        of_task = select(records, dataset=task)
        for row, field in enumerate(("return", "crash_rate")):
            _draw_panel(axes[row, column], of_task, field)
        axes[0, column].set_title(task)
        axes[1, column].set(ylim=(-0.03, 1.03), xlabel="imagined steps (1,000)")
    axes[0, 0].set_ylabel("return of an episode")
    axes[1, 0].set_ylabel("fraction of episodes\nthat end in a crash")
    label_panels(list(axes.ravel()))
    add_legend(figure, list(axes.ravel()), width=1.4)
    figure.suptitle(
        "mean over seeds, with 95% intervals (Student's t); points on the right: the last "
        "policies, on more episodes",
        fontsize=8,
    )
    save(figure, request.out)


def _draw_panel(axes: Axes, records: Sequence[Record], field: str) -> None:
    """Draw curves during training and separate points for the last policies.

    The last policies were evaluated on more and different episodes.
    """
    for place, method in enumerate(_LOOKS):
        of_method = select(records, method=method)
        if of_method:
            _draw_method(axes, of_method, field, place, method)
    references = (("bc", "cloning", (0, (1, 1))), ("data", "the data itself", (0, (6, 2))))
    for method, label, style in references:
        last = last_records(records, str(records[0]["dataset"]), method)
        if last and last[0][field] is not None:
            value = mean_of(last, field)
            axes.axhline(value, color=INK, linestyle=style, linewidth=0.9, label=label)


def _draw_method(
    axes: Axes, records: Sequence[Record], field: str, place: int, method: str
) -> None:
    label, colour, line, marker = _LOOKS[method]
    steps = sorted({int(record["steps"] or 0) for record in records})
    values = []
    for step in steps:
        values.append(np.array([float(r[field] or 0) for r in select(records, steps=step)]))
    middle = np.array([seeds.mean() for seeds in values])
    half = np.array([half_width(seeds) for seeds in values])
    x, during = np.array(steps) / 1000, slice(len(steps) - 1)
    curve = {"color": colour, "linestyle": line, "marker": marker, "label": label}
    axes.plot(x[during], middle[during], markersize=3, linewidth=1.2, **curve)
    low, high = (middle - half)[during], (middle + half)[during]
    axes.fill_between(x[during], low, high, color=colour, alpha=0.15, linewidth=0)
    last = x[-1] * (1 + 0.04 * place)
    bar = {"fmt": marker, "markersize": 4, "capsize": 2, "linewidth": 1}
    axes.errorbar(last, middle[-1], half[-1], color=colour, **bar)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_driving, __doc__, arguments)


if __name__ == "__main__":
    main()
