"""HTML as a type. Whatever is not `Html` is text and is escaped."""

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Return a value as HTML: text is escaped, HTML stays."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object]) -> Html:
    """Join parts; text among them is escaped."""
    return Html("".join(escape(part) for part in parts))


def element(name: str, *children: object, **attributes: object) -> Html:
    """Write an element. `class_` stands for `class`, and `_` in other names for `-`.

    An attribute that is True has no value; one that is None or False is left out.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{escape(value)}"')
    opening = f"<{name}{''.join(written)}>"
    if name in ("input", "br", "hr"):
        return Html(opening)
    return Html(f"{opening}{join(children)}</{name}>")


def paragraph(text: object, **attributes: object) -> Html:
    """Write a paragraph."""
    return element("p", text, **attributes)


def list_items(texts: Sequence[object], **attributes: object) -> Html:
    """Write a list; nothing if it is empty."""
    if not texts:
        return Html("")
    return element("ul", *[element("li", text) for text in texts], **attributes)


def section(name: str, title: str, lead: object, *children: object) -> Html:
    """Write a section of the page, with a sentence that says what it answers."""
    heading = element("h2", title, id=f"{name}-title")
    body = (heading, paragraph(lead, class_="lead"), *children)
    return element("section", *body, id=name, aria_labelledby=f"{name}-title")


def tile(label: str, value: str, note: object = "") -> Html:
    """Write one number with its name and a note."""
    parts = [element("dt", label), element("dd", value, class_="value")]
    if note:
        parts.append(element("dd", note, class_="note"))
    return element("div", *parts, class_="tile")


def tiles(*each: Html) -> Html:
    """Write number tiles next to each other."""
    return element("dl", *each, class_="tiles")


def table(
    caption: str, heads: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object
) -> Html:
    """Write a table that scrolls inside its own container."""
    head = element("tr", *[element("th", name, scope="col") for name in heads])
    body = []
    for first, *others in rows:
        cells = [element("th", first, scope="row"), *[element("td", cell) for cell in others]]
        body.append(element("tr", *cells))
    written = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
        **attributes,
    )
    # The container takes the focus, so that the keyboard can scroll it.
    return element("div", written, class_="scroll", tabindex="0", role="region", aria_label=caption)


def figure(
    name: str, title: str, see: str, meaning: str, numbers: str, *controls: object, run: int = 0
) -> Html:
    """Write a figure that the page's program draws.

    The caption says what to see and what it means. `numbers` describes the figure in words, for
    readers who cannot see it.
    """
    plot = element(
        "div",
        id=f"plot-{name}-{run}",
        class_="plot",
        data_figure=name,
        data_run=run,
        role="img",
        aria_label=f"{title}. {numbers}",
    )
    caption = element(
        "figcaption",
        element("strong", f"{title}. "),
        f"{see} ",
        element("span", meaning, class_="meaning"),
    )
    bar = element("div", *controls, class_="controls") if controls else ""
    return element("figure", bar, plot, caption, class_=f"figure figure-{name}")


def select_box(
    name: str, label: str, options: Sequence[tuple[str, str]], chosen: str = "", run: int = 0
) -> Html:
    """Write a select box with its label. The page's program finds it by its name."""
    listed = []
    for value, text in options:
        listed.append(element("option", text, value=value, selected=value == chosen))
    box = element("select", *listed, id=f"{name}-{run}", data_control=name)
    return element("label", f"{label} ", box)


def embed_json(value: Any) -> Html:
    """Write JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)
