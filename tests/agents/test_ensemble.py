"""MOPO's dynamics on the seam of the latent model's."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset, Standardiser, Transitions
from gelato.dynamics.ensemble import (
    EnsembleConfig,
    LargestDeviation,
    Member,
    StateDynamics,
    fit_ensemble,
)
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.model.split import split_dataset


@pytest.fixture
def dynamics() -> StateDynamics:
    unit = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    members = eqx.filter_vmap(lambda key: Member(MLP(2, 2 * 2 + 1, (8,), "silu", key=key)))(
        jax.random.split(jax.random.key(0), 3)
    )
    scaling = Scaling(unit, unit, Continuous((-1.0,), (1.0,)))
    return StateDynamics(
        members, scaling, jnp.array([-0.5]), jnp.array([0.5]), 2, lambda state: state[0] > 0.5
    )


def test_a_step_out_of_the_datas_box_still_ends_the_episode(dynamics: StateDynamics) -> None:
    """The box of the data is that of healthy states: what is clipped into it must have been judged
    before.
    """
    outcomes = jax.vmap(lambda key: dynamics.imagine(jnp.array([0.4, 0.0]), key=key))(
        jax.random.split(jax.random.key(1), 200)
    )
    assert bool(outcomes.terminated.any()) and not bool(outcomes.terminated.all())
    assert bool((outcomes.latent <= 0.5).all() & (outcomes.latent >= -0.5).all())


def test_the_penalty_is_the_largest_deviation_of_all_members(dynamics: StateDynamics) -> None:
    e = jnp.array([0.1, -0.3])
    variances = dynamics.predict(e)[0].variance
    assert variances.shape == (3, 2)
    np.testing.assert_allclose(
        LargestDeviation(dynamics)(e), np.sqrt(variances.mean(axis=1).max()), rtol=1e-6
    )


def test_an_ensemble_recovers_a_known_system_and_its_best_members_step(tmp_path: Path) -> None:
    """`s′ − s = (a, −s₀)/2`, `r = s₀ + 2a`, some noise, and an end where the state was large."""
    rng = np.random.default_rng(0)
    n = 2000
    states, actions = (
        rng.normal(size=(n, 2)).astype(np.float32),
        rng.uniform(-1, 1, (n, 1)).astype(np.float32),
    )
    change = np.column_stack([actions[:, 0], -states[:, 0]]) / 2 + 0.1 * rng.normal(size=(n, 2))
    data = Transitions(
        states=states,
        actions=actions,
        rewards=(states[:, 0] + 2 * actions[:, 0]).astype(np.float32),
        next_states=(states + change).astype(np.float32),
        terminated=states[:, 1] > 1,
        truncated=np.arange(n) % 20 == 19,
        has_successor=np.ones(n, bool),
        observation_shape=(2,),
        action_space=Continuous((-1.0,), (1.0,)),
    )
    split = split_dataset(Dataset("mine", None, data), 0.2)
    scaling = split.scaling
    config = EnsembleConfig(
        members=4, elites=2, hidden=(32, 32), batch_size=128, learning_rate=3e-3, updates=400
    )
    fitted = fit_ensemble(split, tmp_path, seeds=(0,), config=config)
    one = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, fitted)
    held_out = split.held_out
    s, a = jnp.asarray(scaling.states(held_out.states)), jnp.asarray(held_out.actions)
    outcomes, ends = jax.vmap(one.predict)(jax.vmap(one.embed)(s, a))
    truth = np.column_stack(
        [
            scaling.states(held_out.next_states) - s,
            np.asarray(scaling.rewards(held_out.rewards[:, None])),
        ]
    )
    errors = np.square(np.asarray(outcomes.mean) - truth[:, None])
    assert errors.mean() < 0.1 * truth.var()
    # The noise it was made with, in the model's units.
    deviations = np.sqrt(np.asarray(outcomes.variance).mean(axis=(0, 1)))[:2] * scaling.states.scale
    np.testing.assert_allclose(deviations, 0.1, atol=0.04)
    assert ((np.asarray(ends) > 0) == np.asarray(held_out.terminated)[:, None]).mean() > 0.9
    densities = jax.vmap(
        lambda outcome, row: outcome.log_density(jnp.broadcast_to(row, outcome.mean.shape))
    )
    likelihood = np.asarray(densities(outcomes, jnp.asarray(truth, jnp.float32))).mean(axis=0)
    assert likelihood[:2].mean() >= likelihood[2:].mean()
