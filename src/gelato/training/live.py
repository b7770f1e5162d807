"""The display of a training: a live table of policies, or plain lines if there is no terminal.

It reads the rows of metrics.csv, which are on the host already, and never waits for the device.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gelato.progress import is_terminal, say, show_live
from gelato.runs.loop import Row, Show
from gelato.training.method import find_family

# With more policies, the table shows the best, the median and the worst of each method.
_MOST_ROWS = 12
_SECONDS_BETWEEN_LINES, _SECONDS_WITHOUT_EVALUATION = 5.0, 60.0
_SPARK_WIDTH, _NUMBER_WIDTH, _BAR_WIDTH = 12, 7, 16
# Seed, sparkline, four numbers, and the spaces between them.
_OTHER_WIDTH = 4 + _SPARK_WIDTH + 4 * _NUMBER_WIDTH + 6
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"


@dataclass
class _Policy:
    """The latest metrics of one policy, and its returns so far."""

    method: str
    seed: str
    latest: dict[str, float] = field(default_factory=dict)
    returns: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: Row) -> None:
        for name in ("return", "initial_value", "penalty", "updates_per_second"):
            if row.get(name, "") != "":
                self.latest[name] = float(row[name])
        if row.get("return", "") != "":
            self.returns.append(self.latest["return"])
        if row.get("initial_value", "") != "":
            self.values.append(self.latest["initial_value"])


class LivePolicies:
    """Shows the training of policies. A display for `run_blocks`."""

    def __init__(self, labels: Sequence[Mapping[str, str | int]]) -> None:
        self._policies: dict[tuple[str, str], _Policy] = {}
        for label in labels:
            key = str(label["method"]), str(label["seed"])
            self._policies[key] = _Policy(*key)
        self._step = self._total = 0
        # Time and step at the end of the first block, which includes compilation.
        self._begun: tuple[float, int] | None = None
        self._updates = 0
        self._due = self._late = 0.0

    @contextmanager
    def __call__(self, first: int, total: int) -> Iterator[Show]:
        self._step, self._total = first, total
        now = time.monotonic()
        self._due, self._late = now + _SECONDS_BETWEEN_LINES, now + _SECONDS_WITHOUT_EVALUATION
        if not is_terminal():
            yield self._print
            return
        with show_live(self):
            yield self.update

    def update(self, step: int, rows: Sequence[Row]) -> None:
        """Take the rows of a block."""
        for row in rows:
            self._policies[str(row["method"]), str(row["seed"])].add(row)
        # The first call tells where the training starts.
        self._updates += 1
        if self._updates == 2:
            self._begun = time.monotonic(), step
        self._step = step

    def _print(self, step: int, rows: Sequence[Row]) -> None:
        """Print a line after an evaluation or a minute, but never two within seconds."""
        self.update(step, rows)
        now, evaluated = time.monotonic(), any(row.get("return", "") != "" for row in rows)
        if now >= (self._due if evaluated else self._late):
            self._due, self._late = now + _SECONDS_BETWEEN_LINES, now + _SECONDS_WITHOUT_EVALUATION
            say(f"{self._describe_policies()}: {self._describe_step()}{self._describe_returns()}")

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, four times per second."""
        bar = ProgressBar(total=self._total, completed=self._step, width=_BAR_WIDTH)
        head = Table.grid(padding=(0, 1))
        head.add_row(bar, Text(self._describe_step(), no_wrap=True, overflow="ellipsis"))
        title = Text(f"training {self._describe_policies()}", style="bold")
        yield title
        yield head
        yield self._make_table(options.max_width, ascii_only=options.ascii_only)

    def _make_table(self, width: int, *, ascii_only: bool) -> Table:
        chosen = self._choose_policies()
        histories = [policy.returns for _, policy in chosen]
        name = "returns"
        if not any(histories):
            histories, name = [policy.values for _, policy in chosen], "values"
        lines = draw_sparklines(histories, _SPARK_WIDTH, _ASCII_BARS if ascii_only else _BARS)
        table = Table(box=None, pad_edge=False, collapse_padding=True)
        # On a narrow terminal only the names are cut.
        name_width = max(8, width - _OTHER_WIDTH)
        table.add_column("policy", no_wrap=True, overflow="ellipsis", max_width=name_width)
        table.add_column("seed", no_wrap=True, min_width=4, justify="right")
        table.add_column(name, no_wrap=True, min_width=_SPARK_WIDTH)
        for column in ("return", "best", "value", "penalty"):
            table.add_column(column, justify="right", no_wrap=True, min_width=_NUMBER_WIDTH)
        for (label, policy), line in zip(chosen, lines, strict=True):
            latest = policy.latest
            numbers = (
                latest.get("return"),
                max(policy.returns, default=None),
                latest.get("initial_value"),
                latest.get("penalty"),
            )
            table.add_row(Text(label), policy.seed, line, *map(_format, numbers))
        return table

    def _choose_policies(self) -> list[tuple[str, _Policy]]:
        """Return all policies with labels, or three of each method if there are many."""
        every = list(self._policies.values())
        if len(every) <= _MOST_ROWS:
            return [(policy.method, policy) for policy in every]
        families: dict[str, list[_Policy]] = {}
        for policy in every:
            families.setdefault(find_family(policy.method), []).append(policy)
        chosen = []
        for members in families.values():
            ranked = sorted(members, key=_rank)
            last = len(ranked) - 1
            # A method with one or two policies has fewer places.
            places = {0: "worst", (last + 1) // 2: "median", last: "best"}
            for index in sorted(places, reverse=True):
                policy = ranked[index]
                chosen.append((f"{places[index]:6} {policy.method}", policy))
        return chosen

    def _describe_policies(self) -> str:
        count = len(self._policies)
        methods = list(dict.fromkeys(policy.method for policy in self._policies.values()))
        if count == 1:
            return f"{methods[0]}, seed {next(iter(self._policies.values())).seed}"
        names = ", ".join(methods)
        return f"{count} policies of {names}" if len(names) <= 50 else f"{count} policies"

    def _describe_step(self) -> str:
        text = f"{self._step:,} of {self._total:,}"
        rates = [policy.latest.get("updates_per_second") for policy in self._policies.values()]
        if rates[0] is not None:
            text += f", {rates[0]:,.0f} updates/s"
        if self._begun is not None and self._step > self._begun[1]:
            since, step = self._begun
            left = (time.monotonic() - since) / (self._step - step) * (self._total - self._step)
            text += f", {timedelta(seconds=round(left))} left"
        return text

    def _describe_returns(self) -> str:
        found = [policy.latest["return"] for policy in self._policies.values() if policy.returns]
        if not found:
            return ""
        if len(found) == 1:
            return f"; return {_format(found[0])}"
        low, middle, high = map(_format, (min(found), float(np.median(found)), max(found)))
        return f"; returns {low} to {high}, median {middle}"


def draw_sparklines(
    histories: Sequence[Sequence[float]], width: int, bars: str = _BARS
) -> list[str]:
    """Draw numbers as bars of one scale, at most `width` per line."""
    values = list(chain.from_iterable(histories))
    if not values:
        return [""] * len(histories)
    low, span = min(values), (max(values) - min(values)) or 1.0
    lines = []
    for history in histories:
        places = np.unique(np.linspace(0, len(history) - 1, min(width, len(history))).round())
        line = ""
        for place in places.astype(int):
            line += bars[round((history[place] - low) / span * (len(bars) - 1))]
        lines.append(line)
    return lines


def _rank(policy: _Policy) -> tuple[float, float]:
    """Return a sort key: the last return, or without an environment the critic's value."""
    lowest = -np.inf
    return policy.latest.get("return", lowest), policy.latest.get("initial_value", lowest)


def _format(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
