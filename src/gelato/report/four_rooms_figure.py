"""The paper's figure of Four Rooms: the latent plane under its volume measure, and distances drawn in the room plan."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from gelato.envs.four_rooms import FREE, SIZE, free_cells, land_distances
from gelato.geometry import AbstractMetric, log_volume
from gelato.model.training import FittedModel
from gelato.report.rooms import cell_codes, check_rooms, decoder_metric, geodesic_distances
from gelato.report.style import GREY, INK, MARK, SHADE, save

# In the first room, next to the wall: the cell behind the wall is near by air and far by land.
MARKED = (0, 6)
_PIXELS = 240
_MARGIN = 0.1


def draw_four_rooms(fitted: FittedModel, path: Path) -> None:
    """Draw (a) codes over `√det G`, then (b) geodesic, (c) latent and (d) land distance to a marked cell."""
    check_rooms(fitted)
    model = fitted.seed(0)
    metric, codes = decoder_metric(model), cell_codes(fitted, model)
    marked = int(np.flatnonzero((free_cells() == MARKED).all(axis=1))[0])
    figure = Figure(figsize=(9.6, 2.9), layout="constrained")
    axes = figure.subplots(1, 4)
    draw_volume(axes[0], metric, codes)
    axes[0].plot(*codes.T, linestyle="none", marker="o", markersize=2.4, color="white", markeredgecolor=INK, mew=0.4)
    _mark(axes[0], *codes[marked].tolist())
    axes[0].set_title("(a) latent codes of the cells")
    panels = [
        ("(b) geodesic distance", "along the metric", geodesic_distances(metric, codes)[marked]),
        ("(c) Euclidean latent distance", "in latent units", np.linalg.norm(codes - codes[marked], axis=1)),
        ("(d) true land distance", "steps of one cell", land_distances()[marked]),
    ]
    for axis, (title, label, distances) in zip(axes[1:], panels, strict=True):
        image = _plan(axis, distances)
        axis.set_title(title)
        figure.colorbar(image, ax=axis, location="bottom", label=label, shrink=0.9)
    save(figure, path)


def draw_volume(axes: Axes, metric: AbstractMetric, points: Float[np.ndarray, "n 2"]) -> None:
    """`√det G` over the square around some points, its colour bar below."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = (0.5 + _MARGIN) * float((high - low).max())
    ticks = [np.linspace(centre - half, centre + half, _PIXELS) for centre in (low + high) / 2]
    plane = jnp.asarray(np.stack(np.meshgrid(*ticks), axis=-1), points.dtype).reshape(-1, 2)
    volumes = np.exp(jax.lax.map(lambda z: log_volume(metric, z), plane, batch_size=1024)).reshape(_PIXELS, _PIXELS)
    # A few pixels where G is nearly singular must not take the colours of all others.
    least, most = np.quantile(volumes[volumes > 0], (0.005, 0.995)).tolist()
    image = axes.pcolormesh(*ticks, volumes, norm=LogNorm(least, most), shading="gouraud", rasterized=True)
    axes.set(aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    bar = axes.figure.colorbar(
        image, ax=axes, location="bottom", shrink=0.9, extend="both", ticks=_marks(least, most), format="%g"
    )
    bar.minorticks_off()
    bar.set_label(r"volume measure $\sqrt{\det G}$")


def _marks(least: float, most: float) -> list[float]:
    """The powers of ten in a range or, if these are too few, round numbers of about equal ratios."""
    powers = [10.0**power for power in range(-12, 13) if least <= 10.0**power <= most]
    return powers if len(powers) > 1 else sorted({float(f"{mark:.1g}") for mark in np.geomspace(least, most, 5)[1:4]})


def _plan(axes: Axes, distances: Float[np.ndarray, " cells"]) -> AxesImage:
    values = np.full(FREE.shape, np.nan)
    values[FREE] = distances
    image = axes.imshow(values, extent=(0, SIZE, SIZE, 0), vmin=0, interpolation="none")
    # Hatched, so that a wall cannot be taken for a distance, in grey neither.
    axes.add_patch(Rectangle((0, 0), SIZE, SIZE, hatch="//////", fc=SHADE, ec=GREY, linewidth=0, zorder=-1))
    _mark(axes, MARKED[1] + 0.5, MARKED[0] + 0.5)
    axes.set_axis_off()
    return image


def _mark(axes: Axes, x: float, y: float) -> None:
    axes.plot(x, y, marker="*", markersize=11, color=MARK, markeredgecolor=INK, markeredgewidth=0.7, clip_on=False)
