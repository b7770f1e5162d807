"""Metrics, geodesics and neighbours for any JAX function, independent of reinforcement learning.

A metric is an immutable function object `point -> G`; a solver is one `(metric, a, b) -> Geodesic`.
Both take single points; use `vmap` for batches. Use `distance` inside compiled programs, and
`distances`, `pairwise` and `connecting_geodesic` on the host.
"""

from gelato.geometry.adaptive import Adaptive
from gelato.geometry.brownian import brownian_motion
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
from gelato.geometry.curvature import (
    connect,
    riemann,
    scalar_curvature,
    sectional_curvature,
)
from gelato.geometry.curve import Curve, energy, length
from gelato.geometry.distance import (
    connecting_geodesic,
    distance,
    distances,
    geodesics,
    measure_pairs,
    pairwise,
)
from gelato.geometry.finsler import ExpectedLength
from gelato.geometry.fisher import (
    BernoulliFisherRao,
    CategoricalFisherRao,
    GaussianFisherRao,
)
from gelato.geometry.gauss_newton import GaussNewton
from gelato.geometry.graph import Graph
from gelato.geometry.mean import Clusters, cluster, frechet_mean
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
from gelato.geometry.projection import bound_projection_error, draw_projection
from gelato.geometry.solver import AbstractSolver, Geodesic, Straight, bracket, lower_bound
from gelato.geometry.transport import (
    initial_velocity,
    interpolate,
    logarithm,
    parallel_transport,
)

__all__ = [
    "NO_EXCLUSION",
    "AbstractImmersed",
    "AbstractMetric",
    "AbstractSolver",
    "Adaptive",
    "BernoulliFisherRao",
    "CategoricalFisherRao",
    "Clusters",
    "Composite",
    "Converged",
    "Curve",
    "EnsemblePullback",
    "Euclidean",
    "ExactScale",
    "ExpectedLength",
    "FrozenScale",
    "GaussNewton",
    "GaussianFisherRao",
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
    "bound_projection_error",
    "bracket",
    "brownian_motion",
    "cluster",
    "compute_noise_effect",
    "connect",
    "connecting_geodesic",
    "distance",
    "distances",
    "draw_projection",
    "energy",
    "exponential",
    "find_neighbours",
    "frechet_mean",
    "freeze",
    "gaussian",
    "geodesics",
    "initial_velocity",
    "interpolate",
    "length",
    "log_volume",
    "logarithm",
    "lower_bound",
    "measure_pairs",
    "nearest",
    "nearest_approximate",
    "nearest_under_metric",
    "pairwise",
    "parallel_transport",
    "prepare",
    "probe",
    "rank_bound",
    "recall",
    "riemann",
    "sample",
    "scalar_curvature",
    "sectional_curvature",
    "volume",
]
