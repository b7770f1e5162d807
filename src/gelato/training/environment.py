"""The pessimistic MDP of a fitted model in one call: `gelato.pessimistic_env("runs/hopper")`."""

from pathlib import Path

import jax.numpy as jnp

from gelato.agents.logged import check_discount, check_truncation
from gelato.arrays import stack
from gelato.data.transitions import choose_evenly
from gelato.dynamics.fit import PenaltySettings
from gelato.dynamics.latent import FittedLatent, check_state_noise
from gelato.errors import InputError
from gelato.mdp.env import PessimisticEnv
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP, make_limit
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.model.training import FittedModel, load_model
from gelato.training.method import check_penalty_weight
from gelato.training.population import encode_rows, measure_limits
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
    truncation: float | None = None,
    discount: float = 0.99,
) -> PessimisticEnv | PessimisticVectorEnv:
    """Return a model as a Gymnasium environment. Rewards are `r − λU`; episodes start at states of
    the data.

    It is a plain environment, or with `num_envs` a vector environment. To run a policy from this
    environment in the real one, wrap the real environment in `EncodedEnv`.

    With `truncation`, an episode terminates where U exceeds this quantile of U over held-out data
    (1: the maximum). Its last reward is then the lowest value of the known region, for this
    `discount`.

    `state_noise` adds noise to imagined states as in training, where presets use 0.01 except for
    Four Rooms and driving.
    """
    fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
    if horizon < 1:
        raise InputError(f"horizon={horizon}: must be at least 1")
    check_state_noise(state_noise)
    check_penalty_weight(penalty_weight)
    check_truncation(truncation)
    check_discount(discount)
    fitted = fitted.of_seeds((seed,))
    latent = FittedLatent(fitted, state_noise)
    (dynamics,) = latent.dynamics
    settings = PenaltySettings(NEIGHBOURS, points)
    (calibrated,) = latent.build_penalties(0, [penalty], settings)
    train, _ = fitted.parts
    rows = choose_evenly(train, points)
    starts = encode_rows(dynamics, train[rows], fitted.scaling)
    weight = jnp.asarray(penalty_weight, jnp.float32)
    limit = None
    if truncation is not None:
        (largest,) = measure_limits(latent, fitted.split, [stack([calibrated])], truncation)
        lowest = jnp.asarray(fitted.dataset.transitions.rewards, jnp.float32).min()
        limit = make_limit(largest[0], lowest, weight, discount)
    mdp = PessimisticMDP(ImaginedMDP(dynamics, starts, horizon), calibrated, weight, limit)
    if num_envs is None:
        return PessimisticEnv(mdp, fitted.scaling.action_space)
    return PessimisticVectorEnv(mdp, fitted.scaling.action_space, num_envs)
