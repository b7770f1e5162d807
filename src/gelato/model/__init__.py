"""The latent model of the dynamics: networks, objective, two-phase fit, accuracy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gelato.model.check import check_model
    from gelato.model.config import ModelConfig, preset
    from gelato.model.latent import LatentModel, Scaling
    from gelato.model.split import Split, split_dataset
    from gelato.model.training import FittedModel, fit_latent_model, fit_model, load_model

__all__ = [
    "FittedModel",
    "LatentModel",
    "ModelConfig",
    "Scaling",
    "Split",
    "check_model",
    "fit_latent_model",
    "fit_model",
    "load_model",
    "preset",
    "split_dataset",
]

# Modules are imported on first use, so that the command line starts without waiting for JAX.
_MODULES = {
    "FittedModel": "training",
    "LatentModel": "latent",
    "ModelConfig": "config",
    "Scaling": "latent",
    "Split": "split",
    "check_model": "check",
    "fit_latent_model": "training",
    "fit_model": "training",
    "load_model": "training",
    "preset": "config",
    "split_dataset": "split",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"gelato.model.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gelato.model' has no attribute {name!r}")
