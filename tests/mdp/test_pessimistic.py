import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from gelato.mdp.dynamics import Blur, LatentDynamics
from gelato.mdp.pessimistic import PessimisticMDP, State, branch
from gelato.model.latent import LatentModel, Scaling
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.penalty import Euclidean, penalise
from tests.uncertainty.conftest import data, held_out, model, scaling, transitions  # noqa: F401

HORIZON = 3


def fell(state: Array) -> Array:
    """Ends where the first coordinate is large."""
    return state[0] > 0.0


@pytest.fixture
def mdp(model: LatentModel, scaling: Scaling, data: EmbeddedData) -> PessimisticMDP:  # noqa: F811
    starts = jax.vmap(lambda e: model.embedding.inverse(e)[0])(data.embeddings)
    dynamics = LatentDynamics(model, scaling, fell)
    return PessimisticMDP(dynamics, Euclidean(data.index, k=3), jnp.array(2.0), starts, HORIZON)


def uniform(z: Array, *, key: Array) -> Array:
    """Any action."""
    del z
    return jax.random.uniform(key, (2,), minval=-1.0)


ACTION = jnp.array([0.5, -0.5])


def test_the_reward_is_exactly_the_models_less_the_weighted_penalty(mdp: PessimisticMDP) -> None:
    state, key = mdp.reset(key=jax.random.key(0)), jax.random.key(1)
    step = mdp.step(state, ACTION, key=key)
    e = mdp.dynamics.embed(state.latent, ACTION)
    outcome = mdp.dynamics.imagine(e, key=key)
    assert step.penalty == mdp.penalty(e) > 0
    assert step.reward == outcome.reward - 2.0 * mdp.penalty(e)
    np.testing.assert_array_equal(step.state.latent, outcome.latent)


def test_a_weight_of_zero_leaves_rewards_untouched(mdp: PessimisticMDP) -> None:
    state, key = mdp.reset(key=jax.random.key(0)), jax.random.key(1)
    plain = eqx.tree_at(lambda m: m.penalty_weight, mdp, jnp.array(0.0))
    outcome = mdp.dynamics.imagine(mdp.dynamics.embed(state.latent, ACTION), key=key)
    assert plain.step(state, ACTION, key=key).reward == outcome.reward


def test_a_reset_is_a_state_of_the_data(mdp: PessimisticMDP) -> None:
    state = mdp.reset(key=jax.random.key(3))
    assert int(state.elapsed) == 0
    assert bool((state.latent == mdp.starts).all(axis=1).any())


def test_the_rule_terminates_and_the_horizon_truncates(mdp: PessimisticMDP) -> None:
    def terminated(state: Array) -> Array:
        return jnp.ones_like(fell(state))

    ending = eqx.tree_at(
        lambda m: m.dynamics, mdp, LatentDynamics(mdp.dynamics.model, mdp.dynamics.scaling, terminated)
    )
    last = State(mdp.starts[0], jnp.array(HORIZON - 1))
    step = ending.step(last, ACTION, key=jax.random.key(0))
    assert bool(step.terminated) and not bool(step.truncated)
    endless = eqx.tree_at(
        lambda m: m.dynamics, mdp, LatentDynamics(mdp.dynamics.model, mdp.dynamics.scaling, lambda s: s[0] > jnp.inf)
    )
    step = endless.step(last, ACTION, key=jax.random.key(0))
    assert bool(step.truncated) and not bool(step.terminated)
    first = endless.step(State(mdp.starts[0], jnp.array(0)), ACTION, key=jax.random.key(0))
    assert not bool(first.truncated)


def _blurred(dynamics: LatentDynamics, factor: float, most: float = math.inf) -> LatentDynamics:
    blur = Blur(jnp.asarray(factor), jnp.asarray(most))
    return LatentDynamics(dynamics.model, dynamics.scaling, None, blur)


def test_a_blur_has_a_bound(mdp: PessimisticMDP) -> None:
    z, most = mdp.starts[0], 1e-3
    alike = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), mdp.dynamics.model.decoders)
    bounded = eqx.tree_at(lambda d: d.model.decoders, _blurred(mdp.dynamics, 1e6, most), alike)
    drawn = jax.vmap(lambda key: bounded.decode(z, key=key))(jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(drawn.std(axis=0), most, rtol=0.05)


def test_a_blurred_state_is_a_draw_from_one_of_the_decoders_and_its_latent_the_encoding(mdp: PessimisticMDP) -> None:
    blurred = _blurred(mdp.dynamics, 3.0)
    z = mdp.starts[0]
    drawn = jax.vmap(lambda key: blurred.decode(z, key=key))(jax.random.split(jax.random.key(0), 20_000))
    members = blurred.model.decode(z)
    variance = 9 * members.variance.mean(axis=0) + members.mean.var(axis=0)
    np.testing.assert_allclose(
        drawn.mean(axis=0), members.mean.mean(axis=0), atol=5 * float(variance.max() / 2e4) ** 0.5
    )
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.05)
    e, sharp = blurred.embed(z, ACTION), _blurred(mdp.dynamics, 0.0)
    outcome, plain = (dynamics.imagine(e, key=jax.random.key(1)) for dynamics in (sharp, mdp.dynamics))
    encoded = jax.vmap(sharp.start)(blurred.model.decode(plain.latent).mean)
    assert outcome.reward == plain.reward
    assert float(jnp.min(jnp.max(jnp.abs(encoded - outcome.latent), axis=1))) < 1e-5


def test_blurred_latents_stay_where_the_data_reaches(mdp: PessimisticMDP) -> None:
    low, high = jnp.full(3, -0.1), jnp.full(3, 0.1)
    blurred = eqx.tree_at(
        lambda d: (d.model.support.low, d.model.support.high), _blurred(mdp.dynamics, 3.0), (low, high)
    )
    latent = blurred.imagine(blurred.embed(mdp.starts[0], ACTION), key=jax.random.key(0)).latent
    assert bool(((low <= latent) & (latent <= high)).all())


def test_branches_go_on_from_where_they_are_and_start_anew_after_an_end(mdp: PessimisticMDP) -> None:
    rows, embeddings = branch(mdp.dynamics, mdp.starts, uniform, branches=16, horizon=4, key=jax.random.key(0))
    before, after = (x.reshape(4, 16, -1) for x in (rows.latents, rows.next_latents))
    ended = rows.terminated.reshape(4, 16)[:-1] > 0
    assert ended.any() and not ended.all()
    went_on = (before[1:] == after[:-1]).all(axis=-1)
    np.testing.assert_array_equal(went_on, ~ended)
    np.testing.assert_allclose(
        embeddings[5], mdp.dynamics.embed(rows.latents[5], rows.actions[5]), rtol=1e-4, atol=1e-5
    )


def test_penalties_of_many_steps_are_those_of_each(mdp: PessimisticMDP) -> None:
    rows, embeddings = branch(mdp.dynamics, mdp.starts, uniform, branches=8, horizon=2, key=jax.random.key(0))
    assert embeddings.shape[0] == rows.rewards.shape[0] == 16
    U = penalise(mdp.penalty, embeddings)
    np.testing.assert_allclose(U, jax.vmap(mdp.penalty)(embeddings), rtol=1e-4, atol=1e-6)
