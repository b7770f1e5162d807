import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.spaces import Discrete
from gelato.model.config import DEFAULT, PAPER
from gelato.model.fit import draw_bootstrap_counts
from gelato.model.gaussian import log_density
from gelato.model.objective import (
    TERMS,
    Batch,
    calibrate_variance,
    compute_objective_terms,
    compute_variance_loss,
    compute_weighted_sum,
)
from tests.model.test_pieces import small_model


def batch_of(n: int, *, weights=None, discrete: bool = False) -> Batch:
    rng = np.random.default_rng(0)
    actions = np.eye(4)[rng.integers(4, size=n)] if discrete else rng.uniform(-1, 1, (n, 2))
    return Batch(
        states=jnp.asarray(rng.normal(size=(n, 3)), jnp.float32),
        actions=jnp.asarray(actions, jnp.float32),
        rewards=jnp.asarray(rng.normal(size=(n, 1)), jnp.float32),
        next_states=jnp.asarray(rng.normal(size=(n, 3)), jnp.float32),
        terminated=jnp.asarray(rng.integers(2, size=n), jnp.float32),
        weights=jnp.ones((n, 3)) if weights is None else weights,
    )


def terms_of(model, batch, **settings):
    settings = {
        "minimum_variance": 1e-3,
        "per_dimension": False,
        "key": jax.random.key(0),
    } | settings
    return eqx.filter_jit(compute_objective_terms)(model, model.encoder, batch, **settings)


@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_calibrated_variance_is_the_one_of_maximum_likelihood(per_dimension):
    squared = jnp.square(
        jax.random.normal(jax.random.key(0), (2, 500, 3)) * jnp.array([0.5, 1.0, 2.0])
    )
    weights = jnp.ones((2, 500))
    best = calibrate_variance(squared, weights, 1e-6, per_dimension=per_dimension)
    assert best.shape == ((2, 1, 3) if per_dimension else (2, 1, 1))

    def likelihood(factor: float) -> float:
        return float(jnp.mean(log_density(squared, factor * best)))

    assert likelihood(1.0) > max(likelihood(0.97), likelihood(1.03))


def test_the_calibrated_variance_has_a_floor_and_passes_no_gradient():
    weights = jnp.ones((1, 4))
    floor = calibrate_variance(jnp.zeros((1, 4, 2)), weights, 0.01, per_dimension=False)
    np.testing.assert_allclose(floor, 0.01)
    slope = jax.grad(lambda x: calibrate_variance(x, weights, 0.01, per_dimension=True).sum())(
        jnp.ones((1, 4, 2))
    )
    np.testing.assert_array_equal(slope, 0)


def test_terms_are_what_their_formulas_say():
    """Against a plain loop over rows and members, with the noise drawn the same way."""
    model, batch, key = small_model(), batch_of(6), jax.random.key(3)
    terms = terms_of(model, batch, key=key)
    noise = jax.random.normal(key, (3 * 6, 4)).reshape(3, 6, 4).swapaxes(0, 1)
    squared = np.zeros((3, 3, 6, 3))
    prior, dynamics, reward, ends, policy = ([] for _ in range(5))
    for row in range(6):
        s, a, r = batch.states[row], batch.actions[row], batch.rewards[row]
        start, end = model.encode(s), model.encode(batch.next_states[row])
        e = model.embedding(start.sample_from_noise(noise[row, 0]), a)
        forward = model.forward(e)
        latents = [
            start.sample_from_noise(noise[row, 0]),
            end.sample_from_noise(noise[row, 1]),
            forward.sample_from_noise(noise[row, 2]),
        ]
        targets = [s, batch.next_states[row], batch.next_states[row]]
        for index, (z, target) in enumerate(zip(latents, targets, strict=True)):
            squared[index, :, row] = np.square(model.decode(z).mean - target)
        prior.append(0.5 * np.sum(start.variance + start.mean**2 - 1 - np.log(start.variance)))
        dynamics.append(float(end.divergence(forward)))
        reward.append(float(np.square(model.reward(e).mean - r)[0]))
        p = float(model.termination_probability(e))
        ends.append(-np.log(p) if batch.terminated[row] else -np.log(1 - p))
        policy.append(-float(model.policy(s).log_density(a)))
    for index, name in enumerate(("reconstruction", "successor", "prediction")):
        mse = np.maximum(squared[index].mean(axis=(1, 2)), 1e-3)[:, None, None]
        expected = 0.5 * (squared[index] / mse + np.log(2 * np.pi * mse)).sum(axis=-1).mean()
        np.testing.assert_allclose(terms[name], expected, rtol=1e-4)
    np.testing.assert_allclose(terms["prior"], np.mean(prior), rtol=1e-4)
    np.testing.assert_allclose(terms["dynamics"], np.mean(dynamics), rtol=1e-4)
    np.testing.assert_allclose(terms["termination"], np.mean(ends), rtol=1e-4)
    np.testing.assert_allclose(terms["policy"], np.mean(policy), rtol=1e-4)
    mse = max(np.mean(reward), 1e-3)
    np.testing.assert_allclose(
        terms["reward"], 0.5 * (np.mean(reward) / mse + np.log(2 * np.pi * mse)), rtol=1e-4
    )


def test_the_prediction_can_be_left_out_and_changes_no_other_term():
    model, batch = small_model(), batch_of(8)
    every, fewer = terms_of(model, batch), terms_of(model, batch, predict=False)
    assert set(every) - set(fewer) == {"prediction"}
    for name, value in fewer.items():
        np.testing.assert_allclose(value, every[name], rtol=1e-5)


def test_termination_and_policy_leave_the_latent_space_alone():
    model, batch = small_model(), batch_of(8)
    for term in ("termination", "policy"):
        gradient = eqx.filter_grad(lambda m, term=term: terms_of(m, batch)[term])(model)
        for part in (gradient.encoder, gradient.embedding, gradient.forward, gradient.decoders):
            assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(part))


def test_the_target_encoder_learns_nothing_from_the_objective():
    model, batch = small_model(), batch_of(8)

    def loss(target):
        return compute_objective_terms(
            model, target, batch, minimum_variance=1e-3, per_dimension=False, key=jax.random.key(0)
        )["dynamics"]

    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(eqx.filter_grad(loss)(model.encoder)))


def test_a_decoder_with_zero_weight_everywhere_learns_nothing():
    weights = jnp.ones((8, 3)).at[:, 1].set(0.0)
    gradient = eqx.filter_grad(lambda m: terms_of(m, batch_of(8, weights=weights))["successor"])(
        small_model()
    )
    weight = gradient.decoders.mean.layers[0].weight
    assert np.all(weight[1] == 0) and np.any(weight[0] != 0) and np.any(weight[2] != 0)


def test_bootstrap_weights_differ_between_decoders_and_have_mean_one():
    counts = draw_bootstrap_counts(20_000, 5, seed=0)
    weights = counts / counts.mean(axis=0)
    np.testing.assert_allclose(weights.mean(axis=0), 1)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=4 / np.sqrt(20_000))
    np.testing.assert_allclose(counts.var(axis=0), 1, atol=0.05)
    correlation = np.corrcoef(counts.T)[~np.eye(5, dtype=bool)]
    assert np.abs(correlation).max() < 4 / np.sqrt(20_000)
    assert not np.array_equal(counts, draw_bootstrap_counts(20_000, 5, seed=1))


def test_the_loss_is_the_weighted_sum_and_both_presets_weigh_as_documented():
    terms = {name: jnp.asarray(float(index)) for index, name in enumerate(TERMS)}
    assert float(compute_weighted_sum(terms, dict.fromkeys(TERMS, 1.0))) == sum(range(len(TERMS)))
    assert PAPER.term_weights == dict.fromkeys(
        (name for name in TERMS if name != "prediction"), 1.0
    )
    assert DEFAULT.term_weights["prior"] == DEFAULT.term_weights["dynamics"] == DEFAULT.kl_weight


def test_discrete_actions_have_a_categorical_behaviour_policy():
    model, batch = small_model(Discrete(4)), batch_of(5, discrete=True)
    logits = jax.vmap(model.policy)(batch.states)
    chosen = np.asarray(jax.nn.log_softmax(logits))[np.arange(5), np.argmax(batch.actions, axis=1)]
    np.testing.assert_allclose(terms_of(model, batch)["policy"], -chosen.mean(), rtol=1e-5)


def test_phase_two_scores_the_full_gaussians():
    model, batch = small_model(), batch_of(4)
    total = 0.0
    for row in range(4):
        e = model.embedding(model.encode(batch.states[row]).mean, batch.actions[row])
        decoded = model.decode(model.forward(e).mean)
        total -= float(decoded.log_density(jnp.broadcast_to(batch.next_states[row], (3, 3))).mean())
        total -= float(model.reward(e).log_density(batch.rewards[row]))
    np.testing.assert_allclose(compute_variance_loss(model, batch), total / 4, rtol=1e-4)
