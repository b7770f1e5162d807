"""The latent model of the dynamics: networks, objective, two-phase fit, accuracy."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use

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
_HOMES = {
    "FittedModel": "gelato.model.training",
    "LatentModel": "gelato.model.latent",
    "ModelConfig": "gelato.model.config",
    "Scaling": "gelato.model.latent",
    "Split": "gelato.model.split",
    "check_model": "gelato.model.check",
    "fit_latent_model": "gelato.model.training",
    "fit_model": "gelato.model.training",
    "load_model": "gelato.model.training",
    "preset": "gelato.model.config",
    "split_dataset": "gelato.model.split",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
