"""Numbers as text."""

import math
from collections.abc import Mapping
from typing import Any

from gelato.report.page.records import Interval

MISSING = "–"
MINUS = "\u2212"


def write_number(value: float | int | None, digits: int = 3) -> str:
    """Write a number with a few significant digits and separators of thousands."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 6 or size < -4:
        text = f"{value:.{digits - 1}e}" if size >= 9 or size < -4 else f"{value:,.0f}"
    else:
        text = f"{value:,.{max(0, digits - 1 - size)}f}"
        if "." in text:
            text = text.rstrip("0").rstrip(".")
    return text.replace("-", MINUS)


def write_share(value: float | None) -> str:
    """Write a share in percent."""
    if value is None or not math.isfinite(value):
        return MISSING
    percent = 100 * value
    text = f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}".removesuffix(".0")
    return f"{text}%"


def write_count(value: int) -> str:
    """Write a count with separators of thousands."""
    return f"{value:,}"


def write_interval(interval: Interval | None) -> str:
    """Write the bounds of an interval."""
    if interval is None or interval.low is None or interval.high is None:
        return "interval unknown"
    return f"{write_number(interval.low)} to {write_number(interval.high)}"


def write_estimate(estimate: Mapping[str, Any] | None) -> str:
    """Write an estimate with its interval, or that it is excluded."""
    if estimate is None:
        return MISSING
    if estimate["problem"] or estimate["estimate"] is None:
        return "excluded"
    text = write_number(estimate["estimate"])
    if estimate["low"] is None or estimate["high"] is None:
        return text
    return f"{text} ({write_number(estimate['low'])} to {write_number(estimate['high'])})"


def count_noun(count: int, noun: str) -> str:
    """Write a count with its noun: `1 step`, `2 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
