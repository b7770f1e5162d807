"""A training on as many devices as XLA_FLAGS says; it prints what its programs are made of.

python -m tests.devices_run LOG FOLDER
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from gelato.agents.sac import SAC
from gelato.data.reference import load
from gelato.dynamics.ensemble import EnsembleConfig, EnsembleFit
from gelato.dynamics.latent import LatentFit
from gelato.training import group as group_training
from gelato.training.presets import Parts, choose_parts, make_method, vary_method
from gelato.training.sharding import choose_mesh, train_parts
from gelato.training.train import train

SEEDS = 8
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


def main(log: str, folder: str) -> None:
    """Train two variants of two methods with eight seeds."""
    dataset = load(f"file:{log},environment=Pendulum-v1,low=-2,high=2")
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
    main(*sys.argv[1:])
