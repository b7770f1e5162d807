"""Several forward and reward networks in one latent space."""

import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.dynamics.latent import LatentDynamics
from gelato.errors import InputError
from gelato.model.check import check_model
from gelato.model.config import ModelConfig
from gelato.model.gaussian import Gaussian
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.model.networks import MLP, Mixture, normalise
from gelato.model.objective import compute_variance_loss
from gelato.model.training import fit_model, load_model
from gelato.runs.folder import Run
from tests.model.test_fit import TINY, linear_gaussian
from tests.model.test_objective import batch_of, terms_of
from tests.model.test_pieces import BOX, small_model
from tests.uncertainty.conftest import unit

FORWARDS = 3


@pytest.fixture(scope="module")
def model() -> LatentModel:
    return small_model(forwards=FORWARDS)


def hold(model: LatentModel, member: int) -> LatentModel:
    """Return the model with one pair of its networks."""

    def choose(network: Mixture) -> eqx.Module:
        return jax.tree.map(lambda x: x[member] if eqx.is_array(x) else x, network.members)

    networks = choose(model.forward), choose(model.reward)
    return eqx.tree_at(lambda m: (m.forward, m.reward), model, networks)


def point(seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (6,))


def test_one_network_is_the_model_as_it_was() -> None:
    one, plain = small_model(forwards=1), small_model()
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.forwards == 1 and not isinstance(one.forward, Mixture)


def test_forward_and_reward_are_the_mixtures_of_their_members(model: LatentModel) -> None:
    e = point()
    for network in (model.forward, model.reward):
        assert isinstance(network, Mixture) and len(network) == FORWARDS
        each = [
            jax.tree.map(lambda x, j=j: x[j] if eqx.is_array(x) else x, network.members)(e)
            for j in range(FORWARDS)
        ]
        means, variances = np.array([g.mean for g in each]), np.array([g.variance for g in each])
        assert np.ptp(means, axis=0).min() > 1e-3, "members differ"
        found = network(e)
        np.testing.assert_allclose(found.mean, means.mean(axis=0), rtol=1e-5, atol=1e-6)
        expected = variances.mean(axis=0) + means.var(axis=0)
        np.testing.assert_allclose(found.variance, expected, rtol=1e-5)


def test_the_moments_are_those_of_drawn_outcomes(model: LatentModel) -> None:
    e = point(1)

    def draw(key: jax.Array) -> jax.Array:
        outcome, _ = model.draw_outcome(e, key=key)
        return outcome.sample(key=key)

    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 100_000))
    found = model.forward(e)
    deviation = np.sqrt(found.variance)
    np.testing.assert_allclose(drawn.mean(axis=0), found.mean, atol=0.02 * deviation.max())
    np.testing.assert_allclose(drawn.std(axis=0), deviation, rtol=0.02)


def test_a_step_uses_one_random_pair_of_networks(model: LatentModel) -> None:
    """The reward belongs to the network that moves the state, and all pairs are equally likely."""
    e = point(2)
    latents, rewards = jax.vmap(lambda key: model.draw_outcome(e, key=key))(
        jax.random.split(jax.random.key(1), 3_000)
    )
    each = model.forward.predict_all(e), model.reward.predict_all(e)
    which = jnp.argmin(jnp.abs(latents.mean[:, None] - each[0].mean).sum(axis=-1), axis=1)
    np.testing.assert_allclose(latents.mean, each[0].mean[which], rtol=1e-5)
    np.testing.assert_allclose(rewards.mean, each[1].mean[which], rtol=1e-5)
    shares = np.bincount(np.asarray(which), minlength=FORWARDS) / 3_000
    np.testing.assert_allclose(shares, 1 / FORWARDS, atol=0.04)


def test_the_dynamics_imagine_with_that_pair(model: LatentModel) -> None:
    certain = eqx.tree_at(
        lambda m: [m.forward.members.network.network.layers[-1].bias],
        model,
        [model.forward.members.network.network.layers[-1].bias.at[:, 4:].set(-50.0)],
    )
    dynamics = LatentDynamics(certain, Scaling(unit(3), unit(1), BOX), None)
    e = point(3)
    keys = jax.random.split(jax.random.key(2), 200)
    outcomes = jax.vmap(lambda key: dynamics.imagine(e, key=key))(keys)
    means = certain.forward.predict_all(e).mean
    # σ is at its minimum, √0.001, apart from what the random last layer adds.
    gaps = jnp.linalg.norm(outcomes.latent[:, None] - means, axis=-1)
    assert len(np.unique(np.argmin(gaps, axis=1))) == FORWARDS
    assert float(gaps.min(axis=1).max()) < 0.25


def test_every_term_is_the_mean_of_the_members_own(model: LatentModel) -> None:
    """Without noise in the latent states, a term depends on one member at a time."""
    quiet = eqx.tree_at(
        lambda m: [m.encoder.network.layers[-1].bias, m.forward.members.network.network.layers[-1]],
        model,
        [
            model.encoder.network.layers[-1].bias.at[4:].set(-50.0),
            jax.tree.map(
                lambda x: x.at[:, 4:].set(-50.0 if x.ndim == 2 else 0.0),
                model.forward.members.network.network.layers[-1],
            ),
        ],
    )
    batch = batch_of(400)
    found = terms_of(quiet, batch)
    apart = [terms_of(hold(quiet, member), batch) for member in range(FORWARDS)]
    for name in ("dynamics", "reward", "prediction"):
        each = [float(terms[name]) for terms in apart]
        assert np.ptp(each) > 1e-3 * np.abs(each).max(), "members differ"
        np.testing.assert_allclose(found[name], np.mean(each), rtol=0.02, err_msg=name)
    for name in ("reconstruction", "prior", "policy"):
        np.testing.assert_allclose(found[name], apart[0][name], rtol=0.02)
    likelihoods = [float(compute_variance_loss(hold(quiet, j), batch)) for j in range(FORWARDS)]
    np.testing.assert_allclose(compute_variance_loss(quiet, batch), np.mean(likelihoods), rtol=1e-4)


def test_predictions_are_those_of_every_decoder_after_every_network(model: LatentModel) -> None:
    state, action = jnp.array([0.1, -0.4, 0.7]), jnp.array([0.3, -0.2])
    prediction = predict(model, state, action)
    e = prediction.embedding
    expected = [predict(hold(model, j), state, action).next_states for j in range(FORWARDS)]
    np.testing.assert_allclose(
        prediction.next_states.mean, np.concatenate([each.mean for each in expected]), rtol=1e-5
    )
    np.testing.assert_allclose(
        prediction.next_states.variance,
        np.concatenate([each.variance for each in expected]),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        model.predict_state_means(e), prediction.next_states.mean, rtol=1e-4, atol=1e-6
    )


def test_merging_is_the_law_of_total_variance() -> None:
    parts = Gaussian(jnp.array([[0.0], [2.0]]), jnp.array([[1.0], [3.0]]))
    merged = parts.merge()
    assert (float(merged.mean[0]), float(merged.variance[0])) == (1.0, 3.0)


def test_normalised_layers_ignore_the_scale_of_their_input() -> None:
    network = MLP(3, 2, (8,), "silu", normalised=True, key=jax.random.key(0))
    no_bias = eqx.tree_at(lambda n: n.layers[0].bias, network, jnp.zeros(8))
    x = jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(no_bias(x), no_bias(100 * x), rtol=1e-3)
    hidden = normalise(network.layers[0](x))
    np.testing.assert_allclose([hidden.mean(), hidden.std()], [0, 1], atol=1e-4)
    normed = small_model(forward_norm=True)
    assert normed.forward.network.network.normalised
    assert not normed.reward.mean.normalised and not normed.encoder.network.normalised


CONFIG = replace(TINY, forwards=FORWARDS, forward_norm=True, updates=800, variance_updates=200)


@pytest.mark.slow
def test_a_fit_trains_every_member_and_is_read_back(tmp_path: Path) -> None:
    dataset = linear_gaussian()
    fitted = fit_model(dataset, tmp_path / "run", config=CONFIG)
    description = Run(tmp_path / "run").description["config"]
    assert (description["forwards"], description["forward_norm"]) == (FORWARDS, True)
    model = fitted.seed(0)
    (result,) = check_model(fitted, with_rollouts=False)["seeds"]
    for member in range(FORWARDS):
        alone = replace(fitted, models=jax.tree.map(_lift, hold(model, member)))
        (of_member,) = check_model(alone, with_rollouts=False)["seeds"]
        assert of_member["delta_r2"] > 0.5 and of_member["reward_r2"] > 0.8
    assert result["delta_r2"] > 0.5 and result["reward_r2"] > 0.8
    back = load_model(tmp_path / "run", dataset)
    for a, b in zip(jax.tree.leaves(back.models), jax.tree.leaves(fitted.models), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "rollouts" in check_model(fitted)["seeds"][0]


def _lift(leaf: object) -> object:
    return leaf[None] if eqx.is_array(leaf) else leaf


def test_defaults_added_later_are_not_recorded(tmp_path: Path) -> None:
    """So a folder that an earlier version wrote is continued and not refused."""
    config = replace(TINY, updates=20, variance_updates=10)
    fit_model(linear_gaussian(), tmp_path / "run", config=config)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert "forwards" not in recorded and "forward_norm" not in recorded
    assert recorded["decoders"] == config.decoders
    with pytest.raises(InputError, match="forwards"):
        fit_model(linear_gaussian(), tmp_path / "run", config=replace(config, forwards=2))


def test_there_is_at_least_one_network() -> None:
    with pytest.raises(InputError, match="forwards"):
        ModelConfig(forwards=0)
