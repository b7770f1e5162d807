"""`Trust` as nodes of an ONNX graph: observation and action to penalty, verdict and error bounds.

The neighbours are found as in `geometry/neighbours.py`: candidates by the expansion of the squared
distance, which is one product, then exact distances to the candidates only.
"""

from typing import Any

import numpy as np

from gelato.data.spaces import ActionSpace, Discrete
from gelato.errors import InputError
from gelato.geometry import Index
from gelato.geometry.neighbours import SPARE
from gelato.model.coupling import AffineCoupling, Embedding
from gelato.model.latent import LatentModel
from gelato.model.networks import (
    INITIAL_VARIANCE,
    MLP,
    NORM_EPSILON,
    AbstractNetwork,
    Mixture,
    RadialVariance,
    SplitGaussian,
    softplus_offset,
)
from gelato.policy.deploy import make_stage
from gelato.policy.onnx_graph import OnnxGraph, activate, add_inputs, add_stage
from gelato.uncertainty.bounds import ErrorBounds
from gelato.uncertainty.guard import LEAST_SQUARE, LEAST_WEIGHT, Guard, UnusualAction
from gelato.uncertainty.trust import Trust


def add_guard(graph: OnnxGraph, trust: Trust, space: ActionSpace) -> list[Any]:
    """Add the guard behind the nodes `observation` and `action`; return its outputs."""
    from onnx import TensorProto, helper

    guard = trust.calibrated.penalty
    if not isinstance(guard, Guard):
        raise InputError(
            f"penalty {trust.penalty!r} cannot be exported; the graph holds the penalty 'guard'"
        )
    model, states = trust.model, trust.fitted.scaling.states
    if model.observed.images:
        raise InputError(
            "a guard that predicts images cannot be exported; export the policy alone (--no-guard)"
        )
    layout = trust.fitted.scaling.layout
    x = add_inputs(graph, layout, np.asarray(states.mean), np.asarray(states.scale))
    encoder = make_stage(model.encoder.network, model.latent_size)
    z = add_stage(graph, encoder, x, layout.size)
    action = encode_action(graph, space)
    e = _add_embedding(graph, model.embedding, graph.add("Concat", z, action, axis=1))
    penalty = _add_penalty(graph, guard, e, z, action)
    scale = trust.calibrated.scale
    above = graph.add("Sub", penalty, graph.constant(np.float32(scale.level)))
    above = graph.add("Max", above, graph.constant(np.float32(0)))
    graph.add("Div", above, graph.constant(np.float32(scale.unit)), output="penalty")
    limit = graph.constant(np.float32(trust.limit))
    graph.add("LessOrEqual", "penalty", limit, output="trusted")
    mean, deviation = _add_prediction(graph, model, e)
    size = len(states.scale)
    unit = graph.constant(np.asarray(states.scale))
    centre = graph.constant(np.asarray(states.mean))
    graph.add("Add", graph.add("Mul", mean, unit), centre, output="next_state")
    _add_bounds(graph, trust.bounds, deviation, np.asarray(states.scale))
    kinds = (
        ("penalty", TensorProto.FLOAT, ["batch"]),
        ("trusted", TensorProto.BOOL, ["batch"]),
        ("next_state", TensorProto.FLOAT, ["batch", size]),
        ("error_bound", TensorProto.FLOAT, ["batch"]),
        ("error_bounds", TensorProto.FLOAT, ["batch", size]),
    )
    return [helper.make_tensor_value_info(*kind) for kind in kinds]


def encode_action(graph: OnnxGraph, space: ActionSpace) -> str:
    """Return the action as the model receives it; a discrete one becomes one-hot."""
    if not isinstance(space, Discrete):
        return "action"
    column = graph.add("Unsqueeze", "action", graph.constant(np.array([1])))
    same = graph.add("Equal", column, graph.constant(np.arange(space.n)))
    return graph.add("Cast", same, to=1)


def _add_embedding(graph: OnnxGraph, embedding: Embedding, x: str) -> str:
    for coupling in embedding.couplings:
        x = _add_coupling(graph, coupling, x)
    return x


def _add_coupling(graph: OnnxGraph, coupling: AffineCoupling, x: str) -> str:
    first = graph.slice(x, 0, coupling.split)
    second = graph.slice(x, coupling.split, None)
    kept, mapped = (first, second) if coupling.flip else (second, first)
    both = _add_network(graph, coupling.conditioner, kept)
    half = coupling.conditioner.layers[-1].weight.shape[-2] // 2
    log_scale = graph.add("Tanh", graph.slice(both, 0, half))
    stretched = graph.add("Mul", mapped, graph.add("Exp", log_scale))
    changed = graph.add("Add", stretched, graph.slice(both, half, None))
    parts = (kept, changed) if coupling.flip else (changed, kept)
    return graph.add("Concat", *parts, axis=1)


def _add_penalty(graph: OnnxGraph, guard: Guard, e: str, z: str, action: str) -> str:
    """Add the larger of the guard's two parts, in their units."""
    distances, _ = _add_neighbours(graph, guard.distance.data, e, guard.distance.k)
    parts = (
        graph.add("ReduceMean", distances, axes=[1], keepdims=0),
        _add_unusual_action(graph, guard.action, z, action),
    )
    scaled = []
    for part, level, unit in zip(
        parts, np.asarray(guard.levels), np.asarray(guard.units), strict=True
    ):
        above = graph.add("Sub", part, graph.constant(level))
        scaled.append(graph.add("Div", above, graph.constant(unit)))
    return graph.add("Max", *scaled, graph.constant(np.float32(0)))


def _add_unusual_action(graph: OnnxGraph, part: UnusualAction, z: str, action: str) -> str:
    distances, rows = _add_neighbours(graph, part.states, z, part.k)
    weights = _add_weights(graph, distances, part.k)
    others = graph.add("Gather", graph.constant(np.asarray(part.actions)), rows, axis=0)
    own = graph.add("Div", action, graph.constant(np.asarray(part.scale)))
    squares = _add_squares(graph, others, own)
    factor = graph.constant(np.float32(-0.5 / np.square(part.width)))
    exponents = graph.add("Add", graph.add("Log", weights), graph.add("Mul", squares, factor))
    density = graph.add("ReduceLogSumExp", exponents, axes=[1], keepdims=0)
    axis = graph.constant(np.array([1]))
    total = graph.add("Log", graph.add("ReduceSum", weights, axis, keepdims=0))
    return graph.add("Sub", total, density)


def _add_weights(graph: OnnxGraph, distances: str, k: int) -> str:
    """Add `weigh` of `uncertainty/guard.py`."""
    squares = graph.add("Mul", distances, distances)
    farthest = graph.slice(squares, k - 1, k)
    farthest = graph.add("Max", farthest, graph.constant(np.float32(LEAST_SQUARE)))
    above = graph.add("Sub", graph.constant(np.float32(1)), graph.add("Div", squares, farthest))
    return graph.add("Max", above, graph.constant(np.float32(LEAST_WEIGHT)))


def _add_neighbours(graph: OnnxGraph, index: Index, query: str, k: int) -> tuple[str, str]:
    """Add an exact search; return the names of the distances and of the rows, nearest first."""
    points = np.asarray(index.data - index.centre)
    centred = graph.add("Sub", query, graph.constant(np.asarray(index.centre)))
    table = graph.constant(points)
    halves = graph.constant(np.square(points, dtype=np.float32).sum(axis=1) / 2)
    approximate = graph.add("Gemm", centred, table, halves, alpha=-1.0, transB=1)
    _, candidates = graph.smallest(approximate, min(k + SPARE, len(points)))
    near = graph.add("Gather", table, candidates, axis=0)
    squares, places = graph.smallest(_add_squares(graph, near, centred), k)
    return graph.add("Sqrt", squares), graph.add("GatherElements", candidates, places, axis=1)


def _add_squares(graph: OnnxGraph, others: str, own: str) -> str:
    """Add squared distances of rows `[batch, k, dim]` to `[batch, dim]`."""
    gaps = graph.add("Sub", others, graph.add("Unsqueeze", own, graph.constant(np.array([1]))))
    return graph.add("ReduceSumSquare", gaps, axes=[2], keepdims=0)


def _add_prediction(graph: OnnxGraph, model: LatentModel, e: str) -> tuple[str, str]:
    """Add mean and deviation of the next state, normalised.

    They are the moments of the mixture of all decoders, each at the mean of all forward networks.
    """
    several = isinstance(model.forward, Mixture)
    forward = model.forward.members if isinstance(model.forward, Mixture) else model.forward
    if several:
        e = graph.add("Unsqueeze", e, graph.constant(np.array([0])))
    x = graph.slice(_add_network(graph, forward.network.network, e), 0, model.latent_size, axis=-1)
    if forward.residual:
        x = graph.add("Add", x, graph.slice(e, 0, model.latent_size, axis=-1))
    # The axis before the rows is the decoder. Of several forward networks, the first is theirs.
    each = graph.add("Unsqueeze", x, graph.constant(np.array([-3])))
    members = [0, 1] if several else [0]
    means = _add_network(graph, model.decoders.mean, each)
    variances = _add_variance(graph, model.decoders, each)
    mean = graph.add("ReduceMean", means, axes=members, keepdims=0)
    disagreement = graph.add("Sub", means, mean)
    squares = graph.add("Add", variances, graph.add("Mul", disagreement, disagreement))
    return mean, graph.add("Sqrt", graph.add("ReduceMean", squares, axes=members, keepdims=0))


def _add_variance(graph: OnnxGraph, decoders: SplitGaussian, x: str) -> str:
    least = graph.constant(np.float32(decoders.minimum_variance))
    raw = decoders.raw_variance
    if isinstance(raw, RadialVariance):
        return graph.add("Add", _add_radial_variance(graph, raw, x), least)
    shifted = graph.add(
        "Add",
        _add_network(graph, raw, x),
        graph.constant(np.float32(softplus_offset(INITIAL_VARIANCE))),
    )
    return graph.add("Add", graph.add("Softplus", shifted), least)


def _add_radial_variance(graph: OnnxGraph, variance: RadialVariance, x: str) -> str:
    """Add `1 / (1 + Σₖ wₖ exp(−‖x − cₖ‖²/2h²))` for every member."""
    centres = np.asarray(variance.centres)[:, None]
    column = graph.add("Unsqueeze", x, graph.constant(np.array([-2])))
    gaps = graph.add("Sub", column, graph.constant(centres))
    squares = graph.add("ReduceSumSquare", gaps, axes=[-1], keepdims=0)
    factor = (-0.5 / np.square(np.asarray(variance.width)))[:, None, None]
    kernels = graph.add("Exp", graph.add("Mul", squares, graph.constant(factor)))
    weights = np.swapaxes(np.asarray(variance.weights), -1, -2)
    total = graph.add("MatMul", kernels, graph.constant(weights))
    one = graph.constant(np.float32(1))
    return graph.add("Div", one, graph.add("Add", total, one))


def _add_bounds(graph: OnnxGraph, bounds: ErrorBounds, deviation: str, scale: np.ndarray) -> None:
    factors = (bounds.per_dimension * scale).astype(np.float32)
    graph.add("Mul", deviation, graph.constant(factors), output="error_bounds")
    squares = graph.add("Mul", deviation, deviation)
    size = graph.add("Sqrt", graph.add("ReduceMean", squares, axes=[1], keepdims=0))
    graph.add("Mul", size, graph.constant(np.float32(bounds.norm)), output="error_bound")


def _add_normalisation(graph: OnnxGraph, x: str) -> str:
    """Add `normalise` of `model/networks.py`."""
    centred = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1], keepdims=1))
    square = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes=[-1], keepdims=1)
    above = graph.add("Add", square, graph.constant(np.float32(NORM_EPSILON)))
    return graph.add("Div", centred, graph.add("Sqrt", above))


def _add_network(graph: OnnxGraph, network: AbstractNetwork, x: str) -> str:
    """Add an MLP, or an ensemble of them with the member as the first axis of `x`."""
    assert isinstance(network, MLP)

    def transpose(weight: Any) -> str:
        return graph.constant(np.swapaxes(np.asarray(weight), -1, -2))

    hidden = x
    for depth, layer in enumerate(network.layers):
        product = graph.add("MatMul", hidden, transpose(layer.weight))
        hidden = graph.add("Add", product, graph.constant(np.asarray(layer.bias)[..., None, :]))
        if depth < len(network.layers) - 1:
            if network.normalised:
                hidden = _add_normalisation(graph, hidden)
            hidden = activate(graph, network.activation, hidden)
    if network.shortcut is None:
        return hidden
    return graph.add("Add", hidden, graph.add("MatMul", x, transpose(network.shortcut.weight)))
