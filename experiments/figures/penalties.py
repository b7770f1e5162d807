"""Draw every penalty over the plan of Four Rooms and a ring of cells around it.

python experiments/figures/penalties.py --run RUN --out FILE.png
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from experiments.figures.command import run_figure
from experiments.rooms import check_rooms
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.progress import progress
from gelato.report.figures import FigureRequest
from gelato.report.style import label_panels, save
from gelato.tasks.four_rooms import ACTIONS, FREE, SIZE
from gelato.uncertainty.build import PenaltyInputs, build_penalty
from gelato.uncertainty.calibration import calibrate
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import penalise
from gelato.uncertainty.registry import list_penalties

RING = 3
# The top of the colour scale. Calibration makes penalties agree on the values 0 and 1 only. Outside
# the plan some reach 30, and a scale up to 30 would hide everything else.
_HIGHEST = 3.0
# Points along the side of a cell.
_DENSITY = 1


def draw_penalties(request: FigureRequest) -> None:
    """Draw the calibrated penalties in one figure, each as the mean over the four moves."""
    fitted = request.load_model()
    check_rooms(fitted)
    model = fitted.seed(0)
    embeddings = embed_plan(fitted, model)
    side, _, moves, size = embeddings.shape
    train, held_out = (embed(model, fitted.scaling, part) for part in fitted.parts)
    shown = [name for name in list_penalties("latent") if name != "none"]
    columns = -(-len(shown) // 2)
    figure = Figure(figsize=(2.4 * columns, 5.2), layout="constrained")
    axes = figure.subplots(2, columns).ravel()
    with progress("penalties over the plan", len(shown)) as advance:
        for axis, name in zip(axes, shown, strict=False):
            raw = build_penalty(name, PenaltyInputs(model, train, held_out))
            penalty = calibrate(raw, model, fitted.scaling, train)
            values = np.asarray(penalise(penalty, embeddings.reshape(-1, size)))
            image = _draw_map(axis, values.reshape(side, side, moves).mean(axis=-1), name)
            advance(1)
    label_panels(list(axes[: len(shown)]))
    figure.colorbar(
        image,
        ax=list(axes),
        location="bottom",
        shrink=0.5,
        aspect=40,
        extend="max",
        label="calibrated penalty U, mean over the four moves (0: as on the data, 1: a clearly "
        "out-of-distribution pair)",
    )
    figure.suptitle(
        f"one scale for all panels, white: walls; model seed {fitted.seeds[0]}", fontsize=9
    )
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    save(figure, request.out)


def embed_plan(
    fitted: FittedModel, model: LatentModel
) -> Float[Array, "side side moves embedding"]:
    """Embed every move from every point of the plan and its ring, including walls."""
    half = (SIZE - 1) / 2
    ticks = np.arange(-RING * _DENSITY, (SIZE - 1 + RING) * _DENSITY + 1) / _DENSITY / half - 1
    states = np.stack(np.meshgrid(ticks, -ticks), axis=-1).astype(np.float32)
    normalised = jnp.asarray(fitted.scaling.states(states))
    moves = jnp.eye(len(ACTIONS))

    def embed_one(state: Float[Array, " state"]) -> Float[Array, "moves embedding"]:
        z = model.encode(state).mean
        return jax.vmap(lambda move: model.embedding(z, move))(moves)

    return jax.vmap(jax.vmap(embed_one))(normalised)


def _draw_map(axes: Axes, values: Float[np.ndarray, "side side"], title: str) -> AxesImage:
    low, high = -RING - 0.5 / _DENSITY, SIZE - 1 + RING + 0.5 / _DENSITY
    image = axes.imshow(values, extent=(low, high, high, low), vmin=0, vmax=_HIGHEST)
    cells = np.pad(FREE, 1).astype(float)
    places = np.arange(-1, SIZE + 1)
    # Each cell is divided into 8×8 parts, so that the outline has sharp corners.
    fine = np.repeat(np.repeat(cells, 8, axis=0), 8, axis=1)
    where = np.linspace(places[0] - 0.5 + 1 / 16, places[-1] + 0.5 - 1 / 16, len(fine))
    axes.contour(where, where, fine, levels=[0.5], colors=["white"], linewidths=0.7)
    axes.set(title=f"{title}\nmaximum {values.max():.3g}", xticks=[], yticks=[])
    return image


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure from the command line."""
    run_figure(draw_penalties, __doc__, arguments)


if __name__ == "__main__":
    main()
