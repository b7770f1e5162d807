"""Distances in a fitted model's latent space, and its volume measure drawn over the plane."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gelato.geometry import AbstractMetric, EnsemblePullback, log_volume
from gelato.geometry.graph import build, place_nodes
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.uncertainty.build import DecoderOutput

if TYPE_CHECKING:
    import matplotlib.axes

# On Four Rooms, doubling the nodes per side shortens paths by 2% (median). It changes both scores
# of experiments/rooms.py by at most 0.002.
GRID, NEIGHBOURS, MARGIN = 96, 24, 0.05
_PIXELS = 240
_PLOT_MARGIN = 0.1


def build_decoder_metric(model: LatentModel) -> EnsemblePullback:
    """`G(z) = (1/M) Σᵢ JμᵢᵀJμᵢ + JσᵢᵀJσᵢ` of the model's decoders."""
    return EnsemblePullback(DecoderOutput(model))


def encode_states(
    fitted: FittedModel, model: LatentModel, states: Float[np.ndarray, "n input"]
) -> Float[np.ndarray, "n latent"]:
    """Encode states or windows in the data's units: the encoder's means."""
    normalised = jnp.asarray(fitted.scaling.inputs(states))
    return np.asarray(jax.vmap(lambda state: model.encode(state).mean)(normalised))


def measure_plane(
    metric: AbstractMetric, points: Float[np.ndarray, "n 2"]
) -> Float[np.ndarray, "n n"]:
    """Measure geodesic distances between points of a plane: shortest paths on a dense graph.

    A graph has no starting curve, so walls cannot trap it in a local minimum.
    """
    nodes = np.concatenate([points, place_nodes(points, GRID, MARGIN)])
    graph = build(metric, nodes, NEIGHBOURS)
    return graph.distances(np.arange(len(points)))[:, : len(points)]


def draw_volume(
    axes: "matplotlib.axes.Axes", metric: AbstractMetric, points: Float[np.ndarray, "n 2"]
) -> None:
    """Draw `√det G` over the square around some points, with a colour bar below."""
    from matplotlib.colors import LogNorm

    low, high = points.min(axis=0), points.max(axis=0)
    half = (0.5 + _PLOT_MARGIN) * float((high - low).max())
    ticks = [np.linspace(centre - half, centre + half, _PIXELS) for centre in (low + high) / 2]
    plane = jnp.asarray(np.stack(np.meshgrid(*ticks), axis=-1), points.dtype).reshape(-1, 2)
    logs = jax.lax.map(lambda z: log_volume(metric, z), plane, batch_size=1024)
    volumes = np.exp(logs).reshape(_PIXELS, _PIXELS)
    # A few pixels where G is nearly singular must not use up the range of colours.
    least, most = np.quantile(volumes[volumes > 0], (0.005, 0.995)).tolist()
    scale = LogNorm(least, most)
    image = axes.pcolormesh(*ticks, volumes, norm=scale, shading="gouraud", rasterized=True)
    axes.set(aspect="equal", xlabel="$z_1$", ylabel="$z_2$")
    bar = axes.figure.colorbar(
        image,
        ax=axes,
        location="bottom",
        shrink=0.9,
        extend="both",
        ticks=_choose_ticks(least, most),
        format="%g",
    )
    bar.minorticks_off()
    bar.set_label(r"volume measure $\sqrt{\det G}$")


def _choose_ticks(least: float, most: float) -> list[float]:
    """Choose the powers of ten in a range or, if these are too few, about equal ratios."""
    powers = [10.0**power for power in range(-12, 13) if least <= 10.0**power <= most]
    if len(powers) > 1:
        return powers
    return sorted({float(f"{tick:.1g}") for tick in np.geomspace(least, most, 5)[1:4]})
