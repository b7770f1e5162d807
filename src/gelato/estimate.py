"""How long a training will take, said before it begins: its arithmetic over this machine's speed at such products."""

import os
import time
from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp

from gelato.agents.ppo import PPOConfig
from gelato.data.transitions import Dataset
from gelato.envs.driving import driving_task
from gelato.methods import Method, TrainConfig, grouped

# Seconds an update takes apart from its products (launches, copies, small operations), and a program takes to compile.
_OVERHEAD = {"cpu": 1.5e-3, "gpu": 1e-4}
_COMPILING = 30.0
# Forward and backward, in passes forward.
_TRAINED = 3
# Of the speed of large products, as batches of a few hundred rows reach it.
_SHARE = 0.5


def expected_seconds(
    dataset: Dataset, methods: Sequence[Method], seeds: int, config: TrainConfig, *, fits: bool = True
) -> float:
    """A rough figure: within a factor of two where it was compared (docs/policies.md)."""
    state, action = dataset.transitions.states.shape[1], dataset.transitions.action_space.size
    groups, ppo, sac = grouped(methods, config), config.ppo, config.sac
    total, updates, programs = 0.0, 0, 0
    if fits and "latent" in groups:
        total += seeds * _fit(config, state, action)
        updates += config.model.updates + config.model.variance_updates
        programs += 3
    ensemble = config.ensemble
    members = ensemble.members * _network((state + action, *ensemble.hidden, 2 * state + 3))
    if "state" in groups:
        total += seeds * ensemble.updates * ensemble.batch_size * _TRAINED * members
        updates, programs = updates + ensemble.updates, programs + 1
    for group, chosen in groups.items():
        seen = config.model.latent_size if group == "latent" else state
        if ppo is not None and group in ("latent", "state"):
            total += seeds * len(chosen) * ppo.total * _driven(config, ppo, seen, state, action)
            updates += ppo.whole_iterations * (ppo.steps + ppo.passes * ppo.minibatches)
            programs += 2
            continue
        if group == "clones":
            update = sac.batch_size * _TRAINED * _network((state, *sac.hidden, 2 * action))
        else:
            imagined = {"latent": _searched(config, action), "state": members, "logged": 0.0}[group]
            update = _policy(config, seen, action, imagined)
        total += seeds * len(chosen) * sac.updates * update
        updates, programs = updates + sac.updates, programs + 1
    overhead = _OVERHEAD.get(jax.default_backend(), _OVERHEAD["gpu"])
    computing = total / _products_per_second() + updates * overhead + programs * _COMPILING
    return computing + _evaluating(dataset, config, len(methods) * seeds)


def _evaluating(dataset: Dataset, config: TrainConfig, policies: int) -> float:
    """Seconds in a simulator slow enough to matter."""
    task = driving_task(dataset.environment)
    if task is None:
        return 0.0
    steps = policies * config.evaluations * config.episodes * task.steps
    return steps * task.step_seconds / (os.cpu_count() or 1)


def _network(sizes: Sequence[int]) -> float:
    """Products of one row through a network."""
    return float(sum(a * b for a, b in pairwise(sizes)))


def _fit(config: TrainConfig, state: int, action: int) -> float:
    model = config.model
    coder = _network((state, *model.hidden, 2 * model.latent_size))
    forward = _network((model.latent_size + action, *model.forward_hidden, 2 * model.latent_size))
    row = 3 * coder + forward + 3 * model.decoders * coder
    return (model.updates + model.variance_updates) * model.batch_size * _TRAINED * row


def _policy(config: TrainConfig, seen: int, action: int, imagined: float) -> float:
    """Products of one update of one policy, with its share of imagined steps."""
    sac = config.sac
    critic = _network((seen + action, *sac.hidden, 1))
    learning = sac.batch_size * (7 * 2 * critic + 4 * _network((seen, *sac.hidden, 2 * action)))
    return learning + sac.branches * sac.horizon / sac.epoch * imagined


def _searched(config: TrainConfig, action: int) -> float:
    """Products of one step imagined in the latent model, most of them in search of its neighbours."""
    model = config.model
    decoded = model.decoders * _network((model.latent_size, *model.hidden, 2 * model.latent_size))
    return config.points * (model.latent_size + action) + (model.latent_size + 1) * decoded


def _driven(config: TrainConfig, ppo: PPOConfig, seen: int, state: int, action: int) -> float:
    """Products of one imagined step of PPO: the model's, those of its neighbours, and of every pass over it."""
    model = config.model
    own = 2 * _network((seen, *ppo.hidden, 2 * action))
    decoded = 2 * model.decoders * _network((seen, *model.hidden, state))
    forward = 3 * _network((seen + action, *model.forward_hidden, 2 * seen))
    return forward + (config.neighbours + 2) * decoded + ppo.passes * _TRAINED * own


def _products_per_second() -> float:
    """Multiply-adds a second of this machine, from a tenth of a second of them, several a call.

    On an accelerator as many at once as there are networks: one alone would be waiting for its launch.
    """
    size, chain = 512, 16
    batch = 1 if jax.default_backend() == "cpu" else 16
    x = jnp.ones((batch, size, size))
    products = jax.jit(lambda x: jax.lax.fori_loop(0, chain, lambda _, x: x @ x / size, x))
    products(x).block_until_ready()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < 0.1:
        products(x).block_until_ready()
        count += chain * batch
    return _SHARE * count * size**3 / (time.perf_counter() - begun)
