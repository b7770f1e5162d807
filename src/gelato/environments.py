"""The pessimistic MDP of a fitted model in one call: `gelato.pessimistic_env("runs/hopper/model")`."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.envs.termination import termination_rule
from gelato.errors import InputError
from gelato.mdp.dynamics import LatentDynamics
from gelato.mdp.pessimistic import PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel, load_model
from gelato.uncertainty.build import PenaltyName, build_penalty
from gelato.uncertainty.calibration import calibrate
from gelato.uncertainty.embedded import embed

_POINTS = 100_000


def pessimistic_env(
    fitted: FittedModel | Path | str,
    *,
    penalty: PenaltyName = "geodesic",
    penalty_weight: float = 1.0,
    horizon: int = 10,
    num_envs: int = 1,
    seed: int = 0,
    points: int = _POINTS,
) -> PessimisticVectorEnv:
    """A Gymnasium vector environment over a fitted model: rewards `r − λU`, starts from the data."""
    fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
    if horizon < 1:
        raise InputError(f"horizon is {horizon}; it must be at least 1")
    model = fitted.of_seeds((seed,)).seed(0)
    train, held_out = fitted.parts
    data, known = (embed(model, fitted.scaling, part, min(points, len(part))) for part in (train, held_out))
    chords = model.latent_size >= train.states.shape[1]
    calibrated = calibrate(build_penalty(penalty, model, data, known, chords=chords), model, fitted.scaling, data)
    rule = termination_rule(fitted.dataset.environment)
    rows = np.linspace(0, len(train) - 1, min(points, len(train))).astype(int)
    starts = _latents(model, jnp.asarray(fitted.scaling.states(np.asarray(train.states[rows]))))
    mdp = PessimisticMDP(
        LatentDynamics(model, fitted.scaling, rule),
        calibrated,
        jnp.asarray(penalty_weight, jnp.float32),
        starts,
        horizon,
    )
    return PessimisticVectorEnv(mdp, fitted.scaling.action_space, num_envs)


@eqx.filter_jit
def _latents(model: LatentModel, states: Float[Array, "n state"]) -> Float[Array, "n latent"]:
    return jax.lax.map(lambda state: model.encode(state).mean, states, batch_size=min(4096, len(states)))
