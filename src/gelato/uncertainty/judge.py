"""Judge penalties: compare each with the model's true one-step error, shift by shift.

The real simulator is set to a state and gives the true next state for every shift. Without a
simulator, the true next state is known only for held-out transitions, and the records say so.
Records are flat: `dataset, model_seed, penalty, shift, spearman, auroc, risk_coverage,
microseconds` and bootstrap intervals.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.data.transitions import Transitions, find_held_out
from gelato.errors import InputError
from gelato.model.latent import LatentModel, Scaling
from gelato.model.training import FittedModel
from gelato.progress import Advance, note, progress
from gelato.tasks.environments import open_simulator
from gelato.tasks.partial import find_view_of
from gelato.tasks.task import AbstractSimulator, find_task
from gelato.uncertainty.build import Penalty, PenaltyInputs, build_penalty
from gelato.uncertainty.calibration import SAMPLE, Calibration, Scale, calibrate, penalise_in_parts
from gelato.uncertainty.embedded import embed, rms
from gelato.uncertainty.penalty import AbstractPenalty
from gelato.uncertainty.registry import find_penalty, list_penalties
from gelato.uncertainty.scores import ORDINARY, score_penalty, score_trust
from gelato.uncertainty.shifts import (
    Hidden,
    Shift,
    make_copied_shifts,
    make_data_shifts,
    make_imagined_shifts,
)

ROWS = 500


@dataclass(frozen=True)
class ShiftResult:
    """One shift: the true error and every penalty's uncalibrated value at each row."""

    shift: str
    errors: Float[np.ndarray, " n"]
    penalties: dict[str, Float[np.ndarray, " n"]]
    microseconds: dict[str, float]


@dataclass(frozen=True)
class Report:
    """The result for one model: the scale of every penalty, and every shift judged."""

    dataset: str
    model_seed: int
    truth: str
    points: int
    scales: dict[str, Scale]
    judged: list[ShiftResult]

    def records(self) -> list[dict[str, Any]]:
        """Return flat records, one for each penalty and shift."""
        inside = next(judged for judged in self.judged if judged.shift == "held-out")
        threshold = float(np.quantile(inside.errors, ORDINARY))
        records = []
        for judged in self.judged:
            for name, values in judged.penalties.items():
                limit = float(np.quantile(inside.penalties[name], ORDINARY))
                record = {
                    "dataset": self.dataset,
                    "model_seed": self.model_seed,
                    "penalty": name,
                    "shift": judged.shift,
                    "truth": self.truth,
                    "rows": len(judged.errors),
                    "points": self.points,
                    "mean_error": float(judged.errors.mean()),
                    "mean_penalty": float(self.scales[name](jnp.asarray(values)).mean()),
                    **score_penalty(values, judged.errors, threshold),
                    **score_trust(values, judged.errors, limit, threshold),
                    "microseconds": round(judged.microseconds[name], 2),
                }
                records.append(record)
        return records


def judge_penalties(
    fitted: FittedModel,
    *,
    penalties: Sequence[str] | None = None,
    extra: Mapping[str, Penalty] | None = None,
    rows: int = ROWS,
    simulate: bool = True,
    calibration: Calibration = "default",
    points: int | None = None,
) -> list[Report]:
    """Judge penalties on every seed of a fitted model.

    `penalties` are registered names (default: all). `extra` maps names, as they appear in the
    records, to more penalties or build functions. Neighbours are searched among at most `points`
    transitions.
    """
    if fitted.dataset.transitions.images:
        raise InputError(
            f"{fitted.run.folder}: penalties cannot be judged on images yet; `gelato trust` says "
            "how far the model's predictions can be trusted"
        )
    names = list_penalties("latent") if penalties is None else penalties
    for name in names:
        find_penalty(name, "latent")
    chosen: dict[str, Penalty] = {name: name for name in names} | dict(extra or {})
    train, held_out = fitted.parts
    environment, hidden = fitted.dataset.environment, _find_hidden(fitted)
    task = find_task(environment) if simulate else None
    simulator: AbstractSimulator | None = None
    shifts: list[Shift] = []
    if task is not None and task.simulator_can_be_copied:
        shifts = make_copied_shifts(task, rows, held_out)
    elif simulate and hidden is not None:
        simulator = open_simulator(hidden.view.whole, hidden.states.shape[1])
    elif simulate:
        simulator = open_simulator(environment, held_out.states.shape[1])
    if simulator is not None:
        shifts = make_data_shifts(held_out, environment, rows, hidden=hidden)
    if not shifts:
        note("no simulator: errors are measured only on held-out transitions")
    _note_versions(fitted, simulator)
    total = len(fitted.seeds) * len(chosen)
    with progress("judging penalties", total) as advance:
        reports = []
        for index in range(len(fitted.seeds)):
            judge = _Judge(fitted, index, train, held_out, simulator, points, hidden)
            reports.append(judge.report(shifts, chosen, rows, calibration, advance))
    return reports


def _find_hidden(fitted: FittedModel) -> Hidden | None:
    """Return what the observations of the held-out rows hide, if the data holds it."""
    dataset, view = fitted.dataset, find_view_of(fitted.dataset.environment)
    if view is None or dataset.whole_states is None:
        return None
    known = np.flatnonzero(np.asarray(dataset.transitions.has_successor))
    fraction = fitted.config.held_out_fraction
    held_out = find_held_out(dataset.transitions.with_successors(), fraction)
    return Hidden(dataset.whole_states[known[held_out]], view)


def _note_versions(fitted: FittedModel, simulator: AbstractSimulator | None) -> None:
    from importlib.metadata import version

    if simulator is None or simulator.package is None:
        return
    recorded = fitted.run.description["versions"].get(simulator.package)
    present = version(simulator.package)
    if recorded not in (None, present):
        note(
            f"the model was fitted with {simulator.package} {recorded}, the simulator here is "
            f"version {present}"
        )


class _Judge:
    """The model of one seed, with its data embedded."""

    def __init__(
        self,
        fitted: FittedModel,
        index: int,
        train: Transitions,
        held_out: Transitions,
        simulator: AbstractSimulator | None,
        points: int | None,
        hidden: Hidden | None,
    ) -> None:
        self.hidden = hidden
        self.fitted, self.seed = fitted, fitted.seeds[index]
        self.held_out, self.simulator = held_out, simulator
        self.model, self.scaling = fitted.seed(index), fitted.scaling
        self.data = embed(self.model, self.scaling, train, points)
        self.known = embed(self.model, self.scaling, held_out)

    def report(
        self,
        shifts: list[Shift],
        chosen: Mapping[str, Penalty],
        rows: int,
        calibration: Calibration,
        advance: Advance,
    ) -> Report:
        """Judge penalties on all shifts."""
        questions = list(self._prepare_shifts(shifts, rows))
        judged = [ShiftResult(shift, errors, {}, {}) for shift, _, errors in questions]
        if judged[0].shift != "held-out":
            raise InputError(
                f"{self.fitted.dataset.reference}: the simulator cannot be set to any state of the "
                "data"
            )
        scales: dict[str, Scale] = {}
        inputs = PenaltyInputs(self.model, self.data, self.known)
        for name, value in chosen.items():
            penalty = build_penalty(value, inputs)
            calibrated = calibrate(penalty, self.model, self.scaling, self.data, how=calibration)
            scales[name] = calibrated.scale
            for answer, (_, embeddings, _) in zip(judged, questions, strict=True):
                values, microseconds = _time_penalty(penalty, embeddings)
                answer.penalties[name] = values
                answer.microseconds[name] = microseconds
            advance(1, status=f"seed {self.seed}: {name}")
        truth = "simulator" if shifts else "held-out transitions"
        return Report(
            self.fitted.dataset.reference, self.seed, truth, len(self.data), scales, judged
        )

    def _prepare_shifts(
        self, shifts: list[Shift], rows: int
    ) -> Iterator[tuple[str, Array, np.ndarray]]:
        """Yield name, embeddings and true errors of each shift."""
        if not shifts:
            chosen = np.sort(np.random.default_rng(0).permutation(len(self.known))[:rows])
            errors = np.asarray(self.known.residuals[chosen])
            yield "held-out", self.known.embeddings[chosen], errors
            return
        imagined = (
            make_imagined_shifts(self.fitted, self.model, self.held_out, rows)
            # A decoded observation that hides something is no state to simulate.
            if self.simulator and self.hidden is None
            else []
        )
        for shift in [*shifts, *imagined]:
            truth = self._simulate_successors(shift)
            known = np.isfinite(truth).all(axis=1)
            if known.sum() < 2:
                note(
                    f"{shift.name}: skipped, because the simulator state could be set for fewer "
                    "than two rows"
                )
                continue
            embeddings, predicted = _predict(self.model, self.scaling, shift)
            wrong = rms(predicted - self.scaling.states(truth))
            yield shift.name, embeddings[known], np.asarray(wrong)[known]

    def _simulate_successors(self, shift: Shift) -> Float[np.ndarray, "n state"]:
        """Return the true successors of a shift's rows, NaN where unknown."""
        if shift.successors is not None:
            return shift.successors
        assert self.simulator is not None
        pairs = zip(shift.states, shift.actions, strict=True)
        truth = np.array(
            [self.simulator.successor(state, np.asarray(action)) for state, action in pairs]
        )
        return truth if self.hidden is None else truth[:, list(self.hidden.view.columns)]


def _predict(model: LatentModel, scaling: Scaling, shift: Shift) -> tuple[Array, Array]:
    """Return the embeddings of a shift's rows, and the normalised next states predicted."""
    actions = scaling.action_space.encode(shift.actions)
    if shift.latents is not None:
        return _predict_latents(model, jnp.asarray(shift.latents), actions)
    return _predict_rows(model, jnp.asarray(scaling.inputs(shift.inputs)), actions)


@eqx.filter_jit
def _predict_rows(model: LatentModel, inputs: Array, actions: Array) -> tuple[Array, Array]:
    z = jax.vmap(lambda each: model.encode(each).mean)(inputs)
    return _predict_latents(model, z, actions)


@eqx.filter_jit
def _predict_latents(model: LatentModel, z: Array, actions: Array) -> tuple[Array, Array]:
    e = jax.vmap(model.embedding)(z, actions)
    return e, jax.vmap(lambda e: model.predict_state_means(e).mean(axis=0))(e)


def _time_penalty(
    penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]
) -> tuple[np.ndarray, float]:
    """Return the penalty's values, and the microseconds per value without compilation."""
    begin = time.perf_counter()
    values = np.asarray(penalise_in_parts(penalty, embeddings))
    whole_parts = -(-len(embeddings) // SAMPLE) * SAMPLE
    return values, 1e6 * (time.perf_counter() - begin) / whole_parts
