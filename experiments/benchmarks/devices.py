"""Compare a training on eight devices with one on one device: numbers and compiled programs.

python -m experiments.benchmarks.devices

The devices are parts of this machine's CPU. Each training runs in its own process.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.pendulum import make_reference, write_log
from gelato.agents.sac import SAC
from gelato.data.reference import load
from gelato.dynamics.ensemble import EnsembleConfig, EnsembleFit
from gelato.dynamics.latent import LatentFit
from gelato.runs.records import Record, write_records
from gelato.training import group as group_training
from gelato.training.presets import Parts, choose_parts, make_method, vary_method
from gelato.training.sharding import choose_mesh, train_parts
from gelato.training.train import train

SEEDS = 8
PARTS = ("model/model", "ensemble/members", "policies/gelato-l2/last", "policies/mopo/last")
RESULTS = Path(__file__).parents[2] / "results" / "devices.json"
AGENT = SAC(hidden=(16,), batch_size=16, updates=40, epoch=20, branches=8, horizon=2, replay=400)
_COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def make_parts(chosen: Parts) -> Parts:
    """Return tiny settings."""
    model = replace(
        chosen.latent.model,
        decoders=2,
        hidden=(16,),
        forward_hidden=(16,),
        batch_size=16,
        updates=40,
        variance_updates=10,
    )
    ensemble = EnsembleConfig(members=3, elites=2, hidden=(16,), batch_size=16, updates=40)
    settings = replace(chosen.settings, neighbours=3, points=60, evaluations=1, episodes=1)
    return replace(
        chosen,
        latent=LatentFit(model, state_noise=0.01),
        ensemble=EnsembleFit(ensemble),
        sac=AGENT,
        settings=settings,
    )


def main() -> None:
    """Run both trainings and record the largest difference of every file of weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", nargs=2, metavar=("LOG", "FOLDER"), help="train here and print")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train_here(*arguments.train)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = write_log(folder / "log.npz")
        run_on(1, log, folder / "one")
        found = run_on(SEEDS, log, folder / "many")
        records: list[Record] = []
        for part in PARTS:
            difference = measure_difference(
                folder / "one" / f"{part}.npz", folder / "many" / f"{part}.npz"
            )
            record: Record = {
                "weights": part,
                "devices": found["devices"],
                "updates": AGENT.updates,
                "difference": difference,
                "collectives": len(found["collectives"]),
            }
            records.append(record)
        write_records(arguments.results, records)


def run_on(devices: int, log: Path, folder: Path) -> dict[str, Any]:
    """Train in a process with this number of devices; return what it printed."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.devices", "--train", str(log), str(folder)],
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure_difference(one: Path, other: Path) -> float:
    """Return the largest difference of two files of arrays, relative to the array's largest."""
    largest = 0.0
    with np.load(one) as first, np.load(other) as second:
        assert first.files == second.files
        for name in first.files:
            if first[name].dtype.kind != "f":
                assert (first[name] == second[name]).all()
                continue
            scale = np.abs(first[name]).max() or 1.0
            largest = max(largest, float(np.abs(first[name] - second[name]).max() / scale))
    return largest


def train_here(log: str, folder: str) -> None:
    """Train two variants of two methods with eight seeds; print what the programs are made of."""
    dataset = load(make_reference(Path(log)))
    parts = make_parts(choose_parts(dataset))
    methods = []
    for name in ("gelato-l2", "mopo"):
        methods += vary_method(make_method(name, parts), (1.0, 3.0))
    programs: list[str] = []
    build = group_training.build_population

    def keep(*given):
        population = build(*given)
        mesh = choose_mesh(population)
        if mesh is not None:
            states = group_training.init_policies(population, AGENT)
            lowered = train_parts.lower(population, states, agent=AGENT, updates=20, mesh=mesh)
            programs.append(lowered.compile().compiled.as_text())
        return population

    group_training.build_population = keep
    train(dataset, Path(folder), methods, seeds=SEEDS, settings=parts.settings, workers=1)
    found = {
        "devices": jax.device_count(),
        "partitions": [int(count) for text in programs for count in _find_partitions(text)],
        "collectives": [name for text in programs for name in _COLLECTIVE.findall(text)],
        "exchange": _COLLECTIVE.findall(_exchange()) if jax.device_count() > 1 else [],
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


def _find_partitions(program: str) -> list[str]:
    return re.findall(r"num_partitions=(\d+)", program.partition("\n")[0])


def _exchange() -> str:
    """Return a program that gathers an array, to show that the search finds it."""
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    gather = jax.jit(lambda x: jnp.sin(x), in_shardings=split, out_shardings=whole)
    return gather.lower(jnp.ones(jax.device_count())).compile().as_text()


if __name__ == "__main__":
    main()
