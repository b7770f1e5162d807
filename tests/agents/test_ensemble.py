"""MOPO's dynamics on the seam of the latent model's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.baselines.ensemble import LargestDeviation, Member, StateDynamics
from gelato.data.spaces import Continuous
from gelato.data.transitions import Standardiser
from gelato.model.latent import Scaling
from gelato.model.networks import MLP


@pytest.fixture
def dynamics() -> StateDynamics:
    unit = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    members = eqx.filter_vmap(lambda key: Member(MLP(2, 2 * 2 + 1, (8,), "silu", key=key)))(
        jax.random.split(jax.random.key(0), 3)
    )
    scaling = Scaling(unit, unit, Continuous((-1.0,), (1.0,)))
    return StateDynamics(members, scaling, jnp.array([-0.5]), jnp.array([0.5]), 2, lambda state: state[0] > 0.5)


def test_a_step_out_of_the_datas_box_still_ends_the_episode(dynamics: StateDynamics) -> None:
    """The box of the data is that of healthy states: what is clipped into it must have been judged before."""
    outcomes = jax.vmap(lambda key: dynamics.imagine(jnp.array([0.4, 0.0]), key=key))(
        jax.random.split(jax.random.key(1), 200)
    )
    assert bool(outcomes.terminated.any()) and not bool(outcomes.terminated.all())
    assert bool((outcomes.latent <= 0.5).all() & (outcomes.latent >= -0.5).all())


def test_the_penalty_is_the_largest_deviation_of_all_members(dynamics: StateDynamics) -> None:
    e = jnp.array([0.1, -0.3])
    variances = dynamics.predictions(e)[0].variance
    assert variances.shape == (3, 2)
    np.testing.assert_allclose(LargestDeviation(dynamics)(e), np.sqrt(variances.mean(axis=1).max()), rtol=1e-6)
