"""The style of all figures: print sizes, colours that differ in greyscale, reproducible files."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text
from scipy.stats import t as student

from gelato.runs.files import write_atomically

INK, BLUE, ORANGE, GREY = "#222222", "#2f6690", "#d97706", "#9aa0a6"
MARK, SHADE = "#ff5a36", "#eeeeee"
# Colours that people with colour-blindness can tell apart, the darkest and the lightest in turn.
COLOURS = (BLUE, ORANGE, "#1a9e77", "#b5446e", "#7a5195", GREY)
_NO_DATE = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}

matplotlib.rcParams.update(
    {
        "figure.dpi": 150,
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "image.cmap": "cividis",
        "legend.frameon": False,
        "svg.hashsalt": "gelato",
    }
)


def save(figure: Figure, path: Path) -> None:
    """Write a picture atomically and without a date: equal content gives equal bytes."""
    for text in figure.findobj(Text):
        # A name with dollar signs, such as that of a column, is no formula.
        if "$" in text.get_text() and not _is_formula(text.get_text()):
            text.set_parse_math(False)
    undated = _NO_DATE[path.suffix]
    with write_atomically(path) as partial:
        figure.savefig(partial, bbox_inches="tight", metadata=undated)


def _is_formula(text: str) -> bool:
    try:
        MathTextParser("agg").parse(text)
    except ValueError:
        return False
    return True


def label_panels(panels: Sequence[Axes]) -> None:
    """Put the letters (a), (b), … before the titles of panels."""
    for number, axes in enumerate(panels):
        title = f"({chr(ord('a') + number)}) {axes.get_title()}".rstrip()
        axes.set_title(title, loc="center" if axes.get_title() else "left")


def add_legend(figure: Figure, panels: Sequence[Axes], width: float = 1.9) -> None:
    """Add one legend for all panels below the figure; an entry needs `width` inches."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = max(1, min(len(entries), int(figure.get_figwidth() / width)))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
    )


def half_width(values: Float[np.ndarray, " seeds"]) -> float:
    """Return half the width of the 95% interval of a mean over seeds (Student's t)."""
    if len(values) < 2:
        return 0.0
    return float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def describe_seeds(seeds: int) -> str:
    """Say what a curve and its band are."""
    if seeds < 2:
        return "one seed: no intervals"
    return f"mean over {seeds} seeds; bands: 95% intervals of the mean (Student's t)"
