"""Run stochman 0.3.0, the best public library for geodesics, on the same decoder and pairs.

It needs PyTorch (extra `bench`). Its `EmbeddedManifold` minimises the energy of the decoded chords
along a cubic spline with Adam, here for a whole batch; its default is 150 steps on 20 points. Our
quadrature measures the curves that it returns, so that only curves are compared. The faster of one
and two threads counts, because a second thread often makes PyTorch slower in this benchmark.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.geometry.contestant import Contestant, Pairs, measure_fastest
from experiments.geometry.decoder import MEMBERS, OUT, Decoder
from gelato.geometry import AbstractMetric

# (steps of Adam, points on the curve)
SETTINGS = [*((steps, 10) for steps in (10, 15, 20, 25, 30, 40, 50)), (150, 20)]
THREADS = (1, 2)
# Each number of threads is tried for TRIAL_SECONDS. A number that is SLOW_FACTOR times slower than
# the fastest is not timed further.
TRIAL_SECONDS, SLOW_FACTOR = 2.0, 1.5
GRID = 64


def is_installed() -> bool:
    """Return whether stochman and PyTorch can be imported."""
    return find_spec("stochman") is not None and find_spec("torch") is not None


def build_contestants(decoder: Decoder, metric: AbstractMetric, pairs: Pairs) -> list[Contestant]:
    """Build a contestant for every setting; all pairs are one batch."""
    import torch

    starts, ends = (torch.from_numpy(np.array(x, dtype=np.float32)) for x in pairs)
    manifold = _build_manifold(decoder)

    def variants(steps: int, points: int, threads: Sequence[int]) -> list[partial[Any]]:
        return [partial(_solve, manifold, starts, ends, steps, points, count) for count in threads]

    # On a busy machine, threads that wait for other work can be many times slower.
    trials = variants(*SETTINGS[0], THREADS)
    times = [measure_fastest(trial, TRIAL_SECONDS) for trial in trials]
    limit = SLOW_FACTOR * min(times)
    threads = [count for count, time in zip(THREADS, times) if time <= limit]

    def build(steps: int, points: int) -> Contestant:
        calls = variants(steps, points, threads)

        def lengths() -> Float[np.ndarray, " pairs"]:
            return _measure(metric, _sample_nodes(calls[0]()))

        return Contestant(f"stochman-{steps}-steps", len(starts), calls, lengths)

    return [build(steps, points) for steps, points in SETTINGS]


def _build_manifold(decoder: Decoder) -> Any:
    from stochman.manifold import EmbeddedManifold

    phi = _build_torch_immersion(decoder)

    class Decoded(EmbeddedManifold):
        def embed(self, points: Any, jacobian: bool = False) -> Any:  # noqa: ARG002
            return phi(points)

    return Decoded()


def _solve(manifold: Any, starts: Any, ends: Any, steps: int, points: int, threads: int) -> Any:
    import torch
    from stochman.curves import CubicSpline
    from stochman.geodesic import geodesic_minimizing_energy

    torch.set_num_threads(threads)
    curve = CubicSpline(starts, ends, num_nodes=8)
    geodesic_minimizing_energy(curve, manifold, max_iter=steps, eval_grid=points)
    return curve


def _sample_nodes(curve: Any) -> Float[Array, "pairs nodes dim"]:
    import torch

    with torch.no_grad():
        return jnp.asarray(curve(torch.linspace(0, 1, GRID + 1)).numpy())


def _measure(
    metric: AbstractMetric, nodes: Float[Array, "pairs nodes dim"]
) -> Float[np.ndarray, " pairs"]:
    def length(nodes: Float[Array, "nodes dim"]) -> Float[Array, ""]:
        middles, steps = (nodes[1:] + nodes[:-1]) / 2, jnp.diff(nodes, axis=0)
        return jnp.sum(jnp.sqrt(jax.vmap(metric.quadratic)(middles, steps)))

    return np.asarray(jax.jit(jax.vmap(length))(nodes))


def _build_torch_immersion(decoder: Decoder) -> Callable[[Any], Any]:
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
