"""Measure `Trust` on episodes that no part of it has seen: coverage, false alarms and actions.

python experiments/benchmarks/trust.py --small                        # every dataset, on a CPU
python experiments/benchmarks/trust.py hopper-medium walker2d-medium  # full size, on a GPU

For each dataset a model is fitted to one part of the episodes. The other episodes are divided at
random, twenty times, into calibration and test episodes. This writes

- results/conformal.json: stated and measured coverage of the error bounds, and of the threshold on
  U, on new episodes and on shifted data; with the width of the bounds and the model's error.
- results/trust.json: how well penalties tell logged actions from uniformly random ones at the same
  states, next to a classifier that was trained for nothing else; and what prototypes cost.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from gelato.agents.networks import Actor
from gelato.data.reference import load
from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError
from gelato.model.config import ModelConfig
from gelato.model.training import FittedModel, fit_model
from gelato.policy.deploy import deploy
from gelato.policy.onnx_export import export_guarded, measure_latency
from gelato.runs.records import Record, device, merge_records
from gelato.tasks.driving import DRIVING_TASKS
from gelato.training.presets import choose_parts
from gelato.uncertainty.bounds import (
    Predicted,
    choose_calibration_rows,
    number_episodes,
    predict_pairs,
    predict_rows,
    rms_scores,
)
from gelato.uncertainty.conformal import find_threshold, measure_coverage
from gelato.uncertainty.embedded import rms, sample_actions
from gelato.uncertainty.scores import auroc
from gelato.uncertainty.trust import Trust

RESULTS = Path(__file__).parents[2] / "results"
RECORDED = Path(__file__).parents[3] / "shared" / "realdata" / "pendulum"
COVERAGE, FALSE_ALARMS = 0.9, 0.05
SPLITS = 20
PARTS = ("bounds", "actions", "prototypes")
# Rows of new episodes whose actions are compared, and logged rows for the classifier.
ROWS, CLASSIFIER_ROWS = 4_000, 100_000
PROTOTYPES = (300, 1_000, 3_000, 10_000, 30_000)
PENALTIES = ("guard", "unusual-action", "euclidean", "geodesic", "transport")
NAMES = ("pendulum", "hopper-medium", "walker2d-medium", "halfcheetah-medium", "four-rooms")
DRIVING = tuple(task.name for task in DRIVING_TASKS)


@dataclass(frozen=True)
class Case:
    """The data a model is fitted to, new episodes of the same process, and shifted data."""

    name: str
    fitted_to: Dataset
    new: Transitions
    shifts: dict[str, Transitions]


def main() -> None:
    """Measure every dataset and write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = (*NAMES, *DRIVING, *(f"{name},episodes=5" for name in DRIVING))
    parser.add_argument("datasets", nargs="*", default=list(known), help="of " + " ".join(known))
    parser.add_argument("--small", action="store_true", help="small models and 100,000 transitions")
    parser.add_argument("--updates", type=int, help="of the model; default: the preset's")
    parser.add_argument("--episodes", type=int, default=200, help="recorded of driving tasks")
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--pendulum", type=Path, default=RECORDED, help="folder of the recordings")
    parser.add_argument("--penalties", nargs="+", default=list(PENALTIES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    arguments = parser.parse_args()
    for name in arguments.datasets:
        case = make_case(
            name, small=arguments.small, pendulum=arguments.pendulum, episodes=arguments.episodes
        )
        config = choose_parts(
            case.fitted_to, "small" if arguments.small else "default"
        ).latent.model
        if arguments.updates is not None:
            second = arguments.updates // 5
            config = replace(config, updates=arguments.updates, variance_updates=second)
        run = arguments.runs / name.replace(",", "-")
        fitted = fit(case, run, config)
        size: Record = {"transitions": len(case.fitted_to.transitions), "model": _describe(config)}
        if "bounds" in arguments.parts:
            rows = measure_bounds(case, Trust(fitted))
            keys = ("dataset", "data", "what", "calibration", "transitions", "model")
            _keep(rows, size, arguments.results / "conformal.json", keys)
        rows = []
        if "actions" in arguments.parts:
            rows += measure_actions(case, fitted, arguments.penalties)
        rows += measure_prototypes(case, fitted) if "prototypes" in arguments.parts else []
        keys = ("what", "dataset", "penalty", "points", "transitions", "model", "push")
        _keep(rows, size, arguments.results / "trust.json", keys)


def _keep(rows: list[Record], size: Record, path: Path, keys: Sequence[str]) -> None:
    """Print the records and merge them into a file."""
    complete = [{**row, **size} for row in rows]
    merge_records(path, complete, keys)
    for row in complete:
        print(row, flush=True)


def make_case(name: str, *, small: bool, pendulum: Path, episodes: int = 200) -> Case:
    """Load or make the data of a case. `episodes` is for driving tasks, to fit and as new ones."""
    if name == "pendulum":
        return _make_pendulum(pendulum)
    task, _, few = name.partition(",episodes=")
    if task in DRIVING:
        fitted_to = load(f"{task},episodes={few or episodes}")
        new = load(f"{task},episodes={episodes},seed=1").transitions
        return Case(name, fitted_to, new, {})
    if name == "four-rooms":
        new = load("four-rooms,transitions=4000,seed=1").transitions
        return Case(name, load("four-rooms"), new, {})
    task = name.split("-")[0]
    size, fresh = (100_000, 100_000) if small else (1_000_000, 300_000)
    if task == "halfcheetah" and small:
        # Its episodes have 1,000 steps: 200 episodes, half of them for calibration.
        fresh = 200_000
    return Case(
        name,
        load(f"{name},transitions={size}"),
        load(f"{name},transitions={fresh},seed=1").transitions,
        {"random policy": load(f"{task}-random,transitions=20000,seed=1").transitions},
    )


def _make_pendulum(folder: Path) -> Case:
    """Fit to every second episode of a learner's log: the learner changes along the log."""
    dataset = load(f"file:{folder / 'pendulum_v1.1.0.h5'},low=-2,high=2")
    random = load(f"file:{folder / 'pendulum_random_v1.1.0.h5'},low=-2,high=2")
    transitions = dataset.transitions.with_successors()
    even = number_episodes(transitions) % 2 == 0
    fitted_to = replace(dataset, reference="pendulum", transitions=transitions[even])
    return Case("pendulum", fitted_to, transitions[~even], {"random policy": random.transitions})


def fit(case: Case, run: Path, config: ModelConfig) -> FittedModel:
    """Fit the model, or read it."""
    return fit_model(case.fitted_to, run, config=config)


def _describe(config: ModelConfig) -> str:
    return f"{config.updates + config.variance_updates:,} updates"


@dataclass(frozen=True)
class Scored:
    """Penalties and errors of rows, with the number of each row's episode."""

    episodes: Int[np.ndarray, " n"]
    penalty: Float[np.ndarray, " n"]
    predicted: Predicted
    truth: Float[np.ndarray, "n state"]

    @property
    def errors(self) -> Float[np.ndarray, " n"]:
        """The norm of each row's error."""
        return np.asarray(rms(self.predicted.mean - self.truth))

    def dimension_scores(self) -> Float[np.ndarray, "n state"]:
        """Each dimension's error over its predicted deviation."""
        error = np.abs(np.asarray(self.predicted.mean) - self.truth)
        return error / np.asarray(self.predicted.deviation)


def score(trust: Trust, transitions: Transitions) -> Scored:
    """Penalise and predict rows of every episode."""
    rows = transitions.with_successors()
    chosen = choose_calibration_rows(rows)
    episodes, rows = number_episodes(rows)[chosen], rows[chosen]
    predicted = predict_rows(trust.model, trust.fitted.scaling, rows)
    truth = np.asarray(trust.fitted.scaling.states(np.asarray(rows.next_states)))
    return Scored(episodes, np.asarray(trust.penalise(predicted.embeddings)), predicted, truth)


def measure_bounds(case: Case, trust: Trust) -> list[Record]:
    """Compare stated with measured coverage, for thresholds from new and from held-out episodes."""
    new = score(trust, case.new)
    rmse = float(np.sqrt(np.mean(new.errors**2)))
    shared = {"dataset": case.name, "rmse": round(rmse, 5), "device": device()}
    records: list[Record] = []
    for what in ("error norm", "error per dimension", "false alarms"):
        separate = _calibrate_on_new(what, new)
        records.append({**shared, "data": "new episodes", "what": what, **separate})
        datasets = {"new episodes": new}
        datasets |= {name: score(trust, rows) for name, rows in case.shifts.items()}
        for name, scored in datasets.items():
            found = _use_held_out(what, trust, scored)
            error = float(np.sqrt(np.mean(scored.errors**2)))
            row = {**shared, "rmse": round(error, 5), "data": name, "what": what, **found}
            records.append(row)
    return records


def _calibrate_on_new(what: str, new: Scored) -> Record:
    """Divide the new episodes into calibration and test episodes, twenty times."""
    numbers = np.unique(new.episodes)
    rng = np.random.default_rng(0)
    measured, stated, widths = [], 0.0, []
    scores, size = _scores(what, new)
    for _ in range(SPLITS):
        chosen = rng.permutation(numbers)[: len(numbers) // 2]
        inside = np.isin(new.episodes, chosen)
        for column in range(scores.shape[1]):
            values = scores[:, column]
            coverage = 1 - FALSE_ALARMS if what == "false alarms" else COVERAGE
            limit = find_threshold(values[inside], new.episodes[inside], coverage)
            covered = measure_coverage(values[~inside], new.episodes[~inside], limit.value)
            stated = limit.coverage
            measured.append(covered)
            widths.append(float(np.mean(limit.value * size[~inside, column])))
    return {
        "calibration": "other new episodes",
        "calibration_episodes": len(numbers) // 2,
        "test_episodes": len(numbers) - len(numbers) // 2,
        **_rates(what, stated, measured),
        "width": None if what == "false alarms" else round(float(np.mean(widths)), 5),
    }


def _use_held_out(what: str, trust: Trust, scored: Scored) -> Record:
    """Apply the thresholds of `Trust` as users get them, from held-out episodes of the fit."""
    scores, size = _scores(what, scored)
    limits = {
        "error norm": [trust.bounds.norm],
        "error per dimension": trust.bounds.per_dimension.tolist(),
        "false alarms": [trust.limit],
    }[what]
    stated = 1 - trust.false_alarm_rate if what == "false alarms" else trust.bounds.coverage
    measured = []
    for column, limit in enumerate(limits):
        measured.append(measure_coverage(scores[:, column], scored.episodes, limit))
    width = float(np.mean(np.asarray(limits) * size))
    return {
        "calibration": "held-out episodes",
        "calibration_episodes": trust.episodes,
        "test_episodes": len(np.unique(scored.episodes)),
        **_rates(what, stated, measured),
        "width": None if what == "false alarms" else round(width, 5),
    }


def _scores(what: str, scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Return scores, one column for each threshold, and the size that a threshold multiplies."""
    deviation = np.asarray(scored.predicted.deviation)
    if what == "false alarms":
        return scored.penalty[:, None], np.ones((len(scored.penalty), 1))
    if what == "error norm":
        norm = rms_scores(scored.predicted, scored.truth)[:, None]
        return norm, np.asarray(rms(scored.predicted.deviation))[:, None]
    return scored.dimension_scores(), deviation


def _rates(what: str, stated: float, measured: Sequence[float]) -> Record:
    """Return stated and mean measured coverage, or their complements for false alarms."""
    values = np.array(measured)
    if what == "false alarms":
        stated, values = 1 - stated, 1 - values
    return {
        "stated": round(stated, 4),
        "measured": round(float(values.mean()), 4),
        "lowest": round(float(values.min()), 4),
        "highest": round(float(values.max()), 4),
    }


def measure_actions(case: Case, fitted: FittedModel, penalties: Sequence[str]) -> list[Record]:
    """Tell logged actions of new episodes from uniformly random ones at the same states."""
    states, logged, uniform = _make_pairs(case, fitted)
    label = np.repeat([False, True], len(states))
    shared = {"what": "actions", "dataset": case.name, "device": device()}
    ceiling = _train_classifier(fitted, states, logged, uniform)
    records: list[Record] = []
    for penalty in penalties:
        try:
            trust = Trust(fitted, penalty=penalty)
        except InputError as error:
            # Random behaviour has no unusual action, for example.
            print(error, flush=True)
            continue
        values = [_penalise(trust, states, actions) for actions in (logged, uniform)]
        records.append(
            {
                **shared,
                "penalty": penalty,
                "points": trust.points,
                "auroc": round(auroc(np.concatenate(values), label), 4),
                "ceiling": round(ceiling, 4),
                "logged_trusted": round(float(np.mean(values[0] <= trust.limit)), 4),
                "uniform_trusted": round(float(np.mean(values[1] <= trust.limit)), 4),
                "foreign_trusted": round(trust.foreign_trusted, 4),
            }
        )
    return records


def _make_pairs(case: Case, fitted: FittedModel) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return normalised states of new episodes, their logged actions, and uniform actions."""
    scaling, rng = fitted.scaling, np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(case.new))[:ROWS])
    states = jnp.asarray(scaling.states(np.asarray(case.new.states)[rows]))
    logged = scaling.action_space.encode(np.asarray(case.new.actions)[rows])
    return states, logged, sample_actions(scaling, len(rows), jax.random.key(7))


def _penalise(trust: Trust, states: jax.Array, actions: jax.Array) -> Float[np.ndarray, " n"]:
    return np.asarray(trust.penalise(predict_pairs(trust.model, states, actions).embeddings))


def _train_classifier(
    fitted: FittedModel, states: jax.Array, logged: jax.Array, uniform: jax.Array
) -> float:
    """Return the AUROC of a classifier trained on the same question: about the best possible."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, rng = fitted.parts[0], np.random.default_rng(1)
    rows = np.sort(rng.permutation(len(train))[:CLASSIFIER_ROWS])
    known = np.asarray(fitted.scaling.states(np.asarray(train.states)[rows]))
    taken = np.asarray(fitted.scaling.action_space.encode(np.asarray(train.actions)[rows]))
    others = np.asarray(sample_actions(fitted.scaling, len(rows), jax.random.key(8)))
    pairs = np.concatenate([np.hstack([known, taken]), np.hstack([known, others])])
    classifier = HistGradientBoostingClassifier(max_iter=400, early_stopping=True, random_state=0)
    classifier.fit(pairs, np.repeat([0, 1], len(rows)))
    asked = [np.hstack([states, logged]), np.hstack([states, uniform])]
    label = np.repeat([False, True], len(states))
    return auroc(classifier.predict_proba(np.concatenate(asked))[:, 1], label)


def measure_prototypes(case: Case, fitted: FittedModel) -> list[Record]:
    """Export the guard with fewer and more prototypes; measure cost and quality."""
    states, logged, uniform = _make_pairs(case, fitted)
    label = np.repeat([False, True], len(states))
    scaling = fitted.scaling
    records: list[Record] = []
    for points in PROTOTYPES:
        trust = Trust(fitted, points=points)
        if trust.points < points:
            break
        actor = Actor(
            trust.model.latent_size, scaling.action_space, (256, 256), key=jax.random.key(0)
        )
        policy = deploy(actor, trust.model.encoder, scaling)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "guarded.onnx"
            differences = export_guarded(policy, trust, path)
            megabytes, latency = path.stat().st_size / 1e6, measure_latency(path)
        values = [_penalise(trust, states, actions) for actions in (logged, uniform)]
        records.append(
            {
                "what": "prototypes",
                "dataset": case.name,
                "penalty": "guard",
                "points": points,
                "auroc": round(auroc(np.concatenate(values), label), 4),
                "logged_trusted": round(float(np.mean(values[0] <= trust.limit)), 4),
                "uniform_trusted": round(float(np.mean(values[1] <= trust.limit)), 4),
                "foreign_trusted": round(trust.foreign_trusted, 4),
                "megabytes": round(megabytes, 2),
                "median_ms": round(latency.median, 3),
                "p99_ms": round(latency.high, 3),
                "p99_computing_ms": round(latency.computing, 3),
                "action_difference": differences.action,
                "penalty_difference": differences.penalty,
                "device": device(),
            }
        )
    return records


if __name__ == "__main__":
    main()
