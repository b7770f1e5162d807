"""Small pictures that need no program: histograms in tables, and intervals on one axis."""

from collections.abc import Sequence

from gelato.report.page.records import Interval
from gelato.report.page.render.html import Html, element
from gelato.report.page.render.numbers import write_interval, write_number

_WIDTH, _HEIGHT = 96, 22


def draw_histogram(counts: Sequence[int], label: str) -> Html:
    """Draw counts as bars."""
    most, width = max(counts, default=0), _WIDTH / max(1, len(counts))
    bars = []
    for place, count in enumerate(counts):
        # A bin with little data still shows that there is some.
        height = 0.0 if not count else max(1.5, _HEIGHT * count / most)
        bars.append(
            element(
                "rect",
                x=f"{place * width:.1f}",
                y=f"{_HEIGHT - height:.1f}",
                width=f"{max(0.8, width - 1):.1f}",
                height=f"{height:.1f}",
            )
        )
    return element(
        "svg",
        *bars,
        class_="spark",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=label,
    )


def draw_intervals(rows: Sequence[tuple[str, Interval, str]], label: str) -> Html:
    """Draw intervals below each other on one axis: a name, an interval and the mark's shape."""
    values = []
    for _, interval, _ in rows:
        values += [interval.low, interval.value, interval.high]
    known = [value for value in values if value is not None]
    if not known:
        return Html("")
    low, high = min(known), max(known)
    width, left, step = 640, 150, 44
    span = (high - low) or abs(high) or 1.0

    def place(value: float) -> float:
        return left + 20 + (width - left - 60) * (value - low) / span

    drawn = []
    for number, (name, interval, shape) in enumerate(rows):
        y = 26 + number * step
        drawn.append(element("text", name, x=0, y=y + 5, class_="name"))
        if interval.low is not None and interval.high is not None:
            ends = {"x1": f"{place(interval.low):.1f}", "x2": f"{place(interval.high):.1f}"}
            drawn.append(element("line", **ends, y1=y, y2=y, class_=f"range {shape}"))
            for end in ends.values():
                drawn.append(
                    element("line", x1=end, x2=end, y1=y - 6, y2=y + 6, class_=f"cap {shape}")
                )
        if interval.value is not None:
            x = place(interval.value)
            drawn.append(_draw_mark(shape, x, y))
            text = write_number(interval.value)
            drawn.append(
                element("text", text, x=f"{x:.1f}", y=y - 11, text_anchor="middle", class_="value")
            )
    height = 26 + len(rows) * step - 14
    details = [
        f"{name}: {write_number(interval.value)} ({write_interval(interval)})"
        for name, interval, _ in rows
    ]
    return element(
        "svg",
        *drawn,
        class_="intervals",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{label}. {'; '.join(details)}.",
    )


def _draw_mark(shape: str, x: float, y: float) -> Html:
    if shape == "square":
        return element(
            "rect", x=f"{x - 6:.1f}", y=y - 6, width=12, height=12, class_=f"mark {shape}"
        )
    if shape == "diamond":
        points = f"{x:.1f},{y - 8} {x + 8:.1f},{y} {x:.1f},{y + 8} {x - 8:.1f},{y}"
        return element("polygon", points=points, class_=f"mark {shape}")
    return element("circle", cx=f"{x:.1f}", cy=y, r=6.5, class_=f"mark {shape}")
