"""Nodes and constants of an ONNX graph, and the networks of a policy as nodes."""

from typing import Any

import numpy as np

from gelato.data.history import WindowLayout
from gelato.policy.policy import Stage

# ONNX takes the largest integer for the end of an axis.
_END = np.iinfo(np.int64).max


def add_inputs(
    graph: "OnnxGraph", layout: WindowLayout, mean: np.ndarray, scale: np.ndarray
) -> str:
    """Add what a policy reads, normalised: `observation`, with a history also `window`.

    `window` holds the steps before the observation, as `gelato.data.history` calls the memory.
    """
    x = graph.standardise("observation", mean, scale)
    if layout.history == 1:
        return x
    known = graph.add("Reshape", "window", _make_shape(graph, -1, layout.row_size))
    others = (0, layout.action_size + 1)
    flag = graph.slice(known, layout.row_size - 1, None)
    level = graph.add("Mul", flag, graph.constant(np.pad(mean, others)))
    unit = graph.constant(np.pad(scale, others, constant_values=1))
    rows = graph.add("Div", graph.add("Sub", known, level), unit)
    memory = graph.add("Reshape", rows, _make_shape(graph, -1, layout.memory_size))
    return graph.add("Concat", _add_row(graph, layout, x), memory, axis=1)


def add_memory(graph: "OnnxGraph", layout: WindowLayout, action: str) -> None:
    """Add the output `next_window`, which is the input `window` of the next step.

    `action` is the action as models receive it.
    """
    row = _add_row(graph, layout, "observation", action)
    kept = graph.slice("window", 0, layout.memory_size - layout.row_size)
    graph.add("Concat", row, kept, axis=1, output="next_window")


def _add_row(
    graph: "OnnxGraph", layout: WindowLayout, observation: str, action: str | None = None
) -> str:
    """Add the row of a window with this observation and action, or with none."""
    # Columns of zeros for every row of the batch, whose size is not known.
    first = graph.slice(observation, 0, 1)
    none = np.zeros((layout.action_size, 1), np.float32)
    no_action = graph.affine(first, none, none[:, 0])
    known = graph.affine(first, np.zeros((1, 1), np.float32), np.ones(1, np.float32))
    return graph.add("Concat", observation, action or no_action, known, axis=1)


def _make_shape(graph: "OnnxGraph", *sizes: int) -> str:
    return graph.constant(np.array(sizes, np.int64))


def add_stage(graph: "OnnxGraph", stage: Stage, x: str, inputs: int) -> str:
    """Add a stage of a policy with so many inputs; return the name of its output."""
    if stage.kept is not None:
        x, inputs = _add_convolutions(graph, stage, stage.kept, x)
    hidden, width = x, inputs
    for depth, (weight, bias) in enumerate(stage.layers):
        hidden, width = _add_layer(graph, weight, bias, hidden, width)
        if depth < len(stage.layers) - 1:
            hidden = activate(graph, stage.activation, hidden)
    out = hidden
    if stage.shortcut is not None:
        out = graph.add("Add", out, graph.add("MatMul", x, graph.constant(stage.shortcut.T)))
    return graph.slice(out, 0, stage.outputs)


def _add_layer(
    graph: "OnnxGraph", weight: np.ndarray, bias: np.ndarray, x: str, width: int
) -> tuple[str, int]:
    """Add a layer, which reads a longer input in blocks; return its output and its width."""
    blocks = width // weight.shape[1]
    if blocks > 1:
        x = graph.add("Reshape", x, _make_shape(graph, -1, weight.shape[1]))
    x, width = graph.affine(x, weight, bias), blocks * len(bias)
    if blocks > 1:
        x = graph.add("Reshape", x, _make_shape(graph, -1, width))
    return x, width


def _add_convolutions(
    graph: "OnnxGraph", stage: Stage, kept: np.ndarray, x: str
) -> tuple[str, int]:
    """Add the kept inputs of a stage and the features of its images."""
    zero = graph.affine(graph.slice(x, 0, 1), np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    padded, parts, total = graph.add("Concat", x, zero, axis=1), [], len(kept)
    if len(kept):
        parts.append(graph.add("Gather", x, graph.constant(kept.astype(np.int64)), axis=1))
    for each in stage.convolutions:
        places = graph.constant(each.places.astype(np.int64))
        hidden, width = graph.add("Gather", padded, places, axis=1), len(each.places)
        for weight, bias in each.layers:
            hidden, width = _add_layer(graph, weight, bias, hidden, width)
            hidden = activate(graph, stage.activation, hidden)
        parts.append(hidden)
        total += width
    return graph.add("Concat", *parts, axis=1), total


def activate(graph: "OnnxGraph", activation: str, x: str) -> str:
    """Add an activation."""
    if activation == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if activation == "gelu":
        cube = graph.add(
            "Mul", graph.add("Mul", x, x), graph.add("Mul", x, graph.constant(np.float32(0.044715)))
        )
        inner = graph.add(
            "Mul", graph.add("Add", x, cube), graph.constant(np.float32(np.sqrt(2 / np.pi)))
        )
        half = graph.add("Mul", x, graph.constant(np.float32(0.5)))
        return graph.add(
            "Mul", half, graph.add("Add", graph.add("Tanh", inner), graph.constant(np.float32(1)))
        )
    return graph.add({"tanh": "Tanh", "softplus": "Softplus", "relu": "Relu"}[activation], x)


class OnnxGraph:
    """Nodes and constants, each with a unique name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Add an array."""
        from onnx import numpy_helper

        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(
        self, operation: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output; return the name of the output."""
        from onnx import helper

        name = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def affine(self, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """Add `W x + b`."""
        return self.add("Add", self.add("MatMul", x, self.constant(weight.T)), self.constant(bias))

    def standardise(self, x: str, mean: np.ndarray, scale: np.ndarray) -> str:
        """Add `(x − mean) / scale`."""
        return self.add("Div", self.add("Sub", x, self.constant(mean)), self.constant(scale))

    def slice(self, x: str, start: int, stop: int | None, axis: int = 1) -> str:
        """Add a slice of one axis."""
        ends = (start, _END if stop is None else stop, axis)
        return self.add("Slice", x, *(self.constant(np.array([end], np.int64)) for end in ends))

    def smallest(self, x: str, k: int) -> tuple[str, str]:
        """Add the `k` smallest values of each row and their places, smallest first."""
        from onnx import helper

        names = [f"value{len(self.nodes)}", f"place{len(self.nodes)}"]
        inputs = [x, self.constant(np.array([k], np.int64))]
        self.nodes.append(helper.make_node("TopK", inputs, names, axis=1, largest=0, sorted=1))
        return names[0], names[1]
