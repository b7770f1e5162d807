"""`gelato figure`: pictures of a fitted model's geometry, the same bytes each time."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from gelato.cli.model import fitted_model
from gelato.cli.output import check_picture
from gelato.errors import InputError
from gelato.progress import note

_NAMES = ("four-rooms", "curve", "embedding", "penalties", "paths", "driving")
_FEWEST_POINTS = 30


def figure(
    name: Positional[Annotated[str, tyro.conf.arg(metavar="{four-rooms,curve,embedding,penalties,paths,driving}")]],
    run: Path,
    out: Path,
    points: int | None = None,
    fitted_to: str | None = None,
) -> None:
    """Draw a figure of a fitted model, or of trained policies, into a file.

    `four-rooms`: latent codes over the volume measure, and geodesic, latent and land distance in the room plan.
    `curve`: how each solver converges to a geodesic, and the curves themselves if the latent space is a plane.
    `embedding`: t-SNE of trajectories by Euclidean and by geodesic distance; of driving data with one episode's states
    numbered and its pictures underneath.
    `penalties`: every penalty over the plan of Four Rooms and a ring outside it.
    `paths`: where policies walk that were trained on `four-rooms-hole`; of several seeds those their model values most.
    `driving`: return and crash rate against training steps on every driving task.

    Args:
        name: Which figure.
        run: Folder of a fitted model (`gelato model fit`); for `paths` of `gelato train`; for `driving` the file of
            records that `benchmarks/driving.py` writes.
        out: The file to write (.png, .pdf or .svg).
        points: Points of `embedding`, 500 or all there are unless told; the work grows with their square.
        fitted_to: The data that the model was fitted to, where it is no longer where it was; not for `paths` and
            `driving`.
    """
    if name not in _NAMES:
        raise InputError(f"no figure is called {name!r}; there are {', '.join(_NAMES)}")
    if points is not None and points < _FEWEST_POINTS:
        raise InputError(f"--points {points} must be at least {_FEWEST_POINTS}")
    check_picture(out)
    _draw(name, run, out, points, fitted_to)
    note(f"{out} written")


def _draw(name: str, run: Path, out: Path, points: int | None, fitted_to: str | None) -> None:
    if name == "paths":
        from gelato.report.paths_figure import draw_paths

        draw_paths(run, out)
        return
    if name == "driving":
        from gelato.report.driving import draw_driving, read_driving

        draw_driving(read_driving(run), out)
        return
    fitted = fitted_model(run, fitted_to)
    if name == "four-rooms":
        from gelato.report.four_rooms_figure import draw_four_rooms

        draw_four_rooms(fitted, out)
    elif name == "curve":
        from gelato.report.curve_figure import draw_curve

        draw_curve(fitted, out)
    elif name == "penalties":
        from gelato.report.penalty_figure import draw_penalties

        draw_penalties(fitted, out)
    else:
        from gelato.report.embedding_figure import draw_embedding

        draw_embedding(fitted, out, points)
