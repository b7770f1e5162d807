"""One look for all figures: sizes for print, colours that stay apart in grey, equal bytes for equal content."""

import os
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from gelato.errors import InputError

INK, BLUE, ORANGE, GREY = "#222222", "#2f6690", "#d97706", "#9aa0a6"

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


def check_figure_path(path: Path) -> None:
    """Refuse a path no picture can be written to, before any work is done for it."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"{path}: a picture must end in .png, .pdf or .svg")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, without the date, so that equal content gives equal bytes."""
    partial = path.with_name(f".{os.getpid()}{path.suffix}")
    undated = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[path.suffix]
    try:
        figure.savefig(partial, bbox_inches="tight", metadata=undated)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
