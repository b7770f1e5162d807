"""Small pictures that need no program: histograms in tables, and intervals on one axis."""

from collections.abc import Sequence

from gelato.report.page.records import Interval
from gelato.report.page.render.html import Html, element
from gelato.report.page.render.numbers import write_interval, write_number

_WIDTH, _HEIGHT = 96, 22
# Outlines of marks around the origin.
_MARKS = {
    "circle": "M-6.5 0a6.5 6.5 0 1 0 13 0a6.5 6.5 0 1 0-13 0",
    "square": "M-6-6h12v12h-12z",
    "diamond": "M0-8.5L8.5 0L0 8.5L-8.5 0z",
}


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
    """Draw intervals below each other on one axis: a name, an interval and the mark's shape.

    Places are in percent, so that the picture fits every width with text of one size.
    """
    values: list[float | None] = []
    for _, interval, _ in rows:
        values += [interval.low, interval.value, interval.high]
    known = [value for value in values if value is not None]
    if not known:
        return Html("")
    low, high = min(known), max(known)
    span = (high - low) or abs(high) or 1.0
    drawn, details = [], []
    for name, interval, shape in rows:
        details.append(f"{name}: {write_number(interval.value)} ({write_interval(interval)})")
        places = {}
        for bound in ("low", "value", "high"):
            value = getattr(interval, bound)
            if value is not None:
                places[bound] = f"{6 + 88 * (value - low) / span:.1f}%"
        drawn.append(_draw_interval(name, interval, shape, places))
    text = f"{label}. {'; '.join(details)}."
    return element("div", *drawn, class_="intervals", role="img", aria_label=text)


def _draw_interval(name: str, interval: Interval, shape: str, places: dict[str, str]) -> Html:
    """Draw one row: its name, and an axis with the bar, its ends and the mark."""
    y, parts = 24, [element("line", x1="0", x2="100%", y1=24, y2=24, class_="axis")]
    if "low" in places and "high" in places:
        parts.append(element("line", x1=places["low"], x2=places["high"], y1=y, y2=y, class_=shape))
        for end in (places["low"], places["high"]):
            parts.append(element("line", x1=end, x2=end, y1=y - 6, y2=y + 6, class_=shape))
    if "value" in places:
        x = places["value"]
        # A nested picture moves the mark to its place; a polygon takes no percentages.
        mark = element("path", d=_MARKS.get(shape, _MARKS["circle"]), class_=f"mark {shape}")
        parts.append(element("svg", mark, x=x, y=y, overflow="visible"))
        number = write_number(interval.value)
        parts.append(element("text", number, x=x, y=11, text_anchor="middle"))
    picture = element("svg", *parts, width="100%", height=36)
    return element("div", element("span", name, class_="name"), picture, class_="row")
