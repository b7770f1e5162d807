"""The instrument: every penalty against the model's true one-step error, shift by shift.

With the real simulator put into the state the truth is known wherever a shift leads; without one it is known on
held-out transitions alone, and the records say so. Records are flat: `dataset, model_seed, penalty, shift, spearman,
auroc, risk_coverage, microseconds` and bootstrap intervals.
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

from gelato.data.transitions import Transitions
from gelato.envs.driving import driving_task
from gelato.envs.simulate import AbstractSimulator, MujocoSimulator, simulator_for
from gelato.errors import InputError
from gelato.model.latent import LatentModel, Scaling
from gelato.model.training import FittedModel
from gelato.progress import note, progress
from gelato.uncertainty.build import PENALTIES, Maker, PenaltyName, maker
from gelato.uncertainty.calibration import SAMPLE, Calibration, Scale, calibrate, penalise_in_parts
from gelato.uncertainty.embedded import embed, rms
from gelato.uncertainty.penalty import AbstractPenalty
from gelato.uncertainty.scores import ORDINARY, misplaced_trust, scores
from gelato.uncertainty.shifts import Shift, data_shifts, driving_shifts, imagined_shifts

ROWS = 500


@dataclass(frozen=True)
class Judged:
    """One shift with the true error at every row, and every penalty's value there, not calibrated."""

    shift: str
    errors: Float[np.ndarray, " n"]
    penalties: dict[str, Float[np.ndarray, " n"]]
    microseconds: dict[str, float]


@dataclass(frozen=True)
class Report:
    """What the instrument found of one model: how every penalty was calibrated, and every shift judged."""

    dataset: str
    model_seed: int
    truth: str
    points: int
    scales: dict[str, Scale]
    judged: list[Judged]

    def records(self) -> list[dict[str, Any]]:
        """Flat records, one for each penalty and shift."""
        inside = next(judged for judged in self.judged if judged.shift == "held-out")
        threshold = float(np.quantile(inside.errors, ORDINARY))
        return [
            {
                "dataset": self.dataset,
                "model_seed": self.model_seed,
                "penalty": name,
                "shift": judged.shift,
                "truth": self.truth,
                "rows": len(judged.errors),
                "points": self.points,
                "mean_error": float(judged.errors.mean()),
                "mean_penalty": float(self.scales[name](jnp.asarray(values)).mean()),
                **scores(values, judged.errors, threshold),
                **misplaced_trust(
                    values, judged.errors, float(np.quantile(inside.penalties[name], ORDINARY)), threshold
                ),
                "microseconds": round(judged.microseconds[name], 2),
            }
            for judged in self.judged
            for name, values in judged.penalties.items()
        ]


def measure(
    fitted: FittedModel,
    *,
    penalties: Sequence[PenaltyName] = PENALTIES,
    own: Mapping[str, Maker] | None = None,
    rows: int = ROWS,
    simulate: bool = True,
    calibration: Calibration = "default",
    points: int | None = None,
) -> list[Report]:
    """Judge penalties on every seed of a fitted model, with neighbours among at most `points` transitions.

    `own` are penalties of the caller's, each a function of model, embedded data and embedded held-out data.
    """
    makers = {name: maker(name) for name in penalties} | dict(own or {})
    train, held_out = fitted.parts
    state_size = held_out.states.shape[1]
    task = driving_task(fitted.dataset.environment) if simulate else None
    simulator = simulator_for(fitted.dataset.environment, state_size) if simulate and task is None else None
    shifts: list[Shift] = []
    if task is not None:
        shifts = driving_shifts(task, rows)
    elif simulator is not None:
        shifts = data_shifts(held_out, fitted.dataset.environment, rows)
    else:
        note("errors are taken on held-out transitions alone")
    _say_versions(fitted, simulator)
    total = len(fitted.seeds) * len(makers)
    with progress("judging penalties", total) as advance:
        reports = []
        for index in range(len(fitted.seeds)):
            judge = _Judge(fitted, index, train, held_out, simulator, points)
            reports.append(judge.report(shifts, makers, rows, calibration, advance))
    return reports


def _say_versions(fitted: FittedModel, simulator: AbstractSimulator | None) -> None:
    from importlib.metadata import version

    recorded = fitted.run.description["versions"].get("mujoco")
    if isinstance(simulator, MujocoSimulator) and recorded not in (None, version("mujoco")):
        note(f"the model was fitted beside MuJoCo {recorded}, the simulator here is {version('mujoco')}; going on")


class _Judge:
    """One seed's model with its data embedded."""

    def __init__(
        self,
        fitted: FittedModel,
        index: int,
        train: Transitions,
        held_out: Transitions,
        simulator: AbstractSimulator | None,
        points: int | None,
    ) -> None:
        self.fitted, self.seed, self.held_out, self.simulator = fitted, fitted.seeds[index], held_out, simulator
        self.model, self.scaling = fitted.seed(index), fitted.scaling
        self.data = embed(self.model, self.scaling, train, points)
        self.known = embed(self.model, self.scaling, held_out)

    def report(
        self,
        shifts: list[Shift],
        makers: Mapping[str, Maker],
        rows: int,
        calibration: Calibration,
        advance: Any,
    ) -> Report:
        """Judge penalties on all shifts."""
        questions = list(self._questions(shifts, rows))
        judged = [Judged(shift, errors, {}, {}) for shift, _, errors in questions]
        if judged[0].shift != "held-out":
            raise InputError(f"{self.fitted.dataset.reference}: the simulator knows none of the data's states")
        scales: dict[str, Scale] = {}
        for name in makers:
            penalty = makers[name](self.model, self.data, self.known)
            scales[name] = calibrate(penalty, self.model, self.scaling, self.data, how=calibration).scale
            for answer, (_, embeddings, _) in zip(judged, questions, strict=True):
                values, microseconds = _timed(penalty, embeddings)
                answer.penalties[name] = values
                answer.microseconds[name] = microseconds
            advance(1, status=f"seed {self.seed}: {name}")
        truth = "simulator" if shifts else "held-out transitions"
        return Report(self.fitted.dataset.reference, self.seed, truth, len(self.data), scales, judged)

    def _questions(self, shifts: list[Shift], rows: int) -> Iterator[tuple[str, Array, np.ndarray]]:
        """For each shift its name, embeddings and true errors."""
        if not shifts:
            chosen = np.sort(np.random.default_rng(0).permutation(len(self.known))[:rows])
            errors = np.asarray(self.known.residuals[chosen])
            yield "held-out", self.known.embeddings[chosen], errors
            return
        imagined = imagined_shifts(self.fitted, self.model, self.held_out, rows) if self.simulator else []
        for shift in [*shifts, *imagined]:
            truth = self._truth(shift)
            known = np.isfinite(truth).all(axis=1)
            if known.sum() < 2:
                note(f"{shift.name}: the simulator knows hardly any of these states; left out")
                continue
            embeddings, predicted = _predict(self.model, self.scaling, shift)
            wrong = rms(predicted - self.scaling.states(truth))
            yield shift.name, embeddings[known], np.asarray(wrong)[known]

    def _truth(self, shift: Shift) -> Float[np.ndarray, "n state"]:
        """The real successors of a shift's rows, NaN where the simulator knows no such state."""
        if shift.successors is not None:
            return shift.successors
        assert self.simulator is not None
        pairs = zip(shift.states, shift.actions, strict=True)
        return np.array([self.simulator.successor(state, np.asarray(action)) for state, action in pairs])


def _predict(model: LatentModel, scaling: Scaling, shift: Shift) -> tuple[Array, Array]:
    """Embeddings of a shift's rows and the next states the model predicts, normalised."""
    states = jnp.asarray(scaling.states(shift.states))
    latents = None if shift.latents is None else jnp.asarray(shift.latents)
    return _predicted(model, states, latents, scaling.action_space.encode(shift.actions))


@eqx.filter_jit
def _predicted(model: LatentModel, states: Array, latents: Array | None, actions: Array) -> tuple[Array, Array]:
    z = jax.vmap(lambda state: model.encode(state).mean)(states) if latents is None else latents
    e = jax.vmap(model.embedding)(z, actions)
    return e, jax.vmap(lambda e: model.decoded_means(model.forward(e).mean).mean(axis=0))(e)


def _timed(penalty: AbstractPenalty, embeddings: Float[Array, "n embedding"]) -> tuple[np.ndarray, float]:
    """The penalty's values and what one costs, compilation aside."""
    begin = time.perf_counter()
    values = np.asarray(penalise_in_parts(penalty, embeddings))
    whole_parts = -(-len(embeddings) // SAMPLE) * SAMPLE
    return values, 1e6 * (time.perf_counter() - begin) / whole_parts
