"""`trust(states, actions)`: for somebody who only wants to know on which inputs the model can be trusted."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, evenly
from gelato.errors import InputError
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel, load_model
from gelato.progress import note
from gelato.results import Record
from gelato.uncertainty.build import PenaltyName, build_penalty
from gelato.uncertainty.calibration import SAMPLE, calibrate, penalise_in_parts
from gelato.uncertainty.embedded import EmbeddedData, embed, foreign_pairs
from gelato.uncertainty.scores import ORDINARY

_SAMPLE = 1024
_PREFERRED: PenaltyName = "transport"
_OTHERWISE: PenaltyName = "geodesic"
# Of foreign pairs.
_MOST = 0.5


@dataclass(frozen=True)
class Verdict:
    """`penalty` is 0 on typical data and 1 on foreign pairs; `trusted` where it is as low as on 95% of the data."""

    penalty: Float[np.ndarray, " n"]
    trusted: Bool[np.ndarray, " n"]


class Trust:
    """A model's judge, made once and asked often: `trust(states, actions)`, in the data's own units.

    `foreign_trusted` is the share of pairs foreign to the data that it would trust: the smaller, the better it judges.
    A penalty that is typically no larger on them than on held-out data is refused. Unless told, `transport` judges, and
    `geodesic` where `transport` would trust most foreign pairs, as it does with little data or a short fit.
    """

    def __init__(self, fitted: FittedModel | Path | str, *, penalty: PenaltyName | None = None, seed: int = 0) -> None:
        fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
        if seed not in fitted.seeds:
            raise InputError(f"{fitted.run.folder}: holds no seed {seed}, only {', '.join(map(str, fitted.seeds))}")
        self.fitted, self.model = fitted, fitted.seed(fitted.seeds.index(seed))
        train, held_out = (embed(self.model, fitted.scaling, part) for part in fitted.parts)
        tells = self._judge_by(penalty or _PREFERRED, train, held_out)
        if penalty is None and not (tells and self.foreign_trusted <= _MOST):
            note(f"{_PREFERRED} would trust {self.foreign_trusted:.0%} of foreign pairs; {_OTHERWISE} distance judges")
            tells = self._judge_by(_OTHERWISE, train, held_out)
        if not tells:
            raise InputError(
                f"{fitted.run.folder}, seed {seed}: {self.penalty} cannot tell foreign pairs from the data; "
                "judge by another penalty, or fit the model to more data"
            )
        if self.foreign_trusted > _MOST:
            note(
                f"{self.penalty} would trust {self.foreign_trusted:.0%} of pairs foreign to the data: take its word "
                "against gross departures only; more data or a longer fit may sharpen it"
            )

    def _judge_by(self, penalty: PenaltyName, train: EmbeddedData, held_out: EmbeddedData) -> bool:
        """Calibrate the penalty and measure it on held-out data and foreign pairs: whether it tells them apart."""
        scaling = self.fitted.scaling
        rows = evenly(held_out, _SAMPLE)
        foreign = foreign_pairs(self.model, scaling, train, SAMPLE, key=jax.random.key(1))
        self.penalty = penalty
        self.calibrated = calibrate(build_penalty(penalty, self.model, train, held_out), self.model, scaling, train)
        inside, outside = (self._penalties(pairs) for pairs in (held_out.embeddings[rows], foreign))
        self.limit = float(jnp.quantile(inside, ORDINARY))
        self.foreign_trusted = float(jnp.mean(outside <= self.limit))
        return bool(jnp.median(outside) > jnp.median(inside))

    def _penalties(self, embeddings: Float[Array, "n embedding"]) -> Float[Array, " n"]:
        return self.calibrated.scale(penalise_in_parts(self.calibrated.penalty, embeddings))

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
        values = np.asarray(self._penalties(embeddings))
        return Verdict(values, values <= self.limit)

    def of_data(self, dataset: Dataset, rows: int) -> list[Record]:
        """Judge at most so many rows of a dataset, spread evenly over it: a record with episode and step for each."""
        transitions = dataset.transitions
        check_spaces(self.fitted, dataset)
        environments = dataset.environment, self.fitted.dataset.environment
        if None not in environments and len(set(environments)) > 1:
            note("{} was recorded in {}, the model's data in {}".format(dataset.reference, *environments))
        if transitions.fingerprint() == self.fitted.run.description["fingerprint"]:
            note(f"{dataset.reference} is the model's own data, where every row it was fitted to is its own neighbour")
        chosen = evenly(transitions, rows)
        try:
            verdict = self(np.asarray(transitions.states)[chosen], np.asarray(transitions.actions)[chosen])
        except InputError as error:
            raise InputError(f"{dataset.reference}: {error}") from error
        if not np.isfinite(verdict.penalty).all():
            row = chosen[~np.isfinite(verdict.penalty)][0]
            raise InputError(f"{dataset.reference}: row {row} is too far from the model's data for a finite distance")
        starts = np.array([episode.start for episode in transitions.episode_slices])
        episodes = np.searchsorted(starts, chosen, side="right") - 1
        steps = chosen - starts[episodes]
        columns = zip(episodes.tolist(), steps.tolist(), verdict.penalty.tolist(), verdict.trusted.tolist())
        return [dict(zip(("episode", "step", "penalty", "trusted"), row)) for row in columns]

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


def check_spaces(fitted: FittedModel, dataset: Dataset) -> None:
    """Refuse data whose states or actions are not those a model was fitted to."""
    sizes = [data.transitions.states.shape[1] for data in (dataset, fitted.dataset)]
    spaces = dataset.transitions.action_space, fitted.scaling.action_space
    found = [
        f"its {name}, the model's {known}"
        for name, own, known in ((f"actions are {spaces[0]}", *spaces), (f"states are {sizes[0]} numbers", *sizes))
        if own != known
    ]
    if found:
        remedy = "; say low= and high=, or discrete=" if sizes[0] == sizes[1] else ""
        raise InputError(f"{dataset.reference}: {'; '.join(found)}{remedy}")


@eqx.filter_jit
def _embeddings(
    model: LatentModel, states: Float[Array, "n state"], actions: Float[Array, "n action"]
) -> Float[Array, "n embedding"]:
    pairs = (states, actions)
    return jax.lax.map(lambda pair: model.embedding(model.encode(pair[0]).mean, pair[1]), pairs, batch_size=1024)
