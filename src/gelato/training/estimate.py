"""Estimate the duration of a training: multiply-adds divided by this machine's speed."""

import os
import time

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gelato.tasks.task import find_task
from gelato.training.plan import Plan

# Seconds that an update takes apart from its products (launches, copies), and a compilation takes.
_OVERHEAD = {"cpu": 1.5e-3, "gpu": 1e-4}
_COMPILING = 30.0
# The speed of batches of a few hundred rows, as a share of the speed of large products.
_SHARE = 0.5


def estimate_seconds(plan: Plan) -> float:
    """Estimate the duration. Where we compared, it was right within a factor of two."""
    transitions = plan.dataset.transitions
    state_size, action_size = transitions.states.shape[1], transitions.action_space.size
    seeds = len(plan.seeds)
    products = updates = programs = 0.0
    for fit in plan.fits:
        if plan.find_given_model(fit) is None:
            work = fit.estimate_work(state_size, action_size)
            products += seeds * work.products
            updates, programs = updates + work.updates, programs + work.programs
    for group in plan.groups:
        latent_size, step_products = transitions.layout.size, 0.0
        if group.fit is not None:
            latent_size = group.fit.latent_size(state_size)
            step_products = group.fit.count_step_products(
                state_size, action_size, plan.settings.penalties
            )
        work = group.agent.estimate_work(latent_size, action_size, step_products)
        products += seeds * len(group.methods) * work.products
        updates, programs = updates + work.updates, programs + work.programs
    overhead = _OVERHEAD.get(jax.default_backend(), _OVERHEAD["gpu"])
    computing = products / _measure_speed() + updates * overhead + programs * _COMPILING
    return computing + _estimate_evaluation(plan)


def _estimate_evaluation(plan: Plan) -> float:
    """Estimate the seconds in a simulator that is slow enough to matter."""
    task = find_task(plan.dataset.environment)
    if task is None or task.steps is None or task.step_seconds == 0:
        return 0.0
    policies = len(plan.methods) * len(plan.seeds)
    episodes = policies * plan.settings.evaluations * plan.settings.episodes
    return episodes * task.steps * task.step_seconds / (os.cpu_count() or 1)


@jax.jit
def _multiply(x: Float[Array, "batch size size"]) -> Float[Array, "batch size size"]:
    return jax.lax.fori_loop(0, _CHAIN, lambda _, x: x @ x / x.shape[-1], x)


_SIZE, _CHAIN = 512, 16


def _measure_speed() -> float:
    """Measure the multiply-adds per second of this machine for a tenth of a second.

    On an accelerator several products run together: a single one would wait for its launch.
    """
    batch = 1 if jax.default_backend() == "cpu" else 16
    x = jnp.ones((batch, _SIZE, _SIZE))
    _multiply(x).block_until_ready()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < 0.1:
        _multiply(x).block_until_ready()
        count += _CHAIN * batch
    return _SHARE * count * _SIZE**3 / (time.perf_counter() - begun)
