"""Nodes and constants of an ONNX graph, and the networks of a policy as nodes."""

from typing import Any

import numpy as np

from gelato.policy.policy import Stage

# ONNX takes the largest integer for the end of an axis.
_END = np.iinfo(np.int64).max


def add_stage(graph: "OnnxGraph", stage: Stage, x: str) -> str:
    """Add a stage of a policy; return the name of its output."""
    hidden = x
    for weight, bias in stage.layers[:-1]:
        hidden = activate(graph, stage.activation, graph.affine(hidden, weight, bias))
    out = graph.affine(hidden, *stage.layers[-1])
    if stage.shortcut is not None:
        out = graph.add("Add", out, graph.add("MatMul", x, graph.constant(stage.shortcut.T)))
    return graph.slice(out, 0, stage.outputs)


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
