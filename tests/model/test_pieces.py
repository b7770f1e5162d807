import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gelato.data.spaces import Continuous, Discrete
from gelato.model.coupling import Embedding
from gelato.model.gaussian import Gaussian, make_standard_like
from gelato.model.latent import LatentModel, predict
from gelato.model.networks import MLP, GaussianMLP, SplitGaussian
from gelato.tasks.task import find_task, find_termination_rule


def random_gaussian(key, shape) -> Gaussian:
    mean_key, variance_key = jax.random.split(key)
    return Gaussian(
        jax.random.normal(mean_key, shape), jnp.exp(jax.random.normal(variance_key, shape))
    )


BOX = Continuous((-1.0, -1.0), (1.0, 1.0))


def small_model(action_space=BOX, *, state_size=3, **changes) -> LatentModel:
    settings = {
        "latent_size": 4,
        "decoders": 3,
        "hidden": (16,),
        "forward_hidden": (16, 16),
        "couplings": 2,
        "activation": "silu",
        "minimum_variance": 1e-3,
        "observation_minimum_variance": 1e-4,
        "shortcuts": True,
    }
    return LatentModel(state_size, action_space, **(settings | changes), key=jax.random.key(0))


def trained_looking(embedding: Embedding) -> Embedding:
    """Return an embedding far from the identity, from which training starts."""
    return jax.tree.map(lambda leaf: 3 * leaf if eqx.is_array(leaf) else leaf, embedding)


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 100))
def test_couplings_invert_to_float_precision(latent_size, action_size, layers, seed):
    key = jax.random.key(seed)
    embedding = trained_looking(Embedding(latent_size, action_size, layers, (8,), "tanh", key=key))
    z, a = jax.random.normal(key, (latent_size,)), jax.random.normal(key, (action_size,))
    back_z, back_a = embedding.inverse(embedding(z, a))
    np.testing.assert_allclose(back_z, z, atol=2e-5)
    np.testing.assert_allclose(back_a, a, atol=2e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_couplings_log_determinant_matches_autodiff(layers):
    embedding = trained_looking(Embedding(3, 2, layers, (8,), "silu", key=jax.random.key(layers)))
    z, a = jnp.array([0.3, -1.0, 0.5]), jnp.array([0.2, -0.7])
    jacobian = jax.jacfwd(lambda x: embedding(x[:3], x[3:]))(jnp.concatenate([z, a]))
    np.testing.assert_allclose(
        embedding.log_determinant(z, a), jnp.linalg.slogdet(jacobian)[1], atol=1e-5
    )


def test_every_coordinate_of_the_embedding_depends_on_state_and_action():
    embedding = trained_looking(Embedding(3, 2, 2, (8,), "silu", key=jax.random.key(1)))
    jacobian = jax.jacfwd(lambda x: embedding(x[:3], x[3:]))(jnp.linspace(-1, 1, 5))
    assert (jnp.abs(jacobian[:, :3]).max(axis=1) > 0).all() and (
        jnp.abs(jacobian[:, 3:]).max(axis=1) > 0
    ).all()


def test_the_divergence_of_gaussians_equals_its_closed_form_and_monte_carlo():
    first, second = (
        random_gaussian(jax.random.key(0), (3,)),
        random_gaussian(jax.random.key(1), (3,)),
    )
    samples = jax.vmap(lambda k: first.sample(key=k))(jax.random.split(jax.random.key(2), 200_000))
    ratio = jax.vmap(first.log_density)(samples) - jax.vmap(second.log_density)(samples)
    error = 4 * float(ratio.std()) / np.sqrt(len(samples))
    np.testing.assert_allclose(first.divergence(second), ratio.mean(), atol=error)
    prior = first.divergence(make_standard_like(first))
    closed = 0.5 * (first.variance + first.mean**2 - 1 - jnp.log(first.variance)).sum()
    np.testing.assert_allclose(prior, closed, rtol=1e-5)
    np.testing.assert_allclose(first.divergence(first), 0, atol=1e-6)


def test_the_density_is_scipys():
    from scipy.stats import norm

    gaussian, x = random_gaussian(jax.random.key(0), (4,)), jnp.arange(4.0)
    expected = norm.logpdf(x, gaussian.mean, np.sqrt(gaussian.variance)).sum()
    np.testing.assert_allclose(gaussian.log_density(x), expected, rtol=1e-5)


@pytest.mark.parametrize("network", [GaussianMLP, SplitGaussian])
def test_variances_never_fall_below_the_minimum(network):
    gaussian = network(3, 2, (8,), "silu", 0.01, key=jax.random.key(0))
    points = 100 * jax.random.normal(jax.random.key(1), (500, 3))
    assert (jax.vmap(gaussian)(points).variance >= 0.01).all()


def test_networks_are_smooth_and_a_shortcut_adds_a_linear_map():
    plain = MLP(3, 2, (8,), "tanh", key=jax.random.key(0))
    hessian = jax.hessian(plain)(jnp.ones(3))
    assert (jnp.abs(hessian) > 0).any()
    shortcut = MLP(3, 2, (8,), "tanh", shortcut=True, key=jax.random.key(0))
    without = eqx.tree_at(lambda m: m.shortcut, shortcut, None)
    x = jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(
        shortcut(x) - without(x), shortcut.shortcut.weight @ x, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("space", [Continuous((-1.0,), (1.0,)), Discrete(4)])
@pytest.mark.parametrize("state_size", [1, 288])
def test_the_model_takes_any_actions_and_long_observations(space, state_size):
    model = small_model(space, state_size=state_size)
    prediction = predict(model, jnp.zeros(state_size), jnp.zeros(space.size))
    assert prediction.next_states.mean.shape == (3, state_size) == (model.members, state_size)
    assert prediction.embedding.shape == (4 + space.size,)
    assert 0 <= prediction.termination <= 1


def test_the_mixture_over_decoders_has_its_two_moments_and_its_density():
    model = small_model()
    prediction = predict(model, jnp.array([0.5, -1.0, 2.0]), jnp.array([0.1, 0.9]))
    mixture, parts = prediction.next_state(), prediction.next_states
    np.testing.assert_allclose(mixture.mean, parts.mean.mean(axis=0), rtol=1e-6)
    second_moment = (parts.variance + parts.mean**2).mean(axis=0)
    np.testing.assert_allclose(mixture.variance, second_moment - mixture.mean**2, rtol=1e-4)
    x = jnp.zeros(3)
    densities = [
        np.exp(Gaussian(m, v).log_density(x))
        for m, v in zip(parts.mean, parts.variance, strict=True)
    ]
    np.testing.assert_allclose(prediction.log_density(x), np.log(np.mean(densities)), rtol=1e-4)


def test_imagined_latents_stay_where_the_data_reaches():
    model = small_model()
    bounded = eqx.tree_at(
        lambda m: (m.support.low, m.support.high), model, (-0.01 * jnp.ones(4), 0.01 * jnp.ones(4))
    )
    e = jnp.full(6, 5.0)
    assert jnp.abs(bounded.imagine(e, key=jax.random.key(0))).max() <= 0.01
    assert jnp.abs(model.imagine(e, key=jax.random.key(0))).max() > 0.01


@pytest.mark.parametrize("environment", ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"])
def test_the_known_termination_rules_agree_with_the_simulator(environment):
    from gelato.tasks import make_environment

    simulator = make_environment(environment)
    rule = find_termination_rule(environment, simulator.observation_space.shape[0])
    seen = set()
    for seed in range(12):
        simulator.reset(seed=seed)
        simulator.action_space.seed(seed)
        for _ in range(60):
            state, _, terminated, truncated, _ = simulator.step(simulator.action_space.sample())
            assert bool(rule(jnp.asarray(state))) == terminated
            seen.add(terminated)
            if terminated or truncated:
                break
    assert seen == ({False} if environment == "HalfCheetah-v5" else {False, True})
    assert find_termination_rule("gelato/FourRooms-v0", 2) is None
    assert find_termination_rule(None, 2) is None
    # Equal names or another layout do not make two models equal.
    others = ("HopperBulletEnv-v0", 11), ("dm_control/hopper-hop-v0", 11), ("Hopper-v5", 12)
    assert all(find_termination_rule(*other) is None for other in others)
    for name in ("hopper_medium-v2.hdf5", "Hopper-v5", "hopper-random"):
        assert find_task(name).name == "hopper"
