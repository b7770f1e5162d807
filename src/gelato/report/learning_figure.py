"""Learning curves of training runs: mean over seeds with 95% intervals, from metrics.csv."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gelato.errors import InputError
from gelato.progress import note
from gelato.report.references import shorten_reference
from gelato.report.style import (
    COLOURS,
    INK,
    add_legend,
    describe_seeds,
    half_width,
    label_panels,
    save,
)
from gelato.runs.files import report_damage
from gelato.runs.folder import Run
from gelato.runs.records import read_records

# Column of metrics.csv and label of its panel, in the order of the panels.
_PANELS = {
    "return": "return of an episode",
    "initial_value": "critic's value of first states",
    "penalty": "penalty U of imagined steps",
    "critic_loss": "critic loss",
    "value_loss": "value loss",
    "loss": "cloning loss",
}
_DASHES = ("-", "--", ":", "-.")
_COLUMNS = 3
# Beyond so many points markers hide the line.
_MOST_MARKERS = 15

# The values of every seed, by step.
Curve = dict[int, list[float]]


@dataclass
class _Policies:
    """The curves of one method in one run, by column of metrics.csv."""

    run: Path
    method: str
    curves: dict[str, Curve] = field(default_factory=dict)
    seeds: set[str] = field(default_factory=set)


def draw_learning_curves(runs: Sequence[Path], path: Path) -> None:
    """Draw one panel per metric, with the curves of all methods of all runs."""
    policies = [found for run in runs for found in _read_policies(run)]
    shown = [name for name in _PANELS if any(name in found.curves for found in policies)]
    data_returns = _find_data_returns(runs) if "return" in shown else {}
    columns = min(len(shown), _COLUMNS)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(max(3.1 * columns, 4.2), 2.5 * rows + 0.8), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    unit = "updates (PPO: imagined steps)" if "value_loss" in shown else "updates"
    last = max(step for found in policies for curve in found.curves.values() for step in curve)
    for axis, name in zip(axes, shown, strict=False):
        for number, found in enumerate(policies):
            colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number % len(_DASHES)]
            label = found.method if len(runs) == 1 else f"{found.run.name}: {found.method}"
            if name in found.curves:
                _draw_curve(axis, found.curves[name], colour, dash, label)
        axis.set(xlabel=unit, ylabel=_PANELS[name], xlim=(0, 1.03 * last))
        axis.ticklabel_format(axis="x", scilimits=(-3, 4))
    for label, value in data_returns.items():
        axes[0].axhline(value, color=INK, linestyle=(0, (1, 2)), linewidth=1.2, label=label)
    label_panels(axes[: len(shown)])
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    add_legend(figure, axes)
    figure.suptitle(_describe(runs, policies), fontsize=9)
    save(figure, path)


def _draw_curve(axes: Axes, curve: Curve, colour: str, dash: str, label: str) -> None:
    steps = np.array(sorted(curve))
    middle = np.array([np.mean(curve[step]) for step in steps])
    half = np.array([half_width(np.array(curve[step])) for step in steps])
    marker = "o" if len(steps) <= _MOST_MARKERS else ""
    look = {"color": colour, "linestyle": dash, "marker": marker, "label": label}
    axes.plot(steps, middle, markersize=3, linewidth=1.3, **look)  # type: ignore[arg-type]
    if half.any():
        axes.fill_between(steps, middle - half, middle + half, color=colour, alpha=0.18, lw=0)


def _read_policies(run: Path) -> list[_Policies]:
    """Read the curves of every method of a run, finished or not."""
    description = Run(run).description
    found: dict[str, _Policies] = {}
    with report_damage(run / "run.json"):
        for method in description.get("methods", []):
            found[method["name"]] = _Policies(run, method["name"])
    for path in sorted(run.glob("policies/*/metrics.csv")):
        with report_damage(path):
            for row in Run(path.parent).metrics:
                policies = found[row["method"]]
                policies.seeds.add(row["seed"])
                for name in _PANELS:
                    if row.get(name):
                        curve = policies.curves.setdefault(name, {})
                        curve.setdefault(int(row["step"]), []).append(float(row[name]))
    if not any(policies.curves for policies in found.values()):
        kind = description["kind"]
        state = "has no metrics of policies yet" if kind == "policies" else f"is a {kind} run"
        raise InputError(f"{run}: {state}. Give the folder of a `gelato train` run")
    return list(found.values())


def _find_data_returns(runs: Sequence[Path]) -> dict[str, float]:
    """Return the mean return of the data of every finished run, by label."""
    found: dict[str, float] = {}
    for run in runs:
        records = read_records(run / "results.json")
        if not records or records[0].get("data_return") is None:
            note(f"{run}: is not finished, so the figure lacks the return of its data")
            continue
        dataset = shorten_reference(str(records[0]["dataset"]))
        label = "the data" if len(runs) == 1 else f"the data: {dataset}"
        found[label] = float(records[0]["data_return"])  # type: ignore[arg-type]
    return found


def _describe(runs: Sequence[Path], policies: Sequence[_Policies]) -> str:
    """Say what the curves and bands are."""
    references = []
    for run in runs:
        data: Mapping[str, object] = Run(run).description["data"]
        references.append(shorten_reference(str(data["reference"])))
    what = ", ".join(dict.fromkeys(references))
    return f"{what}\n{describe_seeds(min(len(found.seeds) for found in policies))}"
