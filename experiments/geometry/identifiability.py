"""Measure whether distances in latent space agree between models that are trained from scratch.

    python experiments/geometry/identifiability.py prepare --data FOLDER
    python experiments/geometry/identifiability.py measure --data FOLDER --jobs 2 \\
        --results results/identifiability.json

`prepare` writes the arrays that a fit needs, so that `measure` needs no simulator. `measure` fits
models with 1, 3, 5 and 10 decoders and ten seeds (initial weights, bootstrap, batches and noise all
change), and measures the distances of the same held-out pairs in every model:

- `state`: between codes `z` of two states, with the metric of the decoders.
- `embedding`: between embeddings `e` of two states with their actions, with the metric of the
  decoders at the mean of the forward model.

The coefficient of variation of a pair is the standard deviation of its distance over the models,
divided by its mean. A record holds its median over the pairs (`cv`), and its median after every
model's distances were divided by their mean (`cv_scaled`), because the scale of a latent space
is arbitrary. `rank_agreement` is the mean Spearman correlation of the distances of two models.
`cv_standard_error` is the standard error of `cv` from resampled pairs, and `converged` the share of
geodesics whose estimated error is at most 1%. The decoders of Four Rooms have variance networks
here, and not the radial variance of their task: its metric is so rough that few curves converge.

One process measures all seeds of a dataset and a number of decoders. Distances of every seed are
kept in FOLDER, so that a measurement that was interrupted continues.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.geometry.processes import run_jobs
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.geometry import AbstractMetric, Adaptive, EnsemblePullback, geodesics
from gelato.model.config import ModelConfig
from gelato.model.fit import (
    MEANS,
    VARIANCES,
    FitData,
    begin_phase,
    draw_bootstrap_counts,
    make_models,
    run_block,
)
from gelato.model.latent import LatentModel, set_support
from gelato.model.objective import Batch
from gelato.progress import note
from gelato.runs.files import write_atomically
from gelato.runs.records import merge_records

Record = dict[str, Any]
KEYS = ("dataset", "decoders", "space", "distance")
DECODERS, SEEDS, PAIRS = (1, 3, 5, 10), 10, 100
SPACES, DISTANCES = ("state", "embedding"), ("geodesic", "euclidean")
# Updates of one compiled block.
BLOCK = 500
SUPPORT_ROWS = 20_000
RESAMPLES = 200
# The distances of two models differ by far more.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Case:
    """A dataset, and the settings of its models: those of its task, but smaller and shorter."""

    reference: str
    config: ModelConfig


CASES = {
    "four-rooms": Case(
        "four-rooms",
        ModelConfig(
            latent_size=2,
            hidden=(64, 64),
            forward_hidden=(64, 64),
            activation="tanh",
            batch_size=128,
            updates=10_000,
            variance_updates=2_000,
        ),
    ),
    "hopper": Case(
        "hopper-medium,transitions=20000",
        ModelConfig(
            latent_size=8,
            hidden=(128, 128),
            forward_hidden=(128, 128),
            batch_size=128,
            updates=10_000,
            variance_updates=2_000,
        ),
    ),
    "intersection": Case(
        "intersection,episodes=400",
        ModelConfig(
            latent_size=16,
            hidden=(128, 128),
            forward_hidden=(128, 128),
            batch_size=32,
            updates=10_000,
            variance_updates=2_000,
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("prepare", "measure"))
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared arrays")
    parser.add_argument("--datasets", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--decoders", type=int, nargs="+", default=list(DECODERS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"fits (default: {SEEDS})")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs (default: {PAIRS})")
    parser.add_argument("--updates", type=int, help="updates of both phases (default: by dataset)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one core")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after this time")
    parser.add_argument("--fit", help="fit one model: DATASET:DECODERS:SEED")
    parser.add_argument("--results", type=Path, help="also write the records to this file")
    options = parser.parse_args(arguments)
    if options.command == "prepare":
        for name in options.datasets:
            prepare(name, options.data)
    elif options.fit:
        name, decoders, seed = options.fit.split(":")
        measure_fit(name, int(decoders), int(seed), options)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Fit all models that are missing in processes of their own, then compare them."""
    jobs = []
    # Few decoders first: all datasets have a result early.
    for seed in range(options.seeds):
        for decoders in sorted(options.decoders):
            for name in options.datasets:
                if not _place(options.data, name, decoders, seed).exists():
                    jobs.append(f"{name}:{decoders}:{seed}")
    command = [sys.executable, __file__, "measure", "--data", str(options.data)]
    command += ["--pairs", str(options.pairs)]
    if options.updates:
        command += ["--updates", str(options.updates)]
    run_jobs([[*command, "--fit", job] for job in jobs], options.jobs, options.seconds)
    records = []
    for name in options.datasets:
        for decoders in options.decoders:
            files = [_place(options.data, name, decoders, i) for i in range(options.seeds)]
            files = [file for file in files if file.exists()]
            if len(files) > 1:
                records += compare(name, decoders, [np.load(file) for file in files])
    for record in records:
        print(json.dumps(record), flush=True)
    if options.results is not None and records:
        merge_records(options.results, records, KEYS)


def compare(name: str, decoders: int, fits: Sequence[Any]) -> list[Record]:
    """Compare the distances of the same pairs in all models."""
    records = []
    for space in SPACES:
        converged = np.mean([fit[f"{space}-converged"] for fit in fits])
        for distance in DISTANCES:
            found = np.stack([fit[f"{space}-{distance}"] for fit in fits])
            scaled = found / found.mean(axis=1, keepdims=True)
            records.append(
                {
                    "dataset": name,
                    "decoders": decoders,
                    "space": space,
                    "distance": distance,
                    "fits": len(fits),
                    "pairs": found.shape[1],
                    "converged": float(converged),
                    "cv": float(np.median(_vary(found))),
                    "cv_standard_error": _resample(found),
                    "cv_scaled": float(np.median(_vary(scaled))),
                    "cv_scaled_standard_error": _resample(scaled),
                    "rank_agreement": _correlate_ranks(found),
                    "held_out_loss": float(np.mean([fit["loss"] for fit in fits])),
                }
            )
    return records


def _vary(found: Float[np.ndarray, "fits pairs"]) -> Float[np.ndarray, " pairs"]:
    return found.std(axis=0, ddof=1) / found.mean(axis=0)


def _resample(found: Float[np.ndarray, "fits pairs"]) -> float:
    """Compute the standard error of the median from resampled pairs."""
    rng, values = np.random.default_rng(0), _vary(found)
    medians = [np.median(rng.choice(values, len(values))) for _ in range(RESAMPLES)]
    return float(np.std(medians))


def _correlate_ranks(found: Float[np.ndarray, "fits pairs"]) -> float:
    from scipy.stats import rankdata

    correlations = np.corrcoef(rankdata(found, axis=1))
    return float(np.mean(correlations[np.triu_indices(len(found), 1)]))


def prepare(name: str, folder: Path) -> None:
    """Write the arrays of a dataset that a fit needs, in the model's units."""
    import gelato
    from gelato.model.fit import prepare_data
    from gelato.model.split import split_dataset

    case = CASES[name]
    split = split_dataset(gelato.load(case.reference), case.config.held_out_fraction)
    data = prepare_data(split.train, split.held_out, split.scaling, case.config, (0,))
    space = split.train.action_space
    arrays = {"rows": data.rows, "low": np.zeros(0), "high": np.zeros(0), "actions": space.size}
    if isinstance(space, Continuous):
        arrays |= {"low": np.array(space.low), "high": np.array(space.high)}
    for field in ("states", "actions", "rewards", "next_states", "terminated"):
        arrays[f"held_out_{field}"] = getattr(data.held_out, field)
    folder.mkdir(parents=True, exist_ok=True)
    _write_arrays(folder / f"{name}.npz", arrays)
    note(f"{name}: {len(data.rows)} rows")


def measure_fit(name: str, decoders: int, seed: int, options: argparse.Namespace) -> None:
    """Fit one model and write the distances of all pairs."""
    config = replace(CASES[name].config, decoders=decoders)
    if options.updates:
        config = replace(config, updates=options.updates, variance_updates=options.updates)
    stored = np.load(options.data / f"{name}.npz")
    data, space = read_data(stored, config, seed)
    model, loss = fit(config, data, space, seed)
    held_out = data.held_out
    drawn = np.random.default_rng(0).choice(
        len(held_out.states), (2, options.pairs), replace=2 * options.pairs > len(held_out.states)
    )
    results = {"loss": np.asarray(loss)}
    for space_name, (metric, points) in list_spaces(model, held_out).items():
        ends = np.asarray(points)[drawn]
        found = geodesics(metric, *ends, Adaptive(TOLERANCE))
        results[f"{space_name}-geodesic"] = np.asarray(found.length)
        results[f"{space_name}-converged"] = np.asarray(found.converged)
        results[f"{space_name}-euclidean"] = np.linalg.norm(ends[1] - ends[0], axis=1)
    place = _place(options.data, name, decoders, seed)
    place.parent.mkdir(exist_ok=True)
    _write_arrays(place, results)


def read_data(stored: Any, config: ModelConfig, seed: int) -> tuple[FitData, ActionSpace]:
    """Read what `prepare` wrote, with the bootstrap of one seed."""
    held_out = [
        jnp.asarray(stored[f"held_out_{field}"])
        for field in ("states", "actions", "rewards", "next_states", "terminated")
    ]
    batch = Batch(*held_out, weights=jnp.ones((len(held_out[0]), config.decoders)))
    rows = stored["rows"]
    actions = int(stored["actions"])
    space = Continuous(tuple(stored["low"]), tuple(stored["high"]))
    counts = jnp.asarray(draw_bootstrap_counts(len(rows), config.decoders, seed))[None]
    data = FitData(jnp.asarray(rows), counts, batch, batch.states.shape[1], actions)
    return data, space if len(space.low) else Discrete(actions)


def fit(
    config: ModelConfig, data: FitData, space: ActionSpace, seed: int
) -> tuple[LatentModel, float]:
    """Fit a model and return its best weights with their loss on held-out data."""
    seeds = jnp.array([seed])
    models = make_models(config, data.state_size, space, seeds)
    for phase, updates in ((MEANS, config.updates), (VARIANCES, config.variance_updates)):
        state = begin_phase(config, phase, models)
        for _ in range(0, updates, BLOCK):
            state, _, _ = run_block(
                (data, seeds), state, config=config, phase=phase, updates=min(BLOCK, updates)
            )
        models = state.best_model
        if phase == MEANS:
            models = set_support(models, data.choose_inputs(SUPPORT_ROWS))
    return jax.tree.map(lambda leaf: leaf[0], eqx.filter(models, eqx.is_array)), float(
        state.best_loss[0]
    )


class Decoders(eqx.Module):
    """`z -> (μ, σ)` of every decoder."""

    model: LatentModel

    def __call__(self, z: Float[Array, " latent"]) -> tuple[Array, Array]:
        decoded = self.model.decode(z)
        return decoded.mean, jnp.sqrt(decoded.variance)


class DecodedForward(eqx.Module):
    """`e -> (μ, σ)` of every decoder at the mean of the forward model."""

    model: LatentModel

    def __call__(self, e: Float[Array, " embedding"]) -> tuple[Array, Array]:
        return Decoders(self.model)(self.model.forward(e).mean)


def list_spaces(
    model: LatentModel, held_out: Batch
) -> dict[str, tuple[AbstractMetric, Float[Array, "rows dim"]]]:
    """List the two latent spaces: the metric and the points of all held-out rows."""
    codes = jax.vmap(lambda s: model.encode(s).mean)(held_out.states)
    embeddings = jax.vmap(model.embedding)(codes, held_out.actions)
    return {
        "state": (EnsemblePullback(Decoders(model)), codes),
        "embedding": (EnsemblePullback(DecodedForward(model)), embeddings),
    }


def _place(folder: Path, name: str, decoders: int, seed: int) -> Path:
    return folder / "fits" / f"{name}-{decoders}-{seed}.npz"


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    with write_atomically(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **{name: np.asarray(array) for name, array in arrays.items()})


if __name__ == "__main__":
    main()
