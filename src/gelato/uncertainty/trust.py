"""`trust(states, actions)`: on which inputs the model can be trusted, and how wrong it can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from gelato.data.spaces import Discrete
from gelato.data.transitions import Dataset, Transitions, choose_evenly
from gelato.errors import InputError
from gelato.model.training import FittedModel, load_model
from gelato.progress import note
from gelato.runs.records import Record
from gelato.uncertainty.bounds import (
    ErrorBounds,
    Predicted,
    choose_calibration_rows,
    fit_bounds,
    number_episodes,
    predict_pairs,
    predict_rows,
    rms_rows,
)
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty, name_penalty
from gelato.uncertainty.calibration import SAMPLE, calibrate, penalise_in_parts
from gelato.uncertainty.conformal import check_rate, find_threshold
from gelato.uncertainty.embedded import embed, sample_out_of_distribution

# Data points that neighbours are searched among. An exported guard holds as many (its prototypes).
POINTS = 10_000
DEFAULT_PENALTY = "guard"
_HELD_OUT = 10_000
# Largest acceptable share of out-of-distribution pairs that would be trusted.
_MOST = 0.5


@dataclass(frozen=True)
class Verdict:
    """What is known about state-action pairs.

    `penalty` is 0 on typical data and about 1 out of distribution, and `trusted` says whether it is
    within the limit. `next_states` are predicted. `error_bounds` bound their error in each
    dimension, in the data's units, and `error_bound` its norm `‖s′ − ŝ′‖/√d` in standard deviations
    of the data's states.
    """

    penalty: Float[np.ndarray, " n"]
    trusted: Bool[np.ndarray, " n"]
    next_states: Float[np.ndarray, "n state"]
    error_bound: Float[np.ndarray, " n"]
    error_bounds: Float[np.ndarray, "n state"]


class Trust:
    """Says where a model can be trusted: `trust(states, actions)`, in the data's units.

    Of the rows of a new episode of the same process, on average over episodes, at most a share
    `false_alarm_rate` is not trusted, and `error_bound` holds for at least a share `coverage`
    (`conformal.py` states and proves it). With few calibration episodes the promises are weaker:
    `false_alarm_rate` and `bounds.coverage` hold what is promised. On data of another process
    nothing is promised.

    Neighbours are searched among `points` rows of the training data. The calibration data are the
    held-out episodes of the fit, or `calibration`: other episodes of the same process.
    `foreign_trusted` is the share of out-of-distribution pairs that would be trusted; smaller is
    better. A penalty is refused if its median on them is no larger than on the calibration data.
    `foreign_penalties` and `calibration_penalties` are the values of U behind this, and
    `calibration_numbers` the episode of each calibration row.
    """

    def __init__(
        self,
        fitted: FittedModel | Path | str,
        *,
        penalty: Penalty = DEFAULT_PENALTY,
        seed: int = 0,
        points: int | None = POINTS,
        coverage: float = 0.9,
        false_alarm_rate: float = 0.05,
        calibration: Dataset | None = None,
    ) -> None:
        check_rate("coverage", coverage)
        check_rate("false_alarm_rate", false_alarm_rate)
        fitted = fitted if isinstance(fitted, FittedModel) else load_model(fitted)
        self.fitted, self.model, self.seed = fitted, fitted.of_seeds((seed,)).seed(0), seed
        scaling, parts = fitted.scaling, fitted.parts
        data = embed(self.model, scaling, parts[0], points)
        held_out = embed(self.model, scaling, parts[1], _HELD_OUT)
        self.points = len(data)
        self.penalty = name_penalty(penalty)
        built = build_penalty(penalty, PenaltyInputs(self.model, data, held_out))
        self.calibrated = calibrate(built, self.model, scaling, data)
        rows = self._choose_calibration(calibration)
        episodes = number_episodes(rows)
        chosen = choose_calibration_rows(rows)
        rows, episodes = rows[chosen], episodes[chosen]
        self.episodes = len(np.unique(episodes))
        predicted = predict_rows(self.model, scaling, rows)
        inside = np.asarray(self.penalise(predicted.embeddings))
        self.calibration_penalties, self.calibration_numbers = inside, episodes
        limit = find_threshold(inside, episodes, 1 - false_alarm_rate)
        self.limit, self.false_alarm_rate = limit.value, 1 - limit.coverage
        truth = np.asarray(scaling.states(np.asarray(rows.next_states)))
        self.bounds: ErrorBounds = fit_bounds(predicted, truth, episodes, coverage)
        key = jax.random.key(1)
        pairs = sample_out_of_distribution(self.model, scaling, data, SAMPLE, key=key)
        self.foreign_penalties = np.asarray(self.penalise(pairs))
        self._check_penalty(inside, self.foreign_penalties)

    def _choose_calibration(self, calibration: Dataset | None) -> Transitions:
        """Return the calibration data: the held-out part, or other data of the same spaces."""
        if calibration is None:
            return self.fitted.parts[1]
        check_spaces(self.fitted, calibration)
        if calibration.transitions.fingerprint() == self.fitted.split.fingerprint:
            raise InputError(
                f"{calibration.reference}: is the data that the model was fitted to. Calibrate on "
                "other episodes, or leave the option out to use the held-out ones"
            )
        rows = calibration.transitions.with_successors()
        if len(rows) == 0:
            raise InputError(f"{calibration.reference}: no step has a successor")
        return rows

    def _check_penalty(
        self, inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]
    ) -> None:
        """Refuse a penalty that cannot tell out-of-distribution pairs from the data."""
        self.foreign_trusted = float(np.mean(outside <= self.limit))
        if not np.median(outside) > np.median(inside):
            raise InputError(
                f"{self.fitted.run.folder}, seed {self.seed}: {self.penalty} cannot tell "
                "out-of-distribution pairs from the data. Use another penalty, or fit the model to "
                "more data"
            )
        if self.foreign_trusted > _MOST:
            note(
                f"{self.penalty} would trust {self.foreign_trusted:.0%} of out-of-distribution "
                "pairs: it detects only state-actions far from the data. More data or a longer fit "
                "may help"
            )

    def penalise(self, embeddings: Float[Array, "n embedding"]) -> Float[np.ndarray, " n"]:
        """Compute the calibrated penalty of embedded pairs."""
        raw = penalise_in_parts(self.calibrated.penalty, embeddings)
        return self.calibrated.scale.apply(raw)

    def __call__(
        self, states: Float[np.ndarray, "n input"], actions: Num[np.ndarray, "n *action"]
    ) -> Verdict:
        """Judge state-action pairs; if the model reads a history, `states` are windows.

        `Transitions.inputs` are those of logged rows.
        """
        try:
            states, actions = np.asarray(states, np.float32), np.asarray(actions, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"states and actions must be arrays of numbers ({error})") from error
        self._check(states, actions)
        scaling = self.fitted.scaling
        normalised = jax.device_put(scaling.inputs(states))
        whole = actions.astype(int) if isinstance(scaling.action_space, Discrete) else actions
        encoded = scaling.action_space.encode(whole)
        return self.judge(predict_pairs(self.model, normalised, encoded))

    def judge(self, predicted: Predicted) -> Verdict:
        """Judge pairs whose next state is predicted already."""
        states = self.fitted.scaling.states
        values = np.asarray(self.penalise(predicted.embeddings))
        return Verdict(
            values,
            values <= self.limit,
            np.asarray(states.inverse(np.asarray(predicted.mean))),
            self.bounds.bound_norm(predicted),
            self.bounds.bound_dimensions(predicted) * np.asarray(states.scale),
        )

    def of_data(self, dataset: Dataset, rows: int) -> list[Record]:
        """Judge at most `rows` rows of a dataset, spread evenly; one record for each.

        `error` is the true norm of the error where the data holds the successor, and is None
        elsewhere.
        """
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
            verdict = self(transitions[chosen].inputs, np.asarray(transitions.actions)[chosen])
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
        scale = np.asarray(self.fitted.scaling.states.scale)
        following = np.asarray(transitions.next_states[chosen])
        errors = rms_rows((verdict.next_states - following) / scale)
        known = np.asarray(transitions.has_successor)[chosen]
        records: list[Record] = []
        for index in range(len(chosen)):
            record: Record = {
                "episode": int(episodes[index]),
                "step": int(steps[index]),
                "penalty": float(verdict.penalty[index]),
                "trusted": bool(verdict.trusted[index]),
                "error_bound": float(verdict.error_bound[index]),
                "error": float(errors[index]) if known[index] else None,
            }
            records.append(record)
        return records

    def _check(self, states: np.ndarray, actions: np.ndarray) -> None:
        size = self.fitted.scaling.layout.size
        space = self.fitted.scaling.action_space
        shape = () if isinstance(space, Discrete) else (space.size,)
        if states.ndim != 2 or states.shape[1] != size or len(states) == 0:
            hint = ""
            if self.fitted.scaling.history > 1:
                hint = ", the windows that the model reads (`Transitions.inputs`)"
            raise InputError(
                f"states have shape {states.shape}; pass at least one row of {size} numbers{hint}"
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


def measure_bound(judged: Sequence[Record]) -> float | None:
    """Return the share of judged rows whose error is within its bound; None if none is known."""
    held = []
    for row in judged:
        error, bound = row["error"], row["error_bound"]
        if isinstance(error, float) and isinstance(bound, float):
            held.append(error <= bound)
    return float(np.mean(held)) if held else None


def check_spaces(fitted: FittedModel, dataset: Dataset) -> None:
    """Raise an error if the data's states or actions differ from the model's."""
    size, known_size = (d.transitions.states.shape[1] for d in (dataset, fitted.dataset))
    space, known_space = dataset.transitions.action_space, fitted.scaling.action_space
    found = []
    if space != known_space:
        found.append(f"its action space is {space}, but the model's is {known_space}")
    if size != known_size:
        found.append(f"its states are {size} numbers, the model's {known_size}")
    history, known_history = dataset.transitions.layout.history, fitted.scaling.history
    if not found and history != known_history:
        option = f"Add ,history={known_history} to" if known_history > 1 else "Remove history= from"
        raise InputError(
            f"{dataset.reference}: has a history of {history}, but the model reads "
            f"{known_history}. {option} the reference"
        )
    if found:
        remedy = (
            ". Add the options low= and high=, or discrete=, to the reference"
            if size == known_size
            else ""
        )
        raise InputError(f"{dataset.reference}: {'; '.join(found)}{remedy}")
