"""Draw the Four Rooms figure of the paper: volume, geodesic, latent and land distance.

python experiments/figures/four_rooms.py --run RUN --out FILE.png
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from experiments.figures.command import run_figure
from experiments.rooms import check_rooms, compute_walking_distances, encode_cells
from gelato.report.figures import FigureRequest
from gelato.report.latent_space import build_decoder_metric, draw_volume, measure_plane
from gelato.report.style import GREY, INK, MARK, SHADE, add_legend, save
from gelato.tasks.four_rooms import FREE, SIZE, list_free_cells

# This cell is next to a wall. The cell behind the wall is near in a straight line, but far to walk.
MARKED = (0, 6)


def draw_four_rooms(request: FigureRequest) -> None:
    """Draw codes over `√det G` (a), and distances to a marked cell.

    The distances are geodesic (b), latent (c) and land distance (d).
    """
    fitted = request.load_model()
    check_rooms(fitted)
    model = fitted.seed(0)
    metric, codes = build_decoder_metric(model), encode_cells(fitted, model)
    marked = int(np.flatnonzero((list_free_cells() == MARKED).all(axis=1))[0])
    figure = Figure(figsize=(9.6, 3.3), layout="constrained")
    axes = figure.subplots(1, 4)
    draw_volume(axes[0], metric, codes)
    dots = {"marker": "o", "markersize": 2.4, "color": "white", "markeredgecolor": INK}
    axes[0].plot(*codes.T, linestyle="none", mew=0.4, label="a free cell", **dots)
    _mark(axes[0], *codes[marked].tolist())
    axes[0].set_title("(a) latent codes of the cells")
    geodesic = measure_plane(metric, codes)[marked]
    latent = np.linalg.norm(codes - codes[marked], axis=1)
    panels = [
        ("(b) geodesic distance", "along the metric", geodesic),
        ("(c) Euclidean latent distance", "in latent units", latent),
        ("(d) true land distance", "steps of one cell", compute_walking_distances()[marked]),
    ]
    for axis, (title, label, distances) in zip(axes[1:], panels, strict=True):
        image = _draw_plan(axis, distances)
        axis.set_title(title)
        figure.colorbar(image, ax=axis, location="bottom", label=label, shrink=0.9)
    add_legend(figure, axes)
    figure.suptitle(f"model seed {fitted.seeds[0]}", fontsize=8)
    save(figure, request.out)


def _draw_plan(axes: Axes, distances: Float[np.ndarray, " cells"]) -> AxesImage:
    values = np.full(FREE.shape, np.nan)
    values[FREE] = distances
    image = axes.imshow(values, extent=(0, SIZE, SIZE, 0), vmin=0, interpolation="none")
    # Walls are hatched, so that they do not look like a distance, even in grey.
    axes.add_patch(
        Rectangle(
            (0, 0),
            SIZE,
            SIZE,
            hatch="//////",
            fc=SHADE,
            ec=GREY,
            linewidth=0,
            zorder=-1,
            label="wall or obstacle",
        )
    )
    _mark(axes, MARKED[1] + 0.5, MARKED[0] + 0.5)
    axes.set_axis_off()
    return image


def _mark(axes: Axes, x: float, y: float) -> None:
    edge = {"markeredgecolor": INK, "markeredgewidth": 0.7}
    star = {"marker": "*", "markersize": 11, "color": MARK, "linestyle": "none"}
    axes.plot(x, y, clip_on=False, label="the marked cell", **star, **edge)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_four_rooms, __doc__, arguments)


if __name__ == "__main__":
    main()
