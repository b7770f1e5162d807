"""Optimisers with few kernels change every array as Adam does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gelato.compilation import fuse_small_arrays

SHAPES = {"small": (3, 4), "large": (256, 200), "bias": (7,), "other": (130, 300), "one": ()}


@pytest.mark.parametrize(
    "names", [tuple(SHAPES), ("small", "bias"), ("large", "other"), ("large",)]
)
def test_it_is_the_optimiser_it_wraps(names):
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, weight_decay=0.1))
    wrapped = fuse_small_arrays(inner)
    rng = np.random.default_rng(0)

    def drawn():
        return {name: jnp.asarray(rng.normal(size=SHAPES[name]), jnp.float32) for name in names}

    parameters = plain = drawn()
    state, plain_state = wrapped.init(parameters), inner.init(plain)
    for _ in range(3):
        gradient = drawn()
        change, state = jax.jit(wrapped.update)(gradient, state, parameters)
        expected, plain_state = jax.jit(inner.update)(gradient, plain_state, plain)
        parameters, plain = (
            optax.apply_updates(parameters, change),
            optax.apply_updates(plain, expected),
        )
        for name in names:
            np.testing.assert_allclose(parameters[name], plain[name], rtol=1e-5, atol=1e-6)


def test_small_arrays_share_one_and_large_ones_are_left_alone():
    parameters = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    moments = fuse_small_arrays(optax.trace(0.9)).init(parameters).trace
    assert sorted(moment.shape for moment in moments) == [(12 + 7 + 1,), (130, 300), (256, 200)]
