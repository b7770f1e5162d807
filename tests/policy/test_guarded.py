"""The exported guard is the guard: same actions, penalties, verdicts and bounds."""

import dataclasses
from itertools import product
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest

from gelato.agents.networks import Actor
from gelato.data.reference import load
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.model import training
from gelato.model.config import preset
from gelato.model.training import FittedModel
from gelato.policy.deploy import deploy
from gelato.policy.onnx_export import export_guarded, measure_latency
from gelato.policy.policy import DeployedPolicy
from gelato.uncertainty.trust import Trust

onnxruntime = pytest.importorskip("onnxruntime")
# One with continuous actions, one with discrete actions and radial variances.
REFERENCES = ("hopper-medium,transitions=2000", "four-rooms,transitions=500")
# One forward network, or several with normalised layers.
FORWARDS = ({}, {"forwards": 3, "forward_norm": True})


@pytest.fixture(scope="module", params=product(REFERENCES, FORWARDS), ids=str)
def fitted(
    request: pytest.FixtureRequest, shared_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> FittedModel:
    """Make an untrained model; the comparison with the graph works for any network."""
    del shared_store
    reference, several = request.param
    dataset = load(reference)
    small = dataclasses.replace(
        preset("default", dataset),
        decoders=3,
        hidden=(16,),
        forward_hidden=(16,),
        batch_size=32,
        variance_centres=7 if "rooms" in reference else 0,
        **several,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        return training.fit_model(dataset, tmp_path_factory.mktemp("runs") / "run", config=small)


def make_policy(trust: Trust) -> DeployedPolicy:
    scaling = trust.fitted.scaling
    actor = Actor(trust.model.latent_size, scaling.action_space, (16,), key=jax.random.key(1))
    return deploy(actor, trust.model.encoder, scaling)


def test_the_graph_gives_actions_penalties_verdicts_and_bounds(
    fitted: FittedModel, tmp_path: Path
) -> None:
    trust = Trust(fitted, points=300)
    policy, path = make_policy(trust), tmp_path / "guarded.onnx"
    differences = export_guarded(policy, trust, path, {"method": "test"})
    assert differences.action <= 1e-5 and differences.penalty <= 1e-4
    model = onnx.load(path)
    used = {name for node in model.graph.node for name in node.input}
    # onnxruntime warns about every constant that no node uses.
    assert {constant.name for constant in model.graph.initializer} <= used
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert stored["prototypes"] == "300" and stored["method"] == "test"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    train = fitted.parts[0]
    states = np.asarray(train.states)[choose_evenly(train, 40)]
    names = ["action", "penalty", "trusted", "next_state", "error_bound", "error_bounds"]
    found = dict(zip(names, session.run(names, {"observation": states}), strict=True))
    expected = trust(states, policy(states))
    np.testing.assert_allclose(found["action"], policy(states), atol=1e-5)
    np.testing.assert_allclose(found["penalty"], expected.penalty, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["next_state"], expected.next_states, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["error_bounds"], expected.error_bounds, rtol=1e-3)
    np.testing.assert_allclose(found["error_bound"], expected.error_bound, rtol=1e-3)
    sure = np.abs(expected.penalty - trust.limit) > 1e-3
    np.testing.assert_array_equal(found["trusted"][sure], expected.trusted[sure])
    # A single row has the same outputs as in a batch.
    (alone,) = session.run(["penalty"], {"observation": states[:1]})
    np.testing.assert_allclose(alone, found["penalty"][:1], rtol=1e-4, atol=1e-5)
    assert measure_latency(path, steps=20)[0] > 0


def test_only_the_guard_can_be_exported(fitted: FittedModel, tmp_path: Path) -> None:
    trust = Trust(fitted, penalty="euclidean")
    with pytest.raises(InputError, match="'euclidean' cannot be exported"):
        export_guarded(make_policy(trust), trust, tmp_path / "guarded.onnx")
    assert list(tmp_path.iterdir()) == []
