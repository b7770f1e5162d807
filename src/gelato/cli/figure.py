"""`gelato figure`: draw a registered figure into a file. Equal input gives an identical file."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from gelato.cli.arguments import MovedData, Trainings
from gelato.cli.output import check_picture
from gelato.errors import InputError
from gelato.progress import note
from gelato.report.figures import FigureRequest, draw_figure, list_figures

_FEWEST_POINTS = 30
_NAMES = "{" + ",".join(figure.name for figure in list_figures()) + "}"


def run_figure(
    name: Positional[Annotated[str, tyro.conf.arg(metavar=_NAMES)]],
    runs: Positional[Trainings],
    out: Path,
    points: int | None = None,
    fitted_to: MovedData = None,
) -> None:
    """Draw a registered figure; `_describe` builds the help that users read."""
    if points is not None and points < _FEWEST_POINTS:
        raise InputError(f"--points {points}: must be at least {_FEWEST_POINTS}")
    check_picture(out)
    if not runs:
        raise InputError("name at least one run folder after the name of the figure")
    first, *others = runs
    draw_figure(name, FigureRequest(first, out, points, fitted_to, tuple(others)))
    note(f"{out} written")


def _describe() -> str:
    """Build the help text, with one line for each registered figure."""
    lines = [f"`{figure.name}`: {figure.help}" for figure in list_figures()]
    return f"""Draw a figure of a fitted model or a training into a file.

    Figures: {" ".join(lines)}

    Args:
        name: Figure to draw.
        runs: The folder of `gelato model fit` or `gelato train`. `curves` takes several trainings.
        out: File to write (.png, .pdf or .svg).
        points: Number of data points in the figure `embedding`. Default: 500, or all if there are
            fewer. The run time grows with the square of this number.
    """


run_figure.__doc__ = _describe()
