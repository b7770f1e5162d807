"""Find what limits `mopo` on D4RL's data: one difference at a time, side by side.

python experiments/benchmarks/d4rl.py --policy halfcheetah.npz --out runs/d4rl

The data is recorded again with the policy inside D4RL's file. Make its file of weights by
`--extract ../shared/realdata/d4rl/halfcheetah_medium-v2.hdf5`. Ensembles of several recipes are
fitted in one program and written to the folder; `--ensembles` reads them in a later call. Then one
program trains all variants. Records are written at every evaluation, so that nothing is lost when
the time is over.
"""

import argparse
import os
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.critics import plan_updates
from experiments.mopo import ensembles, policies, recording
from gelato.arrays import stack, take
from gelato.data.reference import load
from gelato.model.split import Split, split_dataset
from gelato.policy.policy import save_policies
from gelato.runs.records import Record, write_records
from gelato.tasks.task import normalise_score
from gelato.tasks.workers import worker_pool

_HELD_OUT = 0.02
_BLOCK = 1_000


def main() -> None:
    """Record, fit, train, and write records on the way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, help="weights of D4RL's policy")
    parser.add_argument("--dataset", help="data of ours to use instead, such as hopper-medium")
    parser.add_argument("--extract", type=Path, help="D4RL file to take the policy from; then stop")
    parser.add_argument("--environment", default="HalfCheetah-v5")
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ensembles", type=Path, help="folder of ensembles fitted before")
    parser.add_argument(
        "--recipes", nargs="*", default=[], help="ensembles to fit without policies"
    )
    parser.add_argument("--fit-updates", type=int, default=300_000)
    parser.add_argument("--variants", nargs="*", default=[], choices=list(policies.VARIANTS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=500_000)
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--branches", type=int, default=10_000, help="rollouts per 1,000 updates")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--name", default="policies", help="of the file of records")
    arguments = parser.parse_args()
    if arguments.extract is not None:
        recording.extract_policy(arguments.extract, arguments.policy)
        return
    started = time.monotonic()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.dataset is not None:
        dataset = load(arguments.dataset)
        arguments.environment = dataset.environment
    elif arguments.policy is not None:
        weights = recording.read_policy(arguments.policy)
        dataset = recording.record(
            arguments.environment, weights, arguments.transitions, arguments.workers
        )
    else:
        parser.error("give --policy or --dataset")
    rewards = dataset.transitions.rewards
    print(
        f"{time.monotonic() - started:.0f} s: {len(rewards):,} transitions, mean return "
        f"{np.sum(rewards) / len(dataset.transitions.episode_slices):.0f}",
        flush=True,
    )
    split = split_dataset(dataset, _HELD_OUT)
    found = _get_ensembles(arguments, split, started)
    if arguments.variants:
        _train(arguments, split, found, started)


def _get_ensembles(
    arguments: argparse.Namespace, split: Split, started: float
) -> dict[tuple[str, int], ensembles.Ensemble]:
    """Read ensembles that were fitted before, and fit the others."""
    names = [policies.VARIANTS[name].ensemble for name in arguments.variants]
    names = list(dict.fromkeys([*arguments.recipes, *names]))
    state_size = len(split.scaling.states.mean)
    sizes = state_size + split.train.action_space.size, state_size + 1
    seeds = range(arguments.seeds)
    found, missing = {}, []
    for name in names:
        path = (arguments.ensembles or arguments.out) / f"{name}.npz"
        if path.exists():
            stacked = ensembles.load(path, *sizes)
            for seed in seeds:
                found[name, seed] = take(stacked, seed)
        else:
            missing += [(name, seed) for seed in seeds]
    if not missing:
        return found
    records: list[Record] = []

    def report(rows: list[Record]) -> None:
        seconds = round(time.monotonic() - started, 1)
        for row in rows:
            records.append({**row, "seconds": seconds})
            print(_summarise(row, ("nll", "r2", "r2_reward", "sigma")), flush=True)
        write_records(arguments.out / f"{arguments.name}-ensembles.json", records)

    fitted = ensembles.fit(split, missing, arguments.fit_updates, report)
    for index, (name, seed) in enumerate(missing):
        found[name, seed] = take(fitted, index)
    for name in dict.fromkeys(name for name, _ in missing):
        stacked = stack([found[name, seed] for seed in seeds])
        ensembles.save(arguments.out / f"{name}.npz", stacked)
    print(f"{time.monotonic() - started:.0f} s: fitted {missing}", flush=True)
    return found


def _train(
    arguments: argparse.Namespace,
    split: Split,
    found: dict[tuple[str, int], ensembles.Ensemble],
    started: float,
) -> None:
    """Train all variants in one program; evaluate them on the way."""
    order = list(found)
    world = policies.make_world(
        split, stack(list(found.values())), arguments.updates, arguments.branches
    )
    labels = [(name, seed) for name in arguments.variants for seed in range(arguments.seeds)]
    chosen = []
    for name, seed in labels:
        variant = policies.VARIANTS[name]
        chosen.append((variant, seed, order.index((variant.ensemble, seed))))
    switches, state = policies.begin(world, chosen, epochs=5)
    constants = (world, switches)
    total = arguments.updates
    scale = jnp.asarray(ensembles.target_units(split)[1], jnp.float32)
    records: list[Record] = []
    with worker_pool(arguments.workers) as executor:
        step, begun, counted = 0, time.monotonic(), 0
        while step < total and time.monotonic() - started < arguments.seconds:
            state, metrics = policies.train(constants, state, updates=_BLOCK)
            step += _BLOCK
            # Wait, so that the clock is right.
            jax.block_until_ready(metrics)
            if step == _BLOCK:
                begun, counted = time.monotonic(), step
            if step == 11 * _BLOCK:
                # Fewer updates where not all of them fit into the time.
                now = time.monotonic()
                left = arguments.seconds - (now - started)
                total = plan_updates(total, (now - begun) / 10, left)
                world = eqx.tree_at(lambda w: w.total, world, jnp.array(float(total)))
                constants = (world, switches)
                print(f"{now - started:.0f} s: {total} updates", flush=True)
            before = (step - _BLOCK) * arguments.evaluations // total
            if step * arguments.evaluations // total == before:
                continue
            measured = {name: np.asarray(values) for name, values in metrics.items()}
            values = np.asarray(policies.value_first_states(constants, state))
            seconds = round(time.monotonic() - started, 1)
            rate = round((step - counted) / (time.monotonic() - begun), 1)
            deployed = policies.deploy(world, switches, state)
            outcomes = recording.evaluate(
                executor, arguments.environment, deployed, arguments.episodes
            )
            for index, ((name, seed), outcome) in enumerate(zip(labels, outcomes, strict=True)):
                kept = outcome.transitions
                rows = ensembles.make_rows(
                    split, kept.states, kept.actions, kept.rewards, kept.next_states
                )
                judged = ensembles.judge(found[chosen[index][0].ensemble, seed], rows, scale)
                row: Record = {
                    "variant": name,
                    "seed": seed,
                    "step": step,
                    "total": total,
                    "score": normalise_score(arguments.environment, float(outcome.returns.mean())),
                    "return": float(outcome.returns.mean()),
                    "return_std": float(outcome.returns.std()),
                    "discounted": float(outcome.discounted.mean()),
                    "first_value": float(values[index]),
                    "seconds": seconds,
                    "updates_per_second": rate,
                }
                row |= {key: float(entry[index]) for key, entry in measured.items()}
                # How well the model knows what the policy really does.
                row |= {f"real_{key}": float(entry) for key, entry in judged.items()}
                records.append(row)
                shown = ("score", "discounted", "first_value", "penalty", "real_r2", "real_nll")
                print(_summarise(row, shown), flush=True)
            print(f"{seconds} s, {rate} updates per second", flush=True)
            write_records(arguments.out / f"{arguments.name}.json", records)
            save_policies(arguments.out / f"{arguments.name}.npz", deployed)
            begun, counted = time.monotonic(), step


def _summarise(row: Record, shown: tuple[str, ...]) -> str:
    name = row.get("variant") or row.get("ensemble")
    numbers = ", ".join(f"{key} {row[key]:.4g}" for key in shown)
    return f"{name} seed {row['seed']} step {row['step']}: {numbers}"


if __name__ == "__main__":
    main()
