"""The plane of the map: the latent space if it has two dimensions, else its main directions."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Plane:
    """A linear map from the latent space to the plane.

    `variance` is the share of the variance that the plane shows; None if it shows the whole space.
    """

    centre: Float[np.ndarray, " latent"]
    directions: Float[np.ndarray, "latent 2"]
    variance: float | None

    def __call__(self, codes: Float[np.ndarray, "n latent"]) -> Float[np.ndarray, "n 2"]:
        """Place latent states in the plane."""
        return (codes - self.centre) @ self.directions


def find_plane(codes: Float[np.ndarray, "n latent"]) -> Plane:
    """Find the plane: a latent space of two dimensions itself, else its principal components."""
    size = codes.shape[1]
    if size <= 2:
        return Plane(np.zeros(size), np.eye(size, 2), None)
    centre = codes.mean(axis=0, dtype=np.float64)
    _, values, directions = np.linalg.svd(codes - centre, full_matrices=False)
    if len(values) < 2 or not values.any():
        return Plane(centre, np.eye(size, 2), 1.0)
    variance = float((values[:2] ** 2).sum() / (values**2).sum())
    # The sign of a direction is arbitrary; fix it, so that equal runs give equal maps.
    signs = np.sign(directions[[0, 1], np.abs(directions[:2]).argmax(axis=1)])
    return Plane(centre, (directions[:2] * signs[:, None]).T, variance)
