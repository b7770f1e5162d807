"""Encoder and policy as one ONNX graph, checked against the original policy."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gelato.data.spaces import Discrete
from gelato.errors import InputError
from gelato.policy.policy import DeployedPolicy, Stage
from gelato.runs.files import write_atomically

# The largest deviation allowed, as a share of half the action range.
TOLERANCE = 1e-5
_OPSET = 17
_ROWS = 256


def export_onnx(
    policy: DeployedPolicy, path: Path, metadata: Mapping[str, str] | None = None
) -> float:
    """Write the graph `observation[batch, state] -> action`; return its largest deviation.

    The unit is half the range of an action, or 1 if that is larger. `metadata` is stored in the
    file, next to the version of gelato.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "ONNX export needs two more packages: pip install 'gelato-rl[onnx]'"
        ) from error
    model = _make_model(policy)
    model.producer_name, model.producer_version = "gelato", version("gelato-rl")
    model.doc_string = "A policy: observations in the environment's units to actions."
    onnx.helper.set_model_props(model, dict(metadata or {}))
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    observations = (
        policy.mean + 2 * policy.scale * rng.standard_normal((_ROWS, len(policy.mean)))
    ).astype(np.float32)
    found = np.asarray(session.run(None, {"observation": observations})[0])
    space = policy.space
    unit = (
        1.0
        if isinstance(space, Discrete)
        else np.maximum(1, np.subtract(space.high, space.low) / 2)
    )
    difference = float(
        np.max(np.abs(found - np.array([policy(row) for row in observations])) / unit)
    )
    if not difference <= TOLERANCE:
        raise InputError(
            f"{path}: the exported graph differs from the policy by {difference:.2g}; not written"
        )
    with write_atomically(path) as partial:
        partial.write_bytes(content)
    return difference


def _make_model(policy: DeployedPolicy) -> Any:
    from onnx import TensorProto, helper

    graph = _Graph()
    x = graph.add(
        "Div",
        graph.add("Sub", "observation", graph.constant(policy.mean)),
        graph.constant(policy.scale),
    )
    for stage in policy.stages:
        x = _stage(graph, stage, x)
    if isinstance(policy.space, Discrete):
        graph.add("ArgMax", x, output="action", axis=1, keepdims=0)
        out = helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"])
    else:
        low, high = np.array(policy.space.low, np.float32), np.array(policy.space.high, np.float32)
        scaled = graph.add("Mul", graph.add("Tanh", x), graph.constant((high - low) / 2))
        graph.add("Add", scaled, graph.constant((high + low) / 2), output="action")
        out = helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", len(low)])
    observation = helper.make_tensor_value_info(
        "observation", TensorProto.FLOAT, ["batch", len(policy.mean)]
    )
    made = helper.make_graph(graph.nodes, "policy", [observation], [out], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _stage(graph: "_Graph", stage: Stage, x: str) -> str:
    hidden = x
    for weight, bias in stage.layers[:-1]:
        hidden = _activate(graph, stage.activation, graph.affine(hidden, weight, bias))
    out = graph.affine(hidden, *stage.layers[-1])
    if stage.shortcut is not None:
        out = graph.add("Add", out, graph.add("MatMul", x, graph.constant(stage.shortcut.T)))
    ends = [np.array([value], np.int64) for value in (0, stage.outputs, 1)]
    return graph.add("Slice", out, *(graph.constant(end) for end in ends))


def _activate(graph: "_Graph", activation: str, x: str) -> str:
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


class _Graph:
    """Nodes and constants, each with a unique name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(
        self, operation: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        from onnx import helper

        name = output or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def affine(self, x: str, weight: np.ndarray, bias: np.ndarray) -> str:
        return self.add("Add", self.add("MatMul", x, self.constant(weight.T)), self.constant(bias))
