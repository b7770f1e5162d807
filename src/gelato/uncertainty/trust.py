"""`trust(states, actions)`: for somebody who only wants to know on which inputs the model can be trusted."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from gelato.data.spaces import Discrete
from gelato.errors import InputError
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel, load_model
from gelato.uncertainty.build import PenaltyName, build_penalty
from gelato.uncertainty.calibration import Calibrated, calibrate
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import penalise
from gelato.uncertainty.scores import ORDINARY

_SAMPLE = 1024


@dataclass(frozen=True)
class Verdict:
    """`penalty` is 0 on typical data and 1 on foreign pairs; `trusted` where it is as low as on 95% of the data."""

    penalty: Float[np.ndarray, " n"]
    trusted: Bool[np.ndarray, " n"]


class Trust:
    """A model's judge, made once and asked often: `trust(states, actions)`, in the data's own units."""

    def __init__(self, fitted: FittedModel | Path | str, *, penalty: PenaltyName = "transport", seed: int = 0) -> None:
        fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
        if seed not in fitted.seeds:
            raise InputError(f"{fitted.run.folder}: holds no seed {seed}, only {', '.join(map(str, fitted.seeds))}")
        self.fitted, self.model = fitted, fitted.seed(fitted.seeds.index(seed))
        train, held_out = (embed(self.model, fitted.scaling, part) for part in fitted.parts)
        raw = build_penalty(penalty, self.model, train, held_out)
        self.calibrated: Calibrated = calibrate(raw, self.model, fitted.scaling, train)
        rows = np.linspace(0, len(held_out) - 1, min(len(held_out), _SAMPLE)).astype(int)
        self.limit = float(jnp.quantile(penalise(self.calibrated, held_out.embeddings[rows]), ORDINARY))

    def __call__(self, states: Float[np.ndarray, "n state"], actions: Num[np.ndarray, "n *action"]) -> Verdict:
        """Judge state-action pairs."""
        try:
            states, actions = np.asarray(states, np.float32), np.asarray(actions, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"states and actions must be arrays of numbers ({error})") from error
        self._check(states, actions)
        scaling = self.fitted.scaling
        normalised = jnp.asarray(scaling.states(states))
        whole = actions.astype(int) if isinstance(scaling.action_space, Discrete) else actions
        embeddings = _embeddings(self.model, normalised, scaling.action_space.encode(whole))
        values = np.asarray(penalise(self.calibrated, embeddings))
        return Verdict(values, values <= self.limit)

    def _check(self, states: np.ndarray, actions: np.ndarray) -> None:
        size, space = self.fitted.dataset.transitions.states.shape[1], self.fitted.scaling.action_space
        shape = () if isinstance(space, Discrete) else (space.size,)
        if states.ndim != 2 or states.shape[1] != size or len(states) == 0:
            raise InputError(f"states have shape {states.shape}; pass at least one row of {size} numbers")
        if actions.shape != (len(states), *shape):
            raise InputError(f"actions have shape {actions.shape}; {(len(states), *shape)} belongs to these states")
        for name, array in (("states", states), ("actions", actions)):
            if not np.isfinite(array).all():
                raise InputError(f"{name} hold NaN or infinity in row {np.argwhere(~np.isfinite(array))[0][0]}")
        low, high = (0, space.n - 1) if isinstance(space, Discrete) else (np.array(space.low), np.array(space.high))
        outside = (actions < np.asarray(low)) | (actions > np.asarray(high))
        if isinstance(space, Discrete):
            outside |= actions != np.rint(actions)
        if outside.any():
            raise InputError(f"action in row {np.argwhere(outside)[0][0]} lies outside the actions [{low}, {high}]")


@eqx.filter_jit
def _embeddings(
    model: LatentModel, states: Float[Array, "n state"], actions: Float[Array, "n action"]
) -> Float[Array, "n embedding"]:
    pairs = (states, actions)
    return jax.lax.map(lambda pair: model.embedding(model.encode(pair[0]).mean, pair[1]), pairs, batch_size=1024)
