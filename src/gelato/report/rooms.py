"""The learned geometry of Four Rooms against the truth: all pairs of free cells, measured four ways.

*Land* is the walk that passes no wall, *position* the distance by air; *latent* is Euclidean between the encoder's
means, *geodesic* along the metric the decoders induce there (Theorem 1, averaged over the ensemble).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from gelato.envs import FOUR_ROOMS
from gelato.envs.four_rooms import free_cells, land_distances, position
from gelato.errors import InputError
from gelato.geometry import AbstractMetric, EnsemblePullback
from gelato.geometry.graph import build, grid
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.results import Record
from gelato.uncertainty.build import Decoded
from gelato.uncertainty.scores import auroc

Pairs = Float[np.ndarray, "cells cells"]
# Twice as many nodes a side shorten paths by 2% in the median and change neither score by more than 0.002.
GRID, NEIGHBOURS, MARGIN = 96, 24, 0.05
NEAR_CELLS, DETOUR = 3, 1.9


def decoder_metric(model: LatentModel) -> EnsemblePullback:
    """`G(z) = (1/M) Σᵢ JμᵢᵀJμᵢ + JσᵢᵀJσᵢ` of the model's decoders."""
    return EnsemblePullback(Decoded(model))


def check_rooms(fitted: FittedModel) -> None:
    """Refuse a model of anything but Four Rooms in two latent dimensions."""
    if fitted.dataset.environment != FOUR_ROOMS:
        raise InputError(f"{fitted.run.folder}: was fitted to {fitted.dataset.reference}; fit one to four-rooms")
    if fitted.config.latent_size != 2:
        raise InputError(f"{fitted.run.folder}: has {fitted.config.latent_size} latent dimensions; the plan needs 2")


def cell_codes(fitted: FittedModel, model: LatentModel) -> Float[np.ndarray, "cells latent"]:
    """The encoder's mean of every free cell."""
    states = jnp.asarray(fitted.scaling.states(position(free_cells())))
    return np.asarray(jax.vmap(lambda state: model.encode(state).mean)(states))


def geodesic_distances(metric: AbstractMetric, codes: Float[np.ndarray, "cells 2"]) -> Pairs:
    """Shortest paths between codes on a dense graph over the latent plane: no start to get stuck at, walls or not."""
    graph = build(metric, np.concatenate([codes, grid(codes, GRID, MARGIN)]), NEIGHBOURS)
    return graph.distances(np.arange(len(codes)))[:, : len(codes)]


def all_distances(fitted: FittedModel, model: LatentModel) -> dict[str, Pairs]:
    """Distances between all free cells by each measure."""
    codes = cell_codes(fitted, model)
    return {
        "geodesic": geodesic_distances(decoder_metric(model), codes),
        "latent": cdist(codes, codes),
        "position": air_distances(),
    }


def air_distances() -> Pairs:
    """Euclidean distance in cells."""
    cells = free_cells()
    return cdist(cells, cells)


def scores(distances: Pairs) -> Record:
    """Rank correlation with the land distance over all pairs, and how well near pairs behind a wall stand out."""
    pairs = np.triu_indices(len(distances), k=1)
    measured, land, air = distances[pairs], land_distances()[pairs], air_distances()[pairs]
    near = air <= NEAR_CELLS
    return {
        "spearman_land": float(spearmanr(measured, land).statistic),
        "auroc_wall": auroc(measured[near], (land >= DETOUR * air)[near]),
    }
