"""The section about the logged data."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Num

from gelato.data.spaces import Discrete
from gelato.data.summary import episode_lengths, episode_returns, summarise
from gelato.data.transitions import Dataset, choose_evenly
from gelato.report.page.collect.source import name_actions
from gelato.report.page.records import Column, DataSection

# Columns that the page lists, and rows that their histograms count.
MOST_COLUMNS = 24
_ROWS = 100_000
# Values of the states that are held at once, for logs with thousands of columns.
_VALUES = 20_000_000
_BINS = 20
_RETURN_BINS = 40
# A value this many times larger than the range of 98% of the values is probably an error.
_OUTLIER = 1e3
# Share of equal values above which a column hardly carries information.
_SAME = 0.99
_SAME_COLUMN = 1 - 1e-6
# More columns than this are not compared with each other.
_COMPARED = 200
_FEW_EPISODES = 20
_SHORT = 5


def collect_data(dataset: Dataset) -> DataSection:
    """Describe a dataset: counts, returns, ranges, coverage and suspicious columns."""
    data = dataset.transitions
    rows = choose_evenly(data, max(2, min(_ROWS, _VALUES // data.states.shape[1])))
    states = data[rows].numbers
    space = data.action_space
    actions = np.asarray(data.actions)[rows].reshape(len(rows), -1)
    shown = choose_shown_columns(states)
    names = dataset.list_state_names()
    remarks = {} if len(rows) < 2 else find_suspicious_columns(states, names)
    if isinstance(space, Discrete):
        limits = [(0.0, float(space.n - 1))]
        bins = min(space.n, _BINS)
    else:
        limits = [*zip(actions.min(axis=0).tolist(), actions.max(axis=0).tolist())]
        bins = _BINS
    described = []
    for column, name in enumerate(name_actions(dataset)[:MOST_COLUMNS]):
        described.append(_describe(name, actions[:, column], bins, None, limits[column]))
    summary = summarise(dataset)
    return DataSection(
        summary=_shorten(summary),
        returns=count_values(episode_returns(data), _RETURN_BINS),
        lengths=count_values(episode_lengths(data).astype(float), _RETURN_BINS),
        states=tuple(
            _describe(names[column], states[:, column], _BINS, remarks.get(column))
            for column in shown
        ),
        actions=tuple(described),
        columns=states.shape[1],
        remarks=tuple(_remark_on(dataset, summary, names, remarks)),
    )


def choose_shown_columns(
    values: Float[np.ndarray, "n column"], most: int = MOST_COLUMNS
) -> list[int]:
    """Choose columns to show: all, or those that vary most relative to their size."""
    if values.shape[1] <= most:
        return list(range(values.shape[1]))
    deviation = values.std(axis=0)
    spread = deviation / np.maximum(np.abs(values).max(axis=0), 1e-12)
    return sorted(np.argsort(-spread, kind="stable")[:most].tolist())


def count_values(values: Float[np.ndarray, " n"], bins: int) -> dict[str, list[float]]:
    """Return a histogram: the edges of the bins and the counts."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    counts, edges = np.histogram(values, bins=min(bins, max(1, len(np.unique(values)))))
    return {"edges": edges.tolist(), "counts": counts.astype(float).tolist()}


def _describe(
    name: str,
    values: Num[np.ndarray, " n"],
    bins: int,
    remark: str | None,
    limits: tuple[float, float] | None = None,
) -> Column:
    low, high = limits or (float(values.min()), float(values.max()))
    # A column with few different values, as in a grid world, has as many parts.
    bins = min(bins, max(2, len(np.unique(values))))
    counts, _ = np.histogram(values, bins=bins, range=(low, high) if high > low else None)
    covered = float((counts > 0).mean()) if high > low else 1.0
    return Column(
        name, low, high, float(np.median(values)), tuple(counts.tolist()), covered, remark
    )


def find_suspicious_columns(
    values: Float[np.ndarray, "n column"], names: Sequence[str]
) -> dict[int, str]:
    """Say what is suspicious about columns, by their numbers."""
    found: dict[int, str] = {}
    low, high = np.quantile(values, (0.01, 0.99), axis=0)
    width = high - low
    beyond = np.abs(values - (low + high) / 2).max(axis=0)
    spread = np.ptp(values, axis=0)
    for column in range(values.shape[1]):
        if spread[column] == 0:
            found[column] = "never changes"
        elif width[column] == 0:
            share = float((values[:, column] == low[column]).mean())
            if share >= _SAME:
                found[column] = f"has the same value in {share:.1%} of the steps"
        elif beyond[column] > _OUTLIER * width[column]:
            found[column] = (
                f"has values up to {beyond[column]:.2g}, but 98% of them lie within a range of "
                f"{width[column]:.2g}"
            )
    for column, other in _find_copies(values, found).items():
        found[column] = f"is the same as {names[other]}, up to scale"
    return found


def _find_copies(values: Float[np.ndarray, "n column"], known: dict[int, str]) -> dict[int, int]:
    """Find columns that are linear functions of an earlier column."""
    varied = [column for column in range(values.shape[1]) if column not in known][:_COMPARED]
    if len(varied) < 2:
        return {}
    correlations = np.abs(np.corrcoef(values[:, varied].astype(np.float64), rowvar=False))
    copies = {}
    for place in range(1, len(varied)):
        same = np.flatnonzero(correlations[place, :place] > _SAME_COLUMN)
        if len(same):
            copies[varied[place]] = varied[int(same[0])]
    return copies


def _shorten(summary: dict[str, object]) -> dict[str, object]:
    """Leave out the lists with one value per column, which `states` and `actions` hold."""
    left_out = ("state_low", "state_high", "action_range", "action_counts")
    return {name: value for name, value in summary.items() if name not in left_out}


def _remark_on(
    dataset: Dataset,
    summary: dict[str, object],
    names: Sequence[str],
    columns: dict[int, str],
) -> list[str]:
    """Say in sentences what a reader of the data should know."""
    data = dataset.transitions
    remarks = [f"{names[column]} {text}." for column, text in list(columns.items())[:MOST_COLUMNS]]
    if len(columns) > MOST_COLUMNS:
        remarks.append(f"{len(columns) - MOST_COLUMNS} more columns are suspicious.")
    if len(data) and np.ptp(np.asarray(data.rewards)) == 0:
        remarks.append(f"The reward is always {float(data.rewards[0]):g}.")
    if len(data) > 1 and np.ptp(np.asarray(data.actions), axis=0).max() == 0:
        remarks.append("The action never changes, so the effect of other actions is unknown.")
    episodes = int(str(summary["episodes"]))
    if episodes < _FEW_EPISODES:
        remarks.append(
            f"There {'is only 1 episode' if episodes == 1 else f'are only {episodes} episodes'}. "
            "Intervals are wide, and the promised false-alarm rate is weaker."
        )
    longest = int(str(summary["length_max"]))
    if longest < _SHORT:
        remarks.append(
            f"No episode is longer than {longest} step{'' if longest == 1 else 's'}, so the "
            "estimated returns look no further ahead than that."
        )
    missing = int(str(summary["without_successor"]))
    if missing:
        remarks.append(f"{missing:,} steps have no recorded next state.")
    return remarks
