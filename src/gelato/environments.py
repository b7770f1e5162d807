"""The pessimistic MDP of a fitted model in one call: `gelato.pessimistic_env("runs/hopper/model")`."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from gelato.data.transitions import evenly
from gelato.errors import InputError
from gelato.mdp.pessimistic import PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.methods import check_doubt, check_penalty_weight
from gelato.model.training import FittedModel, load_model
from gelato.uncertainty.build import NEIGHBOURS, PenaltyName
from gelato.worlds import latent_dynamics, latent_penalties, seen

_POINTS = 100_000


def pessimistic_env(
    fitted: FittedModel | Path | str,
    *,
    penalty: PenaltyName = "geodesic",
    penalty_weight: float = 1.0,
    horizon: int = 10,
    doubt: float = 0.0,
    num_envs: int = 1,
    seed: int = 0,
    points: int = _POINTS,
) -> PessimisticVectorEnv:
    """A Gymnasium vector environment over a model: rewards `r − λU`, starts from data.

    `doubt` blurs imagined states as in training, where its preset is 0.01 outside of Four Rooms and driving; here it is
    0 unless told.
    """
    fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
    if horizon < 1:
        raise InputError(f"horizon is {horizon}; it must be at least 1")
    check_doubt(doubt)
    check_penalty_weight(penalty_weight)
    fitted = fitted.of_seeds((seed,))
    calibrated = latent_penalties(fitted, 0, (penalty,), NEIGHBOURS, points)[penalty]
    dynamics = latent_dynamics(fitted, 0, doubt)
    train, _ = fitted.parts
    rows = evenly(train, points)
    starts = seen(dynamics, jnp.asarray(fitted.scaling.states(np.asarray(train.states[rows]))))
    mdp = PessimisticMDP(dynamics, calibrated, jnp.asarray(penalty_weight, jnp.float32), starts, horizon)
    return PessimisticVectorEnv(mdp, fitted.scaling.action_space, num_envs)
