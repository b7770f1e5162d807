"""Trained policies without JAX: run, evaluate, save, export and film them."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use

if TYPE_CHECKING:
    from gelato.policy.deploy import deploy
    from gelato.policy.encoded_env import EncodedEnv
    from gelato.policy.evaluate import Evaluation, evaluate_policy, open_evaluator
    from gelato.policy.onnx_export import export_guarded, export_onnx
    from gelato.policy.policy import DeployedPolicy, load_policies
    from gelato.policy.video import write_video

__all__ = [
    "DeployedPolicy",
    "EncodedEnv",
    "Evaluation",
    "deploy",
    "evaluate_policy",
    "export_guarded",
    "export_onnx",
    "load_policies",
    "open_evaluator",
    "write_video",
]

# Worker processes import this package, so its modules wait until they are used.
_HOMES = {
    "DeployedPolicy": "gelato.policy.policy",
    "EncodedEnv": "gelato.policy.encoded_env",
    "Evaluation": "gelato.policy.evaluate",
    "deploy": "gelato.policy.deploy",
    "evaluate_policy": "gelato.policy.evaluate",
    "export_guarded": "gelato.policy.onnx_export",
    "export_onnx": "gelato.policy.onnx_export",
    "load_policies": "gelato.policy.policy",
    "open_evaluator": "gelato.policy.evaluate",
    "write_video": "gelato.policy.video",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
