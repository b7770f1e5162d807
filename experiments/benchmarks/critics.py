"""Find whether plain critics help `gelato` as they help `mopo`: variants side by side.

python experiments/benchmarks/critics.py --dataset hopper-medium --out runs/critics

`--policy` records D4RL's data again instead (`experiments/benchmarks/d4rl.py`). A latent model is
fitted for every seed; then one program trains all variants. Records are written at every
evaluation.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.mopo import latent, recording
from gelato.agents.sac import SAC
from gelato.arrays import take
from gelato.data.reference import load
from gelato.policy.deploy import deploy_all
from gelato.policy.evaluate import open_evaluator
from gelato.runs.folder import open_run
from gelato.runs.records import Record, write_records
from gelato.tasks.task import normalise_score
from gelato.training.plan import Plan, make_plan
from gelato.training.population import build_population
from gelato.training.program import value_initial_states

_BLOCK = 1_000


def main() -> None:
    """Load or record, fit, train, and write records on the way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="hopper-medium")
    parser.add_argument("--policy", type=Path, help="weights of D4RL's halfcheetah policy")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="to record")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the fitted models")
    parser.add_argument(
        "--variants", nargs="*", default=list(latent.VARIANTS), choices=list(latent.VARIANTS)
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=300_000, help="at most")
    parser.add_argument("--fit-updates", type=int, help="of the latent model")
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=5, help="of the last evaluation: twice")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--name", default="gelato", help="of the file of records")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    started = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.policy is None:
        dataset = load(arguments.dataset)
    else:
        weights = recording.read_policy(arguments.policy)
        dataset = recording.record(
            "HalfCheetah-v5", weights, arguments.transitions, arguments.workers
        )
    print(f"{time.monotonic() - started:.0f} s: data", flush=True)
    plan = make_plan(dataset, "gelato", seeds=arguments.seeds)
    (group,) = plan.groups
    fit = group.fit
    if arguments.fit_updates is not None:
        updates = arguments.fit_updates
        model = replace(fit.model, updates=updates, variance_updates=updates // 5)
        fit = replace(fit, model=model)
    fitted = fit.fit(plan.split_for(group.fit), arguments.runs / "model", plan.seeds)
    print(f"{time.monotonic() - started:.0f} s: fitted the latent model", flush=True)
    _train(arguments, plan, fitted, started)


def _train(arguments: argparse.Namespace, plan: Plan, fitted, started: float) -> None:
    (group,) = plan.groups
    assert isinstance(group.agent, SAC)
    chosen = [latent.VARIANTS[name] for name in arguments.variants]
    fields = {name: getattr(group.agent, name) for name in SAC.__dataclass_fields__}
    agent = latent.SwitchedSAC(**fields)
    names = [method.name for method in group.methods]
    seeds = list(plan.seeds)
    with open_run(arguments.runs / "policies", "agents", methods=names, seeds=seeds) as folder:
        single = build_population(
            plan.split_for(group.fit),
            fitted,
            group.methods,
            plan.seeds,
            plan.settings.penalties,
            folder,
        )
    population = latent.repeat(single, len(chosen))
    print(f"{time.monotonic() - started:.0f} s: built the penalties", flush=True)
    labels = [(name, seed) for name in arguments.variants for seed in seeds]
    order = np.tile(np.arange(len(seeds)), len(chosen))
    encoders = take(fitted.encoders, order)
    weights = np.repeat([variant.weight for variant in chosen], len(seeds))
    scales = np.repeat([variant.reward_scale for variant in chosen], len(seeds))
    constants = (population, jnp.asarray(weights, jnp.float32))
    total, environment = arguments.updates, plan.environment
    assert environment is not None
    state = latent.begin(population, agent, chosen, total)
    records: list[Record] = []
    with open_evaluator(environment, arguments.workers) as evaluate:
        step, begun = 0, time.monotonic()
        while step < total and time.monotonic() - started < arguments.seconds:
            state, metrics = latent.train(constants, state, agent=agent, updates=_BLOCK)
            jax.block_until_ready(metrics)
            step += _BLOCK
            now = time.monotonic()
            if step == _BLOCK:
                begun = now
                print(f"{now - started:.0f} s: compiled", flush=True)
            elif step == 11 * _BLOCK:
                total = plan_updates(total, (now - begun) / 10, arguments.seconds - (now - started))
                state = latent.set_total(state, total)
                print(f"{now - started:.0f} s: {total} updates", flush=True)
            if (
                step * arguments.evaluations // total
                == (step - _BLOCK) * (arguments.evaluations) // total
            ):
                continue
            actors, scaling = agent.actor(state), fitted.scaling
            policies = deploy_all(actors, encoders, scaling, 1, len(labels))
            found = evaluate(policies, arguments.episodes * (2 if step >= total else 1))
            values = np.ravel(value_initial_states(population, state, agent)) / scales
            for index, (name, seed) in enumerate(labels):
                mean = found[index].mean
                row: Record = {
                    "dataset": plan.dataset.reference,
                    "method": "gelato",
                    "variant": name,
                    "seed": seed,
                    "step": step,
                    "total": total,
                    "score": normalise_score(environment, mean),
                    "return": mean,
                    "return_std": float(found[index].returns.std()),
                    "length": float(found[index].lengths.mean()),
                    "first_value": float(values[index]),
                    "seconds": round(time.monotonic() - started, 1),
                }
                row |= {key: float(entry[index]) for key, entry in metrics.items()}
                records.append(row)
            shown = " ".join(f"{row['score']:.0f}" for row in records[-len(labels) :])
            print(f"{now - started:.0f} s, step {step}: {shown}", flush=True)
            write_records(arguments.out / f"{arguments.name}.json", records)


def plan_updates(most: int, block_seconds: float, seconds: float) -> int:
    """Return how many updates fit into the time, with a reserve for evaluations."""
    fit = 0.85 * seconds / block_seconds
    return int(min(most, max(50, fit) * _BLOCK) // (10 * _BLOCK) * 10 * _BLOCK)


if __name__ == "__main__":
    main()
