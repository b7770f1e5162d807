"""The style of all figures: print sizes, colours that differ in greyscale, reproducible files."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from gelato.runs.files import write_atomically

INK, BLUE, ORANGE, GREY = "#222222", "#2f6690", "#d97706", "#9aa0a6"
MARK, SHADE = "#ff5a36", "#eeeeee"
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
    undated = _NO_DATE[path.suffix]
    with write_atomically(path) as partial:
        figure.savefig(partial, bbox_inches="tight", metadata=undated)
