"""Compare the learned geometry of Four Rooms with walking distances of all pairs of free cells.

There are four distances. *Land* is the length of the shortest walk around walls. *Position* is the
straight-line distance between cells. *Latent* is the Euclidean distance between the encoder's
means. *Geodesic* is the distance between these means under the metric of the decoders (Theorem 1,
averaged over the ensemble).
"""

from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from gelato.errors import InputError
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel
from gelato.report.latent_space import build_decoder_metric, encode_states, measure_plane
from gelato.report.references import shorten_reference
from gelato.runs.records import Record
from gelato.tasks.four_rooms import FOUR_ROOMS, encode_position, list_free_cells
from gelato.uncertainty.scores import auroc

Pairs = Float[np.ndarray, "cells cells"]
NEAR_CELLS, DETOUR = 3, 1.9


def check_rooms(fitted: FittedModel) -> None:
    """Raise an InputError if the model is not of Four Rooms or not two-dimensional."""
    folder, size = fitted.run.folder, fitted.config.latent_size
    if fitted.dataset.environment != FOUR_ROOMS.environment:
        name = shorten_reference(fitted.dataset.reference)
        raise InputError(f"{folder}: was fitted to {name}. Fit a model to four-rooms")
    if size != 2:
        raise InputError(f"{folder}: has {size} latent dimensions; the plan needs 2")


def encode_cells(fitted: FittedModel, model: LatentModel) -> Float[np.ndarray, "cells latent"]:
    """Encode every free cell."""
    return encode_states(fitted, model, encode_position(list_free_cells()))


def measure_cells(fitted: FittedModel, model: LatentModel) -> dict[str, Pairs]:
    """Measure the geodesic, latent and position distances between all free cells."""
    codes = encode_cells(fitted, model)
    return {
        "geodesic": measure_plane(build_decoder_metric(model), codes),
        "latent": cdist(codes, codes),
        "position": air_distances(),
    }


@cache
def compute_walking_distances() -> Pairs:
    """Return the walking distances between all free cells, in the order of `list_free_cells`."""
    cells = list_free_cells()
    neighbours = np.abs(cells[:, None] - cells[None]).sum(-1) == 1
    return shortest_path(neighbours, unweighted=True)


def air_distances() -> Pairs:
    """Return the Euclidean distances between free cells, in cells."""
    cells = list_free_cells()
    return cdist(cells, cells)


def score_distances(distances: Pairs) -> Record:
    """Score distances against the land distance.

    The scores are the rank correlation over all pairs, and the AUROC of detecting pairs with a wall
    between them among all near pairs.
    """
    pairs = np.triu_indices(len(distances), k=1)
    measured, land, air = (
        distances[pairs],
        compute_walking_distances()[pairs],
        air_distances()[pairs],
    )
    near = air <= NEAR_CELLS
    return {
        "spearman_land": float(spearmanr(measured, land).statistic),
        "auroc_wall": auroc(measured[near], (land >= DETOUR * air)[near]),
    }
