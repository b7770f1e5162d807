"""A policy as one ONNX graph, alone or with its guard, checked against the original.

    observation ─► action
                └► penalty, trusted, next_state, error_bound, error_bounds     with a guard

A policy that reads a history has one more input and output: `window`, and `next_window` to pass in
the next step. An episode begins with a window of zeros.

onnxruntime runs the graph before the file is written, and every output is compared.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gelato.data.history import encode_actions
from gelato.data.spaces import Discrete
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError, import_extra, make_printable
from gelato.policy.onnx_graph import OnnxGraph, add_inputs, add_memory, add_stage
from gelato.policy.onnx_guard import add_guard, encode_action
from gelato.policy.policy import DeployedPolicy
from gelato.runs.files import write_atomically
from gelato.uncertainty.trust import Trust, Verdict

# The largest deviation allowed: of actions, as a share of half the action range, of penalties, and
# of error bounds.
TOLERANCE, PENALTY_TOLERANCE, BOUND_TOLERANCE = 1e-5, 1e-4, 1e-3
_OPSET = 17
_ROWS = 256

Run = Callable[[Float[np.ndarray, "n input"]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Differences:
    """The largest differences between a guarded graph and the original.

    `action` is in halves of the action range. `penalty` is relative where the penalty is above 1.
    `bound` covers the next state and its error bounds, relative to the bound.
    """

    action: float
    penalty: float
    bound: float


class Latency(NamedTuple):
    """Milliseconds of a step: median, 99% quantile, and the 99% quantile of computing time.

    Computing time does not count waiting for a core that other programs use.
    """

    median: float
    high: float
    computing: float


def export_onnx(
    policy: DeployedPolicy, path: Path, metadata: Mapping[str, str] | None = None
) -> float:
    """Write the graph `observation[batch, state] -> action`; return its largest deviation.

    With a history it is `observation, window -> action, next_window`.

    The unit is half the range of an action, or 1 if that is larger. `metadata` is stored in the
    file, next to the version of gelato.
    """
    import_packages()
    graph = OnnxGraph()
    content = _make_model(policy, graph, _add_policy(graph, policy), metadata)
    difference = _compare_actions(policy, _open(content, policy), sample_inputs(policy))
    if not difference <= TOLERANCE:
        raise InputError(
            f"{path}: the exported graph differs from the policy by {difference:.2g}; not written"
        )
    with write_atomically(path) as partial:
        partial.write_bytes(content)
    return difference


def export_guarded(
    policy: DeployedPolicy, trust: Trust, path: Path, metadata: Mapping[str, str] | None = None
) -> Differences:
    """Write one graph `observation -> action, penalty, trusted, next_state, error bounds`.

    `trust` judges the policy's action at the observation. Its data points, the prototypes, are part
    of the graph. The names of the outputs are those of the fields of `Verdict`.
    """
    import_packages()
    graph = OnnxGraph()
    outputs = [*_add_policy(graph, policy), *add_guard(graph, trust, policy.space)]
    known = {
        "penalty": trust.penalty,
        "prototypes": str(trust.points),
        "limit": f"{trust.limit:.6g}",
        "false_alarm_rate": f"{trust.false_alarm_rate:.4g}",
        "coverage": f"{trust.bounds.coverage:.4g}",
        "calibration_episodes": str(trust.episodes),
    }
    content = _make_model(policy, graph, outputs, {**known, **(metadata or {})})
    run = _open(content, policy)
    # Logged states, and states two deviations around them: inside and outside of the data.
    train = trust.fitted.parts[0]
    logged = train[choose_evenly(train, _ROWS)].inputs
    observations = np.concatenate([logged, sample_inputs(policy)])
    found = run(observations)
    differences = _compare_verdicts(trust(observations, found["action"]), found, trust)
    action = _compare_actions(policy, run, observations)
    differences = Differences(action, differences.penalty, differences.bound)
    exact = differences.action <= TOLERANCE and differences.penalty <= PENALTY_TOLERANCE
    if not (exact and differences.bound <= BOUND_TOLERANCE):
        raise InputError(
            f"{path}: the exported graph differs from the original (action "
            f"{differences.action:.2g}, penalty {differences.penalty:.2g}, bounds "
            f"{differences.bound:.2g}); not written"
        )
    with write_atomically(path) as partial:
        partial.write_bytes(content)
    return differences


def sample_inputs(policy: DeployedPolicy) -> Float[np.ndarray, "n input"]:
    """Sample observations with twice the spread of the data, or windows of them."""
    rng, layout = np.random.default_rng(0), policy.layout

    def observe() -> Float[np.ndarray, "n state"]:
        noise = rng.standard_normal((_ROWS, layout.state_size))
        return (policy.mean + 2 * policy.scale * noise).astype(np.float32)

    # The windows of episodes that began at most `history` steps ago.
    ages = rng.integers(layout.history, size=_ROWS)
    memory = np.zeros((_ROWS, layout.memory_size), np.float32)
    for step in range(1, layout.history):
        window = np.asarray(layout.open(observe(), memory))
        taken = np.asarray(layout.remember(window, _sample_actions(policy, rng)))
        memory = np.where((ages >= layout.history - step)[:, None], taken, memory)
    return np.asarray(layout.open(observe(), memory))


def _sample_actions(
    policy: DeployedPolicy, rng: np.random.Generator
) -> Float[np.ndarray, "n action"]:
    space = policy.space
    if isinstance(space, Discrete):
        return encode_actions(space, rng.integers(space.n, size=_ROWS))
    return rng.uniform(space.low, space.high, (_ROWS, space.size)).astype(np.float32)


def measure_latency(path: Path, steps: int = 2_000) -> Latency:
    """Measure the milliseconds of a step on one core."""
    _, onnxruntime = import_packages()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    given = {}
    for each in session.get_inputs():
        given[each.name] = rng.normal(size=(_ROWS, 1, each.shape[1])).astype(np.float32)
    passed, computing = [], []
    for step in range(steps + _ROWS):
        begin, own_begin = time.perf_counter(), time.thread_time()
        session.run(None, {name: values[step % _ROWS] for name, values in given.items()})
        computing.append(1_000 * (time.thread_time() - own_begin))
        passed.append(1_000 * (time.perf_counter() - begin))
    # The first steps warm up caches.
    median, high = np.quantile(passed[_ROWS:], (0.5, 0.99))
    return Latency(float(median), float(high), float(np.quantile(computing[_ROWS:], 0.99)))


def _add_policy(graph: OnnxGraph, policy: DeployedPolicy) -> list[Any]:
    """Add the nodes from the observation to the action; return the outputs."""
    from onnx import TensorProto, helper

    layout = policy.layout
    action = _add_action(graph, policy)
    if layout.history == 1:
        return [action]
    add_memory(graph, layout, encode_action(graph, policy.space))
    shape: list[str | int] = ["batch", layout.memory_size]
    window = helper.make_tensor_value_info("next_window", TensorProto.FLOAT, shape)
    return [action, window]


def _add_action(graph: OnnxGraph, policy: DeployedPolicy) -> Any:
    from onnx import TensorProto, helper

    x, width = add_inputs(graph, policy.layout, policy.mean, policy.scale), policy.layout.size
    for stage in policy.stages:
        x, width = add_stage(graph, stage, x, width), stage.outputs
    if isinstance(policy.space, Discrete):
        graph.add("ArgMax", x, output="action", axis=1, keepdims=0)
        return helper.make_tensor_value_info("action", TensorProto.INT64, ["batch"])
    low, high = np.array(policy.space.low, np.float32), np.array(policy.space.high, np.float32)
    scaled = graph.add("Mul", graph.add("Tanh", x), graph.constant((high - low) / 2))
    # Rounding may leave the box by one digit, and the environment would refuse that.
    shifted = graph.add("Add", scaled, graph.constant((high + low) / 2))
    bounded = graph.add("Min", shifted, graph.constant(high))
    graph.add("Max", bounded, graph.constant(low), output="action")
    return helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", len(low)])


def _make_model(
    policy: DeployedPolicy, graph: OnnxGraph, outputs: list[Any], metadata: Mapping[str, str] | None
) -> bytes:
    """Return the checked content of the file."""
    onnx, _ = import_packages()
    layout, inputs = policy.layout, []
    for name, size in (("observation", layout.state_size), ("window", layout.memory_size)):
        if size:
            inputs.append(
                onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])
            )
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    opset = onnx.helper.make_opsetid("", _OPSET)
    model = onnx.helper.make_model(made, opset_imports=[opset], ir_version=8)
    model.producer_name, model.producer_version = "gelato", version("gelato-rl")
    model.doc_string = "A policy: observations in the environment's units to actions."
    known = {name: make_printable(text) for name, text in (metadata or {}).items()}
    onnx.helper.set_model_props(model, known)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _open(content: bytes, policy: DeployedPolicy) -> Run:
    """Return a function of the policy's inputs that runs the graph and names its outputs."""
    layout = policy.layout
    _, onnxruntime = import_packages()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Float[np.ndarray, "n input"]) -> dict[str, np.ndarray]:
        given = {"observation": inputs[:, : layout.state_size]}
        if layout.history > 1:
            given["window"] = inputs[:, layout.row_size :]
        found = {}
        for name, values in zip(names, session.run(None, given), strict=True):
            # onnxruntime's integers have a C type of their own, which annotations do not know.
            found[name] = np.asarray(values).astype(values.dtype.name)
        return found

    return run


def _compare_actions(
    policy: DeployedPolicy, run: Run, observations: Float[np.ndarray, "n input"]
) -> float:
    space = policy.space
    unit = (
        1.0
        if isinstance(space, Discrete)
        else np.maximum(1, np.subtract(space.high, space.low) / 2)
    )
    expected = np.array([policy(row) for row in observations])
    found = run(observations)
    difference = float(np.max(np.abs(found["action"] - expected) / unit))
    if policy.history > 1:
        encoded = encode_actions(space, found["action"])
        memory = policy.layout.remember(observations, encoded)
        difference = max(difference, float(np.max(np.abs(found["next_window"] - memory))))
    return difference


def _compare_verdicts(expected: Verdict, found: dict[str, np.ndarray], trust: Trust) -> Differences:
    """Compare everything but the action. `trusted` may differ where rounding decides."""
    size = np.maximum(1, expected.penalty)
    penalty = np.abs(found["penalty"] - expected.penalty) / size
    bounds = expected.error_bounds
    others = [
        np.abs(found["next_state"] - expected.next_states) / np.maximum(bounds, 1e-2),
        np.abs(found["error_bounds"] / bounds - 1),
        np.abs(found["error_bound"] / expected.error_bound - 1),
    ]
    decided = np.abs(expected.penalty - trust.limit) > PENALTY_TOLERANCE * size
    if (found["trusted"] != expected.trusted)[decided].any():
        raise InputError("the exported graph trusts other pairs than the original; not written")
    return Differences(0.0, float(penalty.max()), max(float(other.max()) for other in others))


def import_packages() -> tuple[Any, Any]:
    """Import onnx and onnxruntime, or raise an error that names the extra."""
    return import_extra("onnx", "onnx"), import_extra("onnxruntime", "onnx")
