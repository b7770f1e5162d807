"""Metrics, geodesics and neighbours for any JAX function, independent of reinforcement learning.

A metric is an immutable function object `point -> G`; a solver is one `(metric, a, b) -> Geodesic`.
Both take single points; use `vmap` for batches. Use `distance` inside compiled programs, and
`distances`, `pairwise` and `connecting_geodesic` on the host.
"""

from gelato.geometry.composite import (
    Composite,
    ExactScale,
    FrozenScale,
    ProbedScale,
    compute_noise_effect,
    freeze,
    probe,
    sample,
)
from gelato.geometry.converged import Converged
from gelato.geometry.curve import Curve, energy, length
from gelato.geometry.distance import (
    connecting_geodesic,
    distance,
    distances,
    geodesics,
    measure_pairs,
    pairwise,
)
from gelato.geometry.graph import Graph
from gelato.geometry.metric import (
    AbstractImmersed,
    AbstractMetric,
    EnsemblePullback,
    Euclidean,
    GaussianPullback,
    Pullback,
    Tensor,
    gaussian,
    log_volume,
    rank_bound,
    volume,
)
from gelato.geometry.near import Near
from gelato.geometry.neighbours import (
    NO_EXCLUSION,
    Index,
    Neighbours,
    find_neighbours,
    nearest,
    nearest_approximate,
    nearest_under_metric,
    prepare,
    recall,
)
from gelato.geometry.ode import Shooting, exponential
from gelato.geometry.paper import PaperSGD
from gelato.geometry.solver import AbstractSolver, Geodesic, Straight, bracket, lower_bound

__all__ = [
    "NO_EXCLUSION",
    "AbstractImmersed",
    "AbstractMetric",
    "AbstractSolver",
    "Composite",
    "Converged",
    "Curve",
    "EnsemblePullback",
    "Euclidean",
    "ExactScale",
    "FrozenScale",
    "GaussianPullback",
    "Geodesic",
    "Graph",
    "Index",
    "Near",
    "Neighbours",
    "PaperSGD",
    "ProbedScale",
    "Pullback",
    "Shooting",
    "Straight",
    "Tensor",
    "bracket",
    "compute_noise_effect",
    "connecting_geodesic",
    "distance",
    "distances",
    "energy",
    "exponential",
    "find_neighbours",
    "freeze",
    "gaussian",
    "geodesics",
    "length",
    "log_volume",
    "lower_bound",
    "measure_pairs",
    "nearest",
    "nearest_approximate",
    "nearest_under_metric",
    "pairwise",
    "prepare",
    "probe",
    "rank_bound",
    "recall",
    "sample",
    "volume",
]
