"""Geodesics on a graph: shortest paths by Dijkstra over nearest neighbours.

The length of an edge is the length of the straight line between its ends. A graph has no local
minima, so its paths are good initial curves for `Converged` if walls or folds lie between the
points. Its lengths are upper bounds, and close to the distance only in two dimensions. This code
runs on the host (SciPy, imported on use) and cannot be `jit`ted.
"""

from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gelato.arrays import map_in_chunks
from gelato.errors import InputError
from gelato.geometry.curve import Legendre
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.solver import Straight

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CHUNK = 4096
SAMPLES = 64


class Graph(NamedTuple):
    """Points in latent space and the symmetric sparse matrix of the lengths of their edges."""

    points: Float[np.ndarray, "nodes dim"]
    edges: "csr_matrix"

    def distances(self, sources: Int[np.ndarray, " sources"]) -> Float[np.ndarray, "sources nodes"]:
        """Compute shortest-path lengths from some nodes to all; infinite if there is no path."""
        return _shortest_paths(self, sources)[0]

    def path(self, source: int, target: int) -> Float[np.ndarray, "stops dim"]:
        """Find the points of the shortest path between two nodes."""
        lengths, before = _shortest_paths(self, np.array([source]))
        if not np.isfinite(lengths[0, target]):
            raise InputError(
                f"There is no path from node {source} to node {target}. "
                "Build the graph with more neighbours."
            )
        return self.points[_backtrack(before[0], source, target)]


def build(
    metric: AbstractMetric, points: Float[Array | np.ndarray, "nodes dim"], neighbours: int = 12
) -> Graph:
    """Build a graph whose edges join each point to its nearest neighbours (Euclidean)."""
    from scipy.sparse import csr_matrix
    from scipy.spatial import cKDTree

    nodes = np.asarray(points)
    if len(nodes) < 2:
        raise InputError(f"A graph needs at least 2 points, but there are {len(nodes)}.")
    k = min(neighbours, len(nodes) - 1)
    ends = cKDTree(nodes).query(nodes, k + 1)[1]
    pairs = np.stack([np.repeat(np.arange(len(nodes)), k + 1), ends.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    starts, stops = pairs.T

    def measure(a: np.ndarray, b: np.ndarray) -> Array:
        return _measure_lines(metric, jnp.asarray(a), jnp.asarray(b))

    lengths = np.asarray(map_in_chunks(measure, (nodes[starts], nodes[stops]), CHUNK))
    infinite = np.flatnonzero(~np.isfinite(lengths))
    if len(infinite):
        point = nodes[starts[infinite[0]]]
        raise InputError(f"The metric is not finite near the point {point}. Check the decoder.")
    # SciPy reads a zero as a missing edge, so coincident points get the smallest positive length.
    lengths = np.maximum(lengths, np.finfo(lengths.dtype).tiny)
    return Graph(nodes, csr_matrix((lengths, (starts, stops)), shape=(len(nodes), len(nodes))))


def place_nodes(
    points: Float[Array | np.ndarray, "points 2"], size: int = 32, margin: float = 0.2
) -> Float[np.ndarray, "nodes 2"]:
    """Build a square grid over the points' bounding box with a margin around it."""
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    border = margin * np.max(high - low) + np.finfo(np.float32).tiny
    axes = [np.linspace(least - border, most + border, size) for least, most in zip(low, high)]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    return nodes.astype(np.asarray(points).dtype)


def fit_path_curves(
    graph: Graph, pairs: Int[np.ndarray, "pairs 2"], modes: int
) -> Float[np.ndarray, "pairs modes dim"]:
    """Fit a smooth curve to the shortest path of each pair of nodes.

    The result holds the coefficients of the curves; they are zero if there is no path.
    """
    coefficients = np.zeros((len(pairs), modes, graph.points.shape[1]))
    sources, rows = np.unique(pairs[:, 0], return_inverse=True)
    lengths, before = _shortest_paths(graph, sources)
    for index, (row, (source, target)) in enumerate(zip(rows, pairs)):
        if source != target and np.isfinite(lengths[row, target]):
            stops = _backtrack(before[row], int(source), int(target))
            coefficients[index] = _fit(graph.points[stops], lengths[row, stops], modes)
    return coefficients


def _shortest_paths(
    graph: Graph, sources: Int[np.ndarray, " sources"]
) -> tuple[Float[np.ndarray, "sources nodes"], Int[np.ndarray, "sources nodes"]]:
    """Find the lengths of the shortest paths and the node before each node on its path."""
    from scipy.sparse.csgraph import dijkstra

    return dijkstra(graph.edges, directed=False, indices=sources, return_predecessors=True)


def _fit(
    stops: Float[np.ndarray, "stops dim"], lengths: Float[np.ndarray, " stops"], modes: int
) -> np.ndarray:
    # A geodesic has constant speed, so the path is parametrised by its length before the fit.
    t = np.linspace(0, 1, SAMPLES)
    path = np.stack([np.interp(t, lengths / lengths[-1], column) for column in stops.T], axis=1)
    deviation = path - (stops[0] + t[:, None] * (stops[-1] - stops[0]))
    shapes = Legendre(modes).tables(t)[0]
    return np.linalg.lstsq(shapes, deviation, rcond=None)[0]


def _backtrack(before: Int[np.ndarray, " nodes"], source: int, target: int) -> list[int]:
    stops = [int(target)]
    while stops[-1] != source:
        stops.append(int(before[stops[-1]]))
    return stops[::-1]


@eqx.filter_jit
def _measure_lines(
    metric: AbstractMetric, starts: Float[Array, "edges dim"], ends: Float[Array, "edges dim"]
) -> Float[Array, " edges"]:
    return jax.vmap(lambda a, b: Straight()(metric, a, b).length)(starts, ends)
