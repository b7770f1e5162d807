"""One look for all figures: sizes for print, colours that stay apart in grey, equal bytes for equal content."""

import os
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

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
    partial = path.with_name(f".{os.getpid()}{path.suffix}")
    undated = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix]
    try:
        figure.savefig(partial, bbox_inches="tight", metadata=undated)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
