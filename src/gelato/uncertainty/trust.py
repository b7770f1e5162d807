"""`trust(states, actions)`: on which inputs the model can be trusted."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, choose_evenly
from gelato.errors import InputError
from gelato.model.latent import LatentModel
from gelato.model.training import FittedModel, load_model
from gelato.progress import note
from gelato.runs.records import Record
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty, name_penalty
from gelato.uncertainty.calibration import SAMPLE, calibrate, penalise_in_parts
from gelato.uncertainty.embedded import EmbeddedData, embed, sample_out_of_distribution
from gelato.uncertainty.scores import ORDINARY

_SAMPLE = 1024
_PREFERRED = "transport"
_FALLBACK = "geodesic"
# Largest acceptable share of out-of-distribution pairs that would be trusted.
_MOST = 0.5


@dataclass(frozen=True)
class Verdict:
    """`penalty` is 0 on typical data and about 1 out of distribution.

    `trusted` is true where the penalty is at most the 95th percentile of held-out data.
    """

    penalty: Float[np.ndarray, " n"]
    trusted: Bool[np.ndarray, " n"]


class Trust:
    """Says where a model can be trusted: `trust(states, actions)`, in the data's units.

    `foreign_trusted` is the share of out-of-distribution pairs that would be trusted; smaller is
    better. A penalty raises an error if its median on these pairs is not larger than on held-out
    data. Default: `transport`, or `geodesic` if `transport` would trust more than half of those
    pairs. This happens with little data or a short fit.
    """

    def __init__(
        self, fitted: FittedModel | Path | str, *, penalty: Penalty | None = None, seed: int = 0
    ) -> None:
        fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
        if seed not in fitted.seeds:
            known = ", ".join(map(str, fitted.seeds))
            raise InputError(
                f"{fitted.run.folder}: has no model for seed {seed}; its seeds are {known}"
            )
        self.fitted, self.model = fitted, fitted.seed(fitted.seeds.index(seed))
        train, held_out = (embed(self.model, fitted.scaling, part) for part in fitted.parts)
        tells = self._judge_by(penalty or _PREFERRED, train, held_out)
        if penalty is None and not (tells and self.foreign_trusted <= _MOST):
            note(
                f"{_PREFERRED} would trust {self.foreign_trusted:.0%} of out-of-distribution "
                f"pairs; using {_FALLBACK} distance instead"
            )
            tells = self._judge_by(_FALLBACK, train, held_out)
        if not tells:
            raise InputError(
                f"{fitted.run.folder}, seed {seed}: {self.penalty} does not distinguish "
                "out-of-distribution pairs from the data. Use another penalty, or fit the model "
                "to more data"
            )
        if self.foreign_trusted > _MOST:
            note(
                f"{self.penalty} would trust {self.foreign_trusted:.0%} of out-of-distribution "
                "pairs: it detects only state-actions far from the data. More data or a longer fit "
                "may help"
            )

    def _judge_by(self, penalty: Penalty, train: EmbeddedData, held_out: EmbeddedData) -> bool:
        """Calibrate the penalty.

        Return whether its median is larger on out-of-distribution pairs than on held-out data.
        """
        scaling = self.fitted.scaling
        rows = choose_evenly(held_out, _SAMPLE)
        key = jax.random.key(1)
        pairs = sample_out_of_distribution(self.model, scaling, train, SAMPLE, key=key)
        self.penalty = name_penalty(penalty)
        built = build_penalty(penalty, PenaltyInputs(self.model, train, held_out))
        self.calibrated = calibrate(built, self.model, scaling, train)
        inside = self._penalise(held_out.embeddings[rows])
        outside = self._penalise(pairs)
        self.limit = float(jnp.quantile(inside, ORDINARY))
        self.foreign_trusted = float(jnp.mean(outside <= self.limit))
        return bool(jnp.median(outside) > jnp.median(inside))

    def _penalise(self, embeddings: Float[Array, "n embedding"]) -> Float[Array, " n"]:
        return self.calibrated.scale(penalise_in_parts(self.calibrated.penalty, embeddings))

    def __call__(
        self, states: Float[np.ndarray, "n state"], actions: Num[np.ndarray, "n *action"]
    ) -> Verdict:
        """Judge state-action pairs."""
        try:
            states, actions = np.asarray(states, np.float32), np.asarray(actions, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"states and actions must be arrays of numbers ({error})") from error
        self._check(states, actions)
        scaling = self.fitted.scaling
        normalised = jnp.asarray(scaling.states(states))
        whole = actions.astype(int) if isinstance(scaling.action_space, Discrete) else actions
        embeddings = _embed_pairs(self.model, normalised, scaling.action_space.encode(whole))
        values = np.asarray(self._penalise(embeddings))
        return Verdict(values, values <= self.limit)

    def of_data(self, dataset: Dataset, rows: int) -> list[Record]:
        """Judge at most `rows` rows of a dataset, spread evenly; one record for each."""
        transitions = dataset.transitions
        check_spaces(self.fitted, dataset)
        environments = dataset.environment, self.fitted.dataset.environment
        if None not in environments and len(set(environments)) > 1:
            recorded, known = environments
            note(f"{dataset.reference} was recorded in {recorded}, the model's data in {known}")
        if transitions.fingerprint() == self.fitted.run.description["fingerprint"]:
            note(
                f"{dataset.reference} is the data that the model was fitted to: each training row "
                "is its own neighbour, so its penalty is too low"
            )
        chosen = choose_evenly(transitions, rows)
        try:
            verdict = self(
                np.asarray(transitions.states)[chosen], np.asarray(transitions.actions)[chosen]
            )
        except InputError as error:
            raise InputError(f"{dataset.reference}: {error}") from error
        if not np.isfinite(verdict.penalty).all():
            row = chosen[~np.isfinite(verdict.penalty)][0]
            raise InputError(
                f"{dataset.reference}: row {row} is too far from the model's data: its penalty is "
                "not finite"
            )
        starts = np.array([episode.start for episode in transitions.episode_slices])
        episodes = np.searchsorted(starts, chosen, side="right") - 1
        steps = chosen - starts[episodes]
        columns = (episodes, steps, verdict.penalty, verdict.trusted)
        names = ("episode", "step", "penalty", "trusted")
        rows_of_lists = zip(*(column.tolist() for column in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows_of_lists]

    def _check(self, states: np.ndarray, actions: np.ndarray) -> None:
        size = self.fitted.dataset.transitions.states.shape[1]
        space = self.fitted.scaling.action_space
        shape = () if isinstance(space, Discrete) else (space.size,)
        if states.ndim != 2 or states.shape[1] != size or len(states) == 0:
            raise InputError(
                f"states have shape {states.shape}; pass at least one row of {size} numbers"
            )
        if actions.shape != (len(states), *shape):
            expected = (len(states), *shape)
            raise InputError(f"actions have shape {actions.shape}; these states need {expected}")
        for name, array in (("states", states), ("actions", actions)):
            if not np.isfinite(array).all():
                row = np.argwhere(~np.isfinite(array))[0][0]
                raise InputError(f"{name} hold NaN or infinity in row {row}")
        if isinstance(space, Discrete):
            low, high = np.array(0), np.array(space.n - 1)
            outside = (actions < low) | (actions > high) | (actions != np.rint(actions))
        else:
            low, high = np.array(space.low), np.array(space.high)
            outside = (actions < low) | (actions > high)
        if outside.any():
            row = np.argwhere(outside)[0][0]
            raise InputError(f"the action in row {row} is outside the action range [{low}, {high}]")


def check_spaces(fitted: FittedModel, dataset: Dataset) -> None:
    """Raise an error if the data's states or actions differ from the model's."""
    size, known_size = (d.transitions.states.shape[1] for d in (dataset, fitted.dataset))
    space, known_space = dataset.transitions.action_space, fitted.scaling.action_space
    found = []
    if space != known_space:
        found.append(f"its action space is {space}, but the model's is {known_space}")
    if size != known_size:
        found.append(f"its states are {size} numbers, the model's {known_size}")
    if found:
        remedy = (
            ". Add the options low= and high=, or discrete=, to the reference"
            if size == known_size
            else ""
        )
        raise InputError(f"{dataset.reference}: {'; '.join(found)}{remedy}")


@eqx.filter_jit
def _embed_pairs(
    model: LatentModel, states: Float[Array, "n state"], actions: Float[Array, "n action"]
) -> Float[Array, "n embedding"]:
    pairs = (states, actions)
    return jax.lax.map(
        lambda pair: model.embedding(model.encode(pair[0]).mean, pair[1]), pairs, batch_size=1024
    )
