"""The pessimistic MDP of a fitted model in one call: `gelato.pessimistic_env("runs/hopper")`."""

from pathlib import Path

import jax.numpy as jnp

from gelato.data.transitions import choose_evenly
from gelato.dynamics.fit import PenaltySettings
from gelato.dynamics.latent import FittedLatent, check_state_noise
from gelato.errors import InputError
from gelato.mdp.env import PessimisticEnv
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.model.training import FittedModel, load_model
from gelato.training.method import check_penalty_weight
from gelato.training.population import encode_rows
from gelato.uncertainty.build import NEIGHBOURS, Penalty

_POINTS = 100_000


def pessimistic_env(
    fitted: FittedModel | Path | str,
    *,
    penalty: Penalty = "geodesic",
    penalty_weight: float = 1.0,
    horizon: int = 10,
    state_noise: float = 0.0,
    num_envs: int | None = None,
    seed: int = 0,
    points: int = _POINTS,
) -> PessimisticEnv | PessimisticVectorEnv:
    """Return a model as a Gymnasium environment. Rewards are `r − λU`; episodes start at states of
    the data.

    It is a plain environment, or with `num_envs` a vector environment. To run a policy from this
    environment in the real one, wrap the real environment in `EncodedEnv`.

    `state_noise` adds noise to imagined states as in training, where presets use 0.01 except for
    Four Rooms and driving.
    """
    fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
    if horizon < 1:
        raise InputError(f"horizon={horizon}: must be at least 1")
    check_state_noise(state_noise)
    check_penalty_weight(penalty_weight)
    fitted = fitted.of_seeds((seed,))
    latent = FittedLatent(fitted, state_noise)
    (dynamics,) = latent.dynamics
    settings = PenaltySettings(NEIGHBOURS, points)
    (calibrated,) = latent.build_penalties(0, [penalty], settings)
    train, _ = fitted.parts
    rows = choose_evenly(train, points)
    starts = encode_rows(dynamics, train[rows], fitted.scaling)
    weight = jnp.asarray(penalty_weight, jnp.float32)
    mdp = PessimisticMDP(ImaginedMDP(dynamics, starts, horizon), calibrated, weight)
    if num_envs is None:
        return PessimisticEnv(mdp, fitted.scaling.action_space)
    return PessimisticVectorEnv(mdp, fitted.scaling.action_space, num_envs)
