from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gelato
from gelato.data.history import encode_actions
from gelato.dynamics.latent import LatentNoise, make_latent_dynamics
from gelato.dynamics.windowed import WindowedDynamics
from gelato.model.check import check_model
from gelato.model.config import ModelConfig
from gelato.model.training import FittedModel, fit_model, load_model
from gelato.policy.encoded_env import EncodedEnv
from tests.history.systems import record

CONFIG = ModelConfig(
    latent_size=3,
    decoders=2,
    hidden=(32,),
    forward_hidden=(32,),
    batch_size=64,
    updates=1_000,
    variance_updates=50,
)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> FittedModel:
    return fit_model(record(history=2), tmp_path_factory.mktemp("model"), config=CONFIG)


def explain_change(fitted: FittedModel) -> float:
    (found,) = check_model(fitted, with_rollouts=False)["seeds"]
    return float(found["delta_r2"])


@pytest.mark.slow
def test_a_linear_system_with_hidden_velocity_is_identified_from_two_positions(
    fitted: FittedModel, tmp_path: Path
) -> None:
    blind = fit_model(record(), tmp_path, config=CONFIG)
    # The first row of an episode shows one position only, so not everything can be known.
    assert explain_change(fitted) > 0.9
    assert explain_change(blind) < 0.4


def test_a_fitted_model_is_read_back_with_its_history(fitted: FittedModel) -> None:
    loaded = load_model(fitted.run.folder, record(history=2))
    assert loaded.scaling.history == 2
    window = jnp.asarray(record(history=2).transitions[40:41].inputs[0])
    one, other = (each.seed(0).encode(window).mean for each in (fitted, loaded))
    np.testing.assert_array_equal(one, other)
    with pytest.raises(gelato.InputError, match="fingerprints differ"):
        load_model(fitted.run.folder, record(history=3))


def test_noise_moves_decoded_observations_as_far_as_asked(fitted: FittedModel) -> None:
    dynamics = make_latent_dynamics(fitted, 0, state_noise=0.02)
    assert isinstance(dynamics.noise, LatentNoise)
    inputs = jnp.asarray(fitted.scaling.inputs(fitted.parts[0][:500].inputs))
    z = jax.vmap(dynamics.encode)(inputs)
    drawn = dynamics.noise.scale * jax.random.normal(jax.random.key(1), z.shape)
    decode = jax.vmap(lambda z: dynamics.decode(z, key=jax.random.key(0)))
    moved = np.asarray(decode(z + drawn) - decode(z))
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.02, rel=0.3)


def test_the_dynamics_of_judges_carry_the_window_of_decoded_observations(
    fitted: FittedModel,
) -> None:
    plain = make_latent_dynamics(fitted, 0, state_noise=0.0)
    layout, key = fitted.scaling.layout, jax.random.key(3)
    judge = WindowedDynamics(plain, layout)
    start = jnp.asarray(fitted.scaling.inputs(fitted.parts[0][5:6].inputs[0]))
    action = jnp.array([0.3])
    latent = judge.encode(start)
    z, memory = judge.split(latent)
    np.testing.assert_array_equal(z, plain.encode(start))
    np.testing.assert_array_equal(memory, start[layout.row_size :])
    embedding = judge.embed(latent, action)
    seen = plain.decode(z, key=key)
    np.testing.assert_allclose(judge.split(embedding)[0], plain.embed(z, action), rtol=1e-6)
    np.testing.assert_allclose(judge.split(embedding)[1], [*seen, 0.3, 1.0], rtol=1e-6)
    after = judge.imagine(embedding, key=key)
    expected = plain.imagine(plain.embed(z, action), key=key)
    np.testing.assert_allclose(judge.split(after.latent)[0], expected.latent, rtol=1e-6)
    window = judge.decode(after.latent, key=key)
    decoded = plain.decode(expected.latent, key=key)
    np.testing.assert_allclose(window, [*decoded, 0, 1, *seen, 0.3, 1], rtol=1e-5)


class _Rotation(gymnasium.Env):
    """An environment with one observed value that echoes the sum of its actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, **_):
        self.value = np.float32(0.5)
        return np.array([self.value]), {}

    def step(self, action):
        self.value = self.value + np.float32(action[0])
        return np.array([self.value]), 0.0, False, False, {}


def test_encoded_environments_carry_the_window(fitted: FittedModel) -> None:
    environment = EncodedEnv(_Rotation(), fitted)
    layout, space = fitted.scaling.layout, fitted.scaling.action_space
    for _ in range(2):
        memory = layout.start()
        latent, _ = environment.reset()
        observation = np.array([0.5], np.float32)
        for value in (0.1, -0.7, 0.4):
            window = np.asarray(layout.open(observation, memory))
            expected = fitted.seed(0).encode(jnp.asarray(fitted.scaling.inputs(window))).mean
            np.testing.assert_allclose(latent, expected, atol=1e-5)
            action = np.array([value], np.float32)
            memory = np.asarray(layout.remember(window, encode_actions(space, action)))
            latent, *_ = environment.step(action)
            observation = observation + action
