"""Learned dynamics: the interface, the latent model and the state-space ensemble."""

from gelato.dynamics.ensemble import EnsembleFit
from gelato.dynamics.fit import AbstractFit, AbstractFitted, PenaltySettings
from gelato.dynamics.interface import AbstractDynamics, Imagined
from gelato.dynamics.latent import FittedLatent, LatentDynamics, LatentFit
from gelato.dynamics.state import EnsembleConfig, StateDynamics

__all__ = [
    "AbstractDynamics",
    "AbstractFit",
    "AbstractFitted",
    "EnsembleConfig",
    "EnsembleFit",
    "FittedLatent",
    "Imagined",
    "LatentDynamics",
    "LatentFit",
    "PenaltySettings",
    "StateDynamics",
]
