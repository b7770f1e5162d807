import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from gelato.dynamics.latent import LatentDynamics, StateNoise
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP, State, rollout, start_episodes
from gelato.model.latent import LatentModel, Scaling
from gelato.uncertainty.embedded import EmbeddedData
from gelato.uncertainty.penalty import EuclideanDistance, penalise
from tests.uncertainty.conftest import data, held_out, model, scaling, transitions  # noqa: F401

HORIZON = 3


def fell(state: Array) -> Array:
    """Ends where the first coordinate is large."""
    return state[0] > 0.0


@pytest.fixture
def mdp(model: LatentModel, scaling: Scaling, data: EmbeddedData) -> PessimisticMDP:  # noqa: F811
    starts = jax.vmap(lambda e: model.embedding.inverse(e)[0])(data.embeddings)
    dynamics = LatentDynamics(model, scaling, fell)
    imagined = ImaginedMDP(dynamics, starts, HORIZON)
    return PessimisticMDP(imagined, EuclideanDistance(data.index, k=3), jnp.array(2.0))


def act_uniformly(z: Array, *, key: Array) -> tuple[Array, None]:
    """Draw any action."""
    del z
    return jax.random.uniform(key, (2,), minval=-1.0), None


ACTION = jnp.array([0.5, -0.5])


def test_the_reward_is_exactly_the_models_less_the_weighted_penalty(mdp: PessimisticMDP) -> None:
    state, key = mdp.reset(key=jax.random.key(0)), jax.random.key(1)
    step = mdp.step(state, ACTION, key=key)
    e = mdp.imagined.dynamics.embed(state.latent, ACTION)
    outcome = mdp.imagined.dynamics.imagine(e, key=key)
    assert step.extra == mdp.penalty(e) > 0
    assert step.reward == outcome.reward - 2.0 * mdp.penalty(e)
    np.testing.assert_array_equal(step.next_latent, outcome.latent)


def test_a_weight_of_zero_leaves_rewards_untouched(mdp: PessimisticMDP) -> None:
    state, key = mdp.reset(key=jax.random.key(0)), jax.random.key(1)
    plain = eqx.tree_at(lambda m: m.penalty_weight, mdp, jnp.array(0.0))
    outcome = mdp.imagined.dynamics.imagine(
        mdp.imagined.dynamics.embed(state.latent, ACTION), key=key
    )
    assert plain.step(state, ACTION, key=key).reward == outcome.reward


def test_a_reset_is_a_state_of_the_data(mdp: PessimisticMDP) -> None:
    state = mdp.reset(key=jax.random.key(3))
    assert int(state.elapsed) == 0
    assert bool((state.latent == mdp.imagined.starts).all(axis=1).any())


def test_the_rule_terminates_and_the_horizon_truncates(mdp: PessimisticMDP) -> None:
    def terminated(state: Array) -> Array:
        return jnp.ones_like(fell(state))

    ending = eqx.tree_at(
        lambda m: m.imagined.dynamics,
        mdp,
        LatentDynamics(mdp.imagined.dynamics.model, mdp.imagined.dynamics.scaling, terminated),
    )
    last = State(mdp.imagined.starts[0], jnp.array(HORIZON - 1))
    step = ending.step(last, ACTION, key=jax.random.key(0))
    assert bool(step.terminated) and not bool(step.truncated)
    endless = eqx.tree_at(
        lambda m: m.imagined.dynamics,
        mdp,
        LatentDynamics(
            mdp.imagined.dynamics.model, mdp.imagined.dynamics.scaling, lambda s: s[0] > jnp.inf
        ),
    )
    step = endless.step(last, ACTION, key=jax.random.key(0))
    assert bool(step.truncated) and not bool(step.terminated)
    first = endless.step(State(mdp.imagined.starts[0], jnp.array(0)), ACTION, key=jax.random.key(0))
    assert not bool(first.truncated)


def add_noise(dynamics: LatentDynamics, factor: float, largest: float = math.inf) -> LatentDynamics:
    noise = StateNoise(jnp.asarray(factor), jnp.asarray(largest))
    return LatentDynamics(dynamics.model, dynamics.scaling, None, noise)


def test_state_noise_has_a_bound(mdp: PessimisticMDP) -> None:
    z, most = mdp.imagined.starts[0], 1e-3
    alike = jax.tree.map(
        lambda x: jnp.broadcast_to(x[:1], x.shape), mdp.imagined.dynamics.model.decoders
    )
    bounded = eqx.tree_at(
        lambda d: d.model.decoders, add_noise(mdp.imagined.dynamics, 1e6, most), alike
    )
    drawn = jax.vmap(lambda key: bounded.decode(z, key=key))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    np.testing.assert_allclose(drawn.std(axis=0), most, rtol=0.05)


def test_a_noisy_state_is_a_draw_from_one_of_the_decoders_and_its_latent_the_encoding(
    mdp: PessimisticMDP,
) -> None:
    noisy = add_noise(mdp.imagined.dynamics, 3.0)
    z = mdp.imagined.starts[0]
    drawn = jax.vmap(lambda key: noisy.decode(z, key=key))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    members = noisy.model.decode(z)
    variance = 9 * members.variance.mean(axis=0) + members.mean.var(axis=0)
    np.testing.assert_allclose(
        drawn.mean(axis=0), members.mean.mean(axis=0), atol=5 * float(variance.max() / 2e4) ** 0.5
    )
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.05)
    e, sharp = noisy.embed(z, ACTION), add_noise(mdp.imagined.dynamics, 0.0)
    outcome, plain = (
        dynamics.imagine(e, key=jax.random.key(1)) for dynamics in (sharp, mdp.imagined.dynamics)
    )
    encoded = jax.vmap(sharp.encode)(noisy.model.decode(plain.latent).mean)
    assert outcome.reward == plain.reward
    assert float(jnp.min(jnp.max(jnp.abs(encoded - outcome.latent), axis=1))) < 1e-5


def test_noisy_latents_stay_where_the_data_reaches(mdp: PessimisticMDP) -> None:
    low, high = jnp.full(3, -0.1), jnp.full(3, 0.1)
    noisy = eqx.tree_at(
        lambda d: (d.model.support.low, d.model.support.high),
        add_noise(mdp.imagined.dynamics, 3.0),
        (low, high),
    )
    latent = noisy.imagine(
        noisy.embed(mdp.imagined.starts[0], ACTION), key=jax.random.key(0)
    ).latent
    assert bool(((low <= latent) & (latent <= high)).all())


def test_episodes_continue_until_they_end_and_then_start_again_from_the_data(
    mdp: PessimisticMDP,
) -> None:
    imagined = mdp.imagined
    states = start_episodes(imagined, 16, key=jax.random.key(0))
    steps, after = rollout(imagined, states, act_uniformly, 6, key=jax.random.key(1))
    assert steps.terminated[:-1].any() and steps.truncated[:-1].any()
    assert not (steps.terminated & steps.truncated).any()
    continued = (steps.latent[1:] == steps.next_latent[:-1]).all(axis=-1)
    np.testing.assert_array_equal(continued, ~steps.ended[:-1])
    restarted = steps.latent[1:][np.asarray(steps.ended[:-1])]
    for z in restarted:
        assert bool((imagined.starts == z).all(axis=1).any())
    np.testing.assert_array_equal(after.elapsed == 0, steps.ended[-1])
    embedding = imagined.dynamics.embed(steps.latent[2, 5], steps.action[2, 5])
    np.testing.assert_allclose(steps.embedding[2, 5], embedding, rtol=1e-4, atol=1e-5)


def test_penalties_of_many_steps_are_those_of_each(mdp: PessimisticMDP) -> None:
    states = start_episodes(mdp.imagined, 8, key=jax.random.key(0))
    steps, _ = rollout(mdp.imagined, states, act_uniformly, 2, key=jax.random.key(1))
    embeddings = steps.embedding.reshape(16, -1)
    U = penalise(mdp.penalty, embeddings)
    np.testing.assert_allclose(U, jax.vmap(mdp.penalty)(embeddings), rtol=1e-4, atol=1e-6)
