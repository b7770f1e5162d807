"""The ensemble of MOPO: its dynamics, its penalty and its fit."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset, Standardiser, Transitions
from gelato.dynamics.ensemble import LargestDeviation
from gelato.dynamics.ensemble_training import (
    EnsembleData,
    _init,
    _keep_best,
    _resample,
    fit_ensemble,
)
from gelato.dynamics.state import EnsembleConfig, Member, StateDynamics
from gelato.errors import InputError
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.model.split import Split, split_dataset


@pytest.fixture
def dynamics() -> StateDynamics:
    unit = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    low, high = jnp.full(2, -12.0), jnp.full(2, 1.0)
    members = eqx.filter_vmap(
        lambda key: Member(MLP(2, 2 * 2 + 1, (8,), "silu", key=key), low, high)
    )(jax.random.split(jax.random.key(0), 3))
    scaling = Scaling(unit, unit, Continuous((-1.0,), (1.0,)))
    return StateDynamics(
        members, scaling, jnp.array([-0.5]), jnp.array([0.5]), 2, lambda state: state[0] > 0.5
    )


def test_a_step_out_of_the_datas_box_still_ends_the_episode(dynamics: StateDynamics) -> None:
    """Clipping a state to the range of the data would make it look healthy."""
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


@pytest.fixture
def split() -> Split:
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
    return split_dataset(Dataset("mine", None, data), 0.2)


_SMALL = EnsembleConfig(
    members=4, elites=2, hidden=(32, 32), batch_size=128, learning_rate=3e-3, updates=400
)
# The recipe of version 0.1.
_OLD = replace(
    _SMALL,
    learning_rate_decay=True,
    weight_decay=(0.0, 0.0),
    log_variance=(-12.0, 1.0),
    bound_weight=0.0,
    bootstrap=False,
    by_error=False,
)


@pytest.mark.parametrize("config", [_OLD, _SMALL], ids=["old", "new"])
def test_an_ensemble_recovers_a_known_system_and_its_best_members_step(
    split: Split, tmp_path: Path, config: EnsembleConfig
) -> None:
    scaling = split.scaling
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
    # The noise that the data was made with, in the model's units.
    deviations = np.sqrt(np.asarray(outcomes.variance).mean(axis=(0, 1)))[:2] * scaling.states.scale
    np.testing.assert_allclose(deviations, 0.1, atol=0.04)
    assert ((np.asarray(ends) > 0) == np.asarray(held_out.terminated)[:, None]).mean() > 0.9
    densities = jax.vmap(
        lambda outcome, row: outcome.log_density(jnp.broadcast_to(row, outcome.mean.shape))
    )
    quality = np.asarray(densities(outcomes, jnp.asarray(truth, jnp.float32))).mean(axis=0)
    if config.by_error:
        quality = -errors.mean(axis=(0, 2))
    assert quality[:2].mean() >= quality[2:].mean()


def test_a_fit_ends_when_no_member_improves(split: Split, tmp_path: Path) -> None:
    config = replace(_SMALL, patience=300, updates=20_000)
    fit_ensemble(split, tmp_path, seeds=(0,), config=config)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    last = int(rows[-1].split(",")[0])
    assert config.patience <= last < config.updates


def test_a_seed_that_is_done_keeps_its_best_members(split: Split) -> None:
    """Other seeds may still improve, but they do not change this one."""
    config = replace(_SMALL, patience=300)
    space = split.train.action_space
    states = _init(config, 2, space, jnp.array([0]))
    state = jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, states)
    rows = jnp.zeros((8, 3)), jnp.zeros((8, 4))
    data = EnsembleData(*rows, rows)
    for stale, improves in ((299, True), (300, False)):
        waiting = eqx.tree_at(lambda s: s.stale, state, jnp.array(stale))
        after, errors = _keep_best(waiting, data, config, 100)
        assert bool((after.best_losses == errors).all()) == improves
        assert int(after.stale) == (0 if improves else 400)


def test_weight_decay_shrinks_weights_and_trained_bounds_close(
    split: Split, tmp_path: Path
) -> None:
    free = fit_ensemble(split, tmp_path / "free", seeds=(0,), config=_OLD)
    config = replace(_OLD, weight_decay=(0.01, 0.01), bound_weight=0.1)
    held = fit_ensemble(split, tmp_path / "held", seeds=(0,), config=config)

    def size(dynamics: StateDynamics) -> float:
        return sum(float(jnp.sum(x.weight**2)) for x in dynamics.members.network.layers)

    assert size(held) < 0.8 * size(free)
    np.testing.assert_array_equal(free.members.low, -12)
    np.testing.assert_array_equal(free.members.high, 1)
    assert float(jnp.max(held.members.high - held.members.low)) < 13


def test_every_member_has_a_fixed_sample_of_the_data() -> None:
    rows = jnp.broadcast_to(jnp.arange(1000), (1, 3, 1000))
    key = jax.random.key(0)
    found = np.asarray(_resample(rows, 1000, key=key))
    np.testing.assert_array_equal(found[:, :, :7], _resample(rows[:, :, :7], 1000, key=key))
    for member in found[0]:
        # A sample of n out of n holds a share of 1 − 1/e of the rows.
        assert 0.58 < len(np.unique(member)) / 1000 < 0.68
    assert (found[0, 0] != found[0, 1]).mean() > 0.9


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InputError, match="the first bound must be the smaller one"):
        EnsembleConfig(log_variance=(1.0, -12.0))
    with pytest.raises(InputError, match="must not be negative"):
        EnsembleConfig(weight_decay=(-1.0, 0.0))
