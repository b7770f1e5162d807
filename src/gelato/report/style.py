"""One look for all figures: sizes for print, colours that stay apart in grey, equal bytes for equal content."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from gelato.whole import whole_file

INK, BLUE, ORANGE, GREY = "#222222", "#2f6690", "#d97706", "#9aa0a6"
MARK, SHADE = "#ff5a36", "#eeeeee"

matplotlib.use("Agg")
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
    """Write the picture whole or not at all, without the date, so that equal content gives equal bytes."""
    undated = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix]
    with whole_file(path) as partial:
        figure.savefig(partial, bbox_inches="tight", metadata=undated)
