"""stochman 0.3.0, the best public library for this, on the same decoder and pairs (extra `bench`; needs PyTorch).

Its `EmbeddedManifold` minimises the energy of the decoded chords along a cubic spline by Adam, here for a whole batch
at once; 150 steps on 20 points are its default. The curves it returns are measured by our quadrature, so that only
curves are compared, and the faster of one and two threads counts, since a second one often slows PyTorch down here.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.geometry.benchmark.decoder import MEMBERS, OUT, Decoder
from gelato.geometry.metric import AbstractMetric

# (steps of Adam, points on the curve)
SETTINGS = [(10, 10), (20, 10), (30, 10), (50, 10), (150, 20)]
THREADS = (1, 2)
GRID = 64


def available() -> bool:
    """Whether stochman and PyTorch can be imported."""
    return find_spec("stochman") is not None and find_spec("torch") is not None


def lengths(
    decoder: Decoder, metric: AbstractMetric, a: Float[Array, "pairs dim"], b: Float[Array, "pairs dim"]
) -> Iterator[tuple[str, float, Float[np.ndarray, " pairs"]]]:
    """For every setting its name, the pairs solved per second (as one batch), and the lengths of its curves."""
    import torch
    from stochman.curves import CubicSpline
    from stochman.geodesic import geodesic_minimizing_energy
    from stochman.manifold import EmbeddedManifold

    phi = _torch_immersion(decoder)

    class Decoded(EmbeddedManifold):
        def embed(self, points: Any, jacobian: bool = False) -> Any:  # noqa: ARG002
            return phi(points)

    starts, ends = (torch.from_numpy(np.asarray(x, dtype=np.float32).copy()) for x in (a, b))
    for steps, points in SETTINGS:
        fastest = np.inf
        for threads in THREADS:
            torch.set_num_threads(threads)
            begin = perf_counter()
            curve = CubicSpline(starts, ends, num_nodes=8)
            geodesic_minimizing_energy(curve, Decoded(), max_iter=steps, eval_grid=points)
            fastest = min(fastest, perf_counter() - begin)
        with torch.no_grad():
            nodes = curve(torch.linspace(0, 1, GRID + 1)).numpy()
        yield f"{steps}-steps", len(starts) / fastest, _measure(metric, jnp.asarray(nodes))


def _measure(metric: AbstractMetric, nodes: Float[Array, "pairs nodes dim"]) -> Float[np.ndarray, " pairs"]:
    def length(nodes: Float[Array, "nodes dim"]) -> Float[Array, ""]:
        middles, steps = (nodes[1:] + nodes[:-1]) / 2, jnp.diff(nodes, axis=0)
        return jnp.sum(jnp.sqrt(jax.vmap(metric.quadratic)(middles, steps)))

    return np.asarray(jax.jit(jax.vmap(length))(nodes))


def _torch_immersion(decoder: Decoder) -> Callable[[Any], Any]:
    import torch
    from torch.nn.functional import silu, softplus

    layers = [
        (torch.from_numpy(np.array(layer.weight)), torch.from_numpy(np.array(layer.bias)))
        for layer in decoder.members.layers
    ]

    def phi(points: Any) -> Any:
        hidden = points.reshape(1, -1, points.shape[-1])
        for index, (weight, bias) in enumerate(layers):
            hidden = torch.matmul(hidden, weight.transpose(1, 2)) + bias[:, None]
            hidden = silu(hidden) if index < len(layers) - 1 else hidden
        outputs = torch.cat([hidden[..., :OUT], 0.05 + softplus(hidden[..., OUT:])], dim=-1)
        stacked = outputs.permute(1, 0, 2).reshape(*points.shape[:-1], -1)
        return stacked / MEMBERS**0.5

    return phi
