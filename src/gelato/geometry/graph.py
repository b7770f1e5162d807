"""Geodesics on a graph: Dijkstra's shortest paths over nearest neighbours, edges as long as their straight lines.

A graph knows nothing of local minima, so its paths are starts for the converged solver where walls and folds lie in
between; its lengths are upper bounds that only get close in two dimensions. Host code (SciPy), not to be `jit`ted.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from gelato.errors import InputError
from gelato.geometry.curve import Curve, Legendre
from gelato.geometry.metric import AbstractMetric
from gelato.geometry.solver import Straight

CHUNK = 4096
SAMPLES = 64


class Graph(NamedTuple):
    """Points in latent space and the symmetric sparse matrix of their edges' lengths."""

    points: Float[np.ndarray, "nodes dim"]
    edges: csr_matrix

    def distances(self, sources: Int[np.ndarray, " sources"]) -> Float[np.ndarray, "sources nodes"]:
        """Shortest-path lengths from some nodes to all; infinite where no path leads."""
        return dijkstra(self.edges, directed=False, indices=sources)

    def path(self, source: int, target: int) -> Float[np.ndarray, "stops dim"]:
        """The stops of the shortest path between two nodes."""
        lengths, before = dijkstra(self.edges, directed=False, indices=np.array([source]), return_predecessors=True)
        if not np.isfinite(lengths[0, target]):
            raise InputError(f"no path leads from node {source} to node {target}: build the graph with more neighbours")
        return self.points[_backtrack(before[0], source, target)]


def build(metric: AbstractMetric, points: Float[Array | np.ndarray, "nodes dim"], neighbours: int = 12) -> Graph:
    """Join every point to its Euclidean nearest neighbours by edges as long as the straight line between them."""
    nodes = np.asarray(points)
    if len(nodes) < 2:
        raise InputError(f"a graph needs at least two points, got {len(nodes)}")
    k = min(neighbours, len(nodes) - 1)
    ends = cKDTree(nodes).query(nodes, k + 1)[1]
    pairs = np.stack([np.repeat(np.arange(len(nodes)), k + 1), ends.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    lengths = _edge_lengths(metric, nodes[pairs[:, 0]], nodes[pairs[:, 1]])
    if not np.all(np.isfinite(lengths)):
        bad = nodes[pairs[np.flatnonzero(~np.isfinite(lengths))[0], 0]]
        raise InputError(f"the metric is not finite near the point {bad}: check the decoder there")
    # SciPy reads a zero as a missing edge; coincident points are joined by the smallest positive length.
    lengths = np.maximum(lengths, np.finfo(lengths.dtype).tiny)
    return Graph(nodes, csr_matrix((lengths, (pairs[:, 0], pairs[:, 1])), shape=(len(nodes), len(nodes))))


def grid(
    points: Float[Array | np.ndarray, "points 2"], size: int = 32, margin: float = 0.2
) -> Float[np.ndarray, "nodes 2"]:
    """A square grid over the points' bounding box and a margin around it."""
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    border = margin * np.max(high - low) + np.finfo(np.float32).tiny
    axes = [np.linspace(least - border, most + border, size) for least, most in zip(low, high)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.asarray(points).dtype)


def path_curves(graph: Graph, pairs: Int[np.ndarray, "pairs 2"], modes: int) -> Float[np.ndarray, "pairs modes dim"]:
    """Coefficients of the smooth curves nearest to the shortest paths between pairs (zero where there is no path)."""
    coefficients = np.zeros((len(pairs), modes, graph.points.shape[1]))
    sources, rows = np.unique(pairs[:, 0], return_inverse=True)
    lengths, before = dijkstra(graph.edges, directed=False, indices=sources, return_predecessors=True)
    for index, (row, (source, target)) in enumerate(zip(rows, pairs)):
        if source != target and np.isfinite(lengths[row, target]):
            stops = _backtrack(before[row], int(source), int(target))
            coefficients[index] = _fit(graph.points[stops], lengths[row, stops], modes)
    return coefficients


def path_curve(graph: Graph, source: int, target: int, modes: int) -> Curve:
    """The smooth curve nearest to the shortest path between two nodes."""
    shape = path_curves(graph, np.array([[source, target]]), modes)[0]
    a, b = jnp.asarray(graph.points[source]), jnp.asarray(graph.points[target])
    return Curve(a, b, jnp.asarray(shape, a.dtype), Legendre(modes))


def _fit(stops: Float[np.ndarray, "stops dim"], lengths: Float[np.ndarray, " stops"], modes: int) -> np.ndarray:
    # Parametrised by its length, as a geodesic is; sampled evenly and fitted by least squares.
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


def _edge_lengths(metric: AbstractMetric, starts: np.ndarray, ends: np.ndarray) -> Float[np.ndarray, " edges"]:
    measure = eqx.filter_jit(jax.vmap(lambda a, b: Straight()(metric, a, b).length))
    pieces = [
        measure(jnp.asarray(starts[i : i + CHUNK]), jnp.asarray(ends[i : i + CHUNK]))
        for i in range(0, len(starts), CHUNK)
    ]
    return np.concatenate([np.asarray(piece) for piece in pieces])
