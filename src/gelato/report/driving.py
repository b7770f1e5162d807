"""What driving policies came to: a table, and six panels of return and crash rate against training steps."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from gelato.envs.driving import TASKS
from gelato.errors import InputError
from gelato.report.policy_table import markdown_table
from gelato.report.style import BLUE, GREY, INK, ORANGE, save
from gelato.results import Record, read_records

# Colour, line and marker each tell methods apart, so that one of them is enough.
_LOOKS = {
    "gelato": ("geodesic (GELATO)", BLUE, "-", "o"),
    "gelato-l2": ("latent ℓ2", ORANGE, "--", "s"),
    "gelato-ensemble": ("ensemble", "#5a8f3c", "-.", "^"),
    "gelato-none": ("no penalty", GREY, ":", "D"),
}
_LEVEL = 0.95


def read_driving(path: Path) -> list[Record]:
    """The records in a file, which has to hold what the figure shows."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; `python benchmarks/driving.py` writes results/driving.json")
    records = read_records(path)
    missing = {"dataset", "method", "seed", "steps", "return", "crash_rate"} - set(records[0] if records else ())
    if missing:
        raise InputError(f"{path}: its records have no {', '.join(sorted(missing))}")
    return records


def last_records(records: Sequence[Record], dataset: str, method: str) -> list[Record]:
    """The records of a method's last policies, one for each seed."""
    own = [record for record in records if (record["dataset"], record["method"]) == (dataset, method)]
    steps = max((int(record["steps"] or 0) for record in own), default=0)
    return [record for record in own if record["steps"] == steps]


def as_table(records: Sequence[Record]) -> str:
    """Markdown: a row for each task and method, mean ± standard deviation over seeds.

    The best return is in bold, and in italics those that Welch's test does not tell from it at 95%.
    """
    rows: list[tuple[str, ...]] = []
    for dataset in [name for name in TASKS if any(record["dataset"] == name for record in records)]:
        names = dict.fromkeys(str(record["method"]) for record in records if record["dataset"] == dataset)
        order = ["data", "bc", *_LOOKS]
        found = {name: last_records(records, dataset, name) for name in sorted(names, key=order.index)}
        best = max((own for name, own in found.items() if name != "data"), key=lambda own: _mean(own, "return"))
        for name, own in found.items():
            returned = _spread(own, "return")
            mark = "" if name == "data" else "**" if own is best else "*" if _tied(own, best) else ""
            crashes = "–" if own[0]["crash_rate"] is None else f"{_mean(own, 'crash_rate'):.0%}"
            label = "the data itself" if name == "data" else name
            cells = (
                dataset,
                label,
                f"{mark}{returned}{mark}",
                crashes,
                f"{_mean(own, 'length'):.1f}",
                str(len(own)),
                " to ".join(str(number) for number in sorted({int(record["episodes"] or 0) for record in own})),
            )
            rows.append(cells)
    return markdown_table(("task", "method", "return", "crash rate", "length", "seeds", "episodes"), rows)


def draw_driving(records: Sequence[Record], path: Path) -> None:
    """Return above, crash rate below, a column for each task."""
    tasks = [name for name in TASKS if any(record["dataset"] == name for record in records)]
    if not tasks:
        raise InputError("the file holds no records of driving; `python benchmarks/driving.py` writes them")
    figure = Figure(figsize=(max(2.1 * len(tasks), 8.0), 4.2), layout="constrained")
    axes = figure.subplots(2, len(tasks), sharex="col", squeeze=False)
    for column, task in enumerate(tasks):
        own = [record for record in records if record["dataset"] == task]
        for row, what in enumerate(("return", "crash_rate")):
            _panel(axes[row, column], own, what)
        axes[0, column].set_title(task)
        axes[1, column].set(ylim=(-0.03, 1.03), xlabel="imagined steps (1,000)")
    axes[0, 0].set_ylabel("return")
    axes[1, 0].set_ylabel("share of episodes\nthat end in a crash")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    save(figure, path)


def _panel(axes: Axes, records: Sequence[Record], what: str) -> None:
    """Curves on the way, and apart from them the last policies, which have seen other and more episodes."""
    for place, (name, (label, colour, line, marker)) in enumerate(_LOOKS.items()):
        own = [record for record in records if record["method"] == name]
        steps = sorted({int(record["steps"] or 0) for record in own})
        if not steps:
            continue
        values = [np.array([float(r[what] or 0) for r in own if r["steps"] == step]) for step in steps]
        middle, half = np.array([v.mean() for v in values]), np.array([_half_width(v) for v in values])
        x, way = np.array(steps) / 1000, slice(len(steps) - 1)
        axes.plot(
            x[way], middle[way], color=colour, linestyle=line, marker=marker, markersize=3, linewidth=1.2, label=label
        )
        axes.fill_between(x[way], (middle - half)[way], (middle + half)[way], color=colour, alpha=0.15, linewidth=0)
        last = x[-1] * (1 + 0.04 * place)
        axes.errorbar(last, middle[-1], half[-1], color=colour, fmt=marker, markersize=4, capsize=2, linewidth=1)
    for name, label, style in (("bc", "cloning", (0, (1, 1))), ("data", "the data itself", (0, (6, 2)))):
        own = last_records(records, str(records[0]["dataset"]), name)
        if own and own[0][what] is not None:
            axes.axhline(_mean(own, what), color=INK, linestyle=style, linewidth=0.9, label=label)


def _half_width(values: Float[np.ndarray, " seeds"]) -> float:
    """Half of the 95% interval of a mean over seeds (Student's)."""
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf((1 + _LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def _tied(own: Sequence[Record], best: Sequence[Record]) -> bool:
    """Whether two methods' returns differ no more than their seeds do."""
    returns = [[float(record["return"] or 0) for record in records] for records in (own, best)]
    if min(map(len, returns)) < 2:
        return False
    return not stats.ttest_ind(*returns, equal_var=False).pvalue < 1 - _LEVEL


def _mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([float(record[name] or 0) for record in records]))


def _spread(records: Sequence[Record], name: str) -> str:
    values = [float(record[name] or 0) for record in records]
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")
