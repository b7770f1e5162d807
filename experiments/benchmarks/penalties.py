"""Measure the time of 10,000 imagined steps with each penalty, compared with the ensemble penalty.

python experiments/benchmarks/penalties.py runs/hopper --points 1000000
"""

import argparse
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.speed_records import record_speed
from gelato.model.latent import LatentModel
from gelato.model.training import load_model
from gelato.uncertainty.build import PenaltyInputs, build_penalty, choose_segments
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import AbstractPenalty, penalise
from gelato.uncertainty.registry import list_penalties

RESULTS = Path(__file__).parents[2] / "results" / "speed.json"
STEPS = 10_000


@eqx.filter_jit
def imagine(
    model: LatentModel, penalty: AbstractPenalty, embeddings: jax.Array, key: jax.Array
) -> Any:
    """Imagine a step from every embedding: the next latent state, the reward and the penalty."""
    keys = jax.random.split(key, len(embeddings))
    z = jax.vmap(lambda e, key: model.imagine(e, key=key))(embeddings, keys)
    return z, jax.vmap(lambda e: model.reward(e).mean)(embeddings), penalise(penalty, embeddings)


def seconds(
    model: LatentModel, penalty: AbstractPenalty, embeddings: jax.Array, rounds: int
) -> float:
    """Return the median time of a call, without compilation."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(imagine(model, penalty, embeddings, jax.random.key(0)))
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def main() -> None:
    """Time every penalty and compare it with the ensemble penalty."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--points", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    names = list_penalties("latent")
    parser.add_argument("--penalties", nargs="+", default=list(names), choices=names)
    parser.add_argument(
        "--solved",
        action="store_true",
        help="compute geodesics with the solver, not chords as in training",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    fitted = load_model(arguments.run)
    model = fitted.seed(0)
    train, held_out = fitted.parts
    data = embed(model, fitted.scaling, train, arguments.points)
    known = embed(model, fitted.scaling, held_out, STEPS)
    embeddings = jnp.resize(known.embeddings, (STEPS, known.embeddings.shape[1]))
    raw = build_penalty("ensemble", PenaltyInputs(model, data, known))
    ensemble = seconds(model, raw, embeddings, arguments.rounds)
    segments = None if arguments.solved else choose_segments(model, train)
    inputs = PenaltyInputs(model, data, known, segments=segments)
    for name in arguments.penalties:
        penalty = build_penalty(name, inputs)
        value = (
            ensemble
            if name == "ensemble"
            else seconds(model, penalty, embeddings, arguments.rounds)
        )
        how = " (geodesics solved for)" if arguments.solved else ""
        record = record_speed(
            arguments.results,
            f"penalise {STEPS:,} imagined steps by {name}{how}, {len(data):,} data points",
            round(1000 * value, 2),
            "ms",
            f"by ensemble, {1000 * ensemble:,.2f} ms",
            value / ensemble,
        )
        print(record, flush=True)


if __name__ == "__main__":
    main()
