import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gelato.geometry import (
    Composite,
    EnsemblePullback,
    Euclidean,
    GaussianPullback,
    Pullback,
    Tensor,
    freeze,
    gaussian,
    log_volume,
    probe,
    rank_bound,
    sample,
    volume,
)


@eqx.filter_jit
def tensor(metric, z):
    return metric(z)


@eqx.filter_jit
def squared(metric, z, v):
    return metric.quadratic(z, v)


def point():
    return jnp.array([0.3, -0.7, 0.2, 0.5])


def test_a_linear_map_gives_its_gram_matrix():
    A = jr.normal(jr.key(0), (6, 4))
    np.testing.assert_allclose(Pullback(lambda z: A @ z)(point()), A.T @ A, rtol=1e-12)


def test_polar_coordinates_have_the_metric_diag_1_r_squared():
    polar = Pullback(lambda z: z[0] * jnp.stack([jnp.cos(z[1]), jnp.sin(z[1])]))
    np.testing.assert_allclose(polar(jnp.array([1.7, 0.4])), np.diag([1, 1.7**2]), atol=1e-12)
    np.testing.assert_allclose(volume(polar, jnp.array([1.7, 0.4])), 1.7, rtol=1e-12)


def test_theorem_1_is_the_average_of_random_jacobians_gram_matrices(decoder):
    def one(z):
        mean, scale = decoder(z)
        return mean[0], scale[0]

    z = point()[:3]

    def gram(noise):
        J = jax.jacfwd(lambda z: one(z)[0] + one(z)[1] * noise)(z)
        return J.T @ J

    average = jnp.mean(jax.jit(jax.vmap(gram))(jr.normal(jr.key(1), (30_000, 5))), axis=0)
    exact = tensor(GaussianPullback(one), z)
    np.testing.assert_allclose(average, exact, atol=0.02 * np.max(exact))


def test_theorem_2_is_the_average_over_sampled_noise_and_decoders(forward, decoder, composite):
    # In the theorem, x in Ḡ and the noise in J_F are independent, so they are drawn separately.
    def gram(key):
        x_key, forward_key, decoder_key, member_key = jr.split(key, 4)
        noise_F, noise_D = jr.normal(forward_key, (3,)), jr.normal(decoder_key, (5,))
        member = jr.randint(member_key, (), 0, 4)
        mean, scale = forward(point())
        x = mean + scale * jr.normal(x_key, (3,))
        J_F = jax.jacfwd(lambda e: forward(e)[0] + forward(e)[1] * noise_F)(point())
        J_D = jax.jacfwd(lambda x: decoder(x)[0][member] + decoder(x)[1][member] * noise_D)(x)
        return J_F.T @ J_D.T @ J_D @ J_F

    average = jnp.mean(jax.jit(jax.vmap(gram))(jr.split(jr.key(2), 20_000)), axis=0)
    exact = tensor(sample(composite, 3, 4_000, key=jr.key(3)), point())
    np.testing.assert_allclose(average, exact, atol=0.05 * np.max(exact))


def test_theorem_2_at_the_mean_is_the_average_over_noise_with_x_held_there(
    forward, decoder, composite
):
    mean, _ = eqx.filter_jit(forward)(point())

    def gram(key):
        forward_key, decoder_key, member_key = jr.split(key, 3)
        noise_F, noise_D = jr.normal(forward_key, (3,)), jr.normal(decoder_key, (5,))
        member = jr.randint(member_key, (), 0, 4)
        J_F = jax.jacfwd(lambda e: forward(e)[0] + forward(e)[1] * noise_F)(point())
        J_D = jax.jacfwd(lambda x: decoder(x)[0][member] + decoder(x)[1][member] * noise_D)(mean)
        return J_F.T @ J_D.T @ J_D @ J_F

    average = jnp.mean(jax.jit(jax.vmap(gram))(jr.split(jr.key(2), 20_000)), axis=0)
    exact = tensor(composite, point())
    np.testing.assert_allclose(average, exact, atol=0.05 * np.max(exact))


def test_without_forward_noise_theorem_2_is_the_ensembles_pullback(decoder, ensemble):
    identity = Composite(lambda e: (e, jnp.ones_like(e)), decoder)
    np.testing.assert_allclose(
        tensor(identity, point()[:3]), tensor(ensemble, point()[:3]), rtol=1e-12
    )


def test_the_ensembles_pullback_is_the_mean_of_its_members(decoder, ensemble):
    z = point()[:3]

    def member(i):
        return GaussianPullback(lambda z: jax.tree.map(lambda outputs: outputs[i], decoder(z)))(z)

    members = jax.jit(jax.vmap(member))(jnp.arange(4))
    np.testing.assert_allclose(tensor(ensemble, z), np.mean(members, axis=0), rtol=1e-12)


@pytest.mark.parametrize("variant", ["mean", "sampled", "frozen", "probed"])
def test_products_with_a_tangent_equal_the_tensors(composite, variant):
    variants = {
        "mean": lambda: composite,
        "sampled": lambda: sample(composite, 3, 7, key=jr.key(4)),
        "frozen": lambda: freeze(composite, point() + 0.1),
        "probed": lambda: probe(composite, 3, 2, key=jr.key(5)),
    }
    metric = variants[variant]()
    v = jnp.array([1.0, -2.0, 0.5, 0.3])

    @eqx.filter_jit
    def three_ways(metric, z):
        immersed = jax.jvp(metric.immersion(z), (z,), (v,))[1]
        return v @ metric(z) @ v, metric.quadratic(z, v), immersed @ immersed

    whole, product, immersed = three_ways(metric, point())
    np.testing.assert_allclose([product, immersed], [whole, whole], rtol=1e-10)


def test_random_signs_estimate_the_variance_term_without_bias(composite):
    v = jnp.array([1.0, -2.0, 0.5, 0.3])
    probed = squared(probe(composite, 3, 4096, key=jr.key(6)), point(), v)
    np.testing.assert_allclose(probed, squared(composite, point(), v), rtol=0.02)


def test_a_frozen_variance_term_is_exact_where_it_was_frozen(composite):
    frozen = eqx.filter_jit(lambda metric, z: freeze(metric, z)(z))(composite, point())
    np.testing.assert_allclose(frozen, tensor(composite, point()), rtol=1e-12)


@pytest.mark.parametrize(
    "metric", [Euclidean(), Tensor(lambda z: jnp.diag(1 + z**2)), Pullback(lambda z: jnp.sin(z))]
)
def test_other_metrics_products_equal_their_tensors(metric):
    v = jnp.array([1.0, -2.0, 0.5, 0.3])
    np.testing.assert_allclose(
        squared(metric, point(), v), v @ tensor(metric, point()) @ v, rtol=1e-12
    )


def test_a_scalar_statistic_such_as_a_reward_has_a_pullback_of_rank_one():
    reward = Pullback(lambda z: jnp.sum(jnp.sin(z)))
    gradient = jnp.cos(point())
    np.testing.assert_allclose(reward(point()), jnp.outer(gradient, gradient), rtol=1e-12)
    assert volume(reward, point()) < 1e-12
    assert rank_bound(reward, point()) == 1


def test_separate_mean_and_scale_make_a_gaussian():
    metric = GaussianPullback(gaussian(lambda z: 2 * z, lambda z: z**2))
    np.testing.assert_allclose(metric(point()), jnp.diag(4 + 4 * point() ** 2), rtol=1e-12)
    np.testing.assert_allclose(
        log_volume(metric, point()), jnp.log(volume(metric, point())), rtol=1e-12
    )


def test_too_few_decoders_cannot_make_the_metric_regular(decoder):
    narrow = EnsemblePullback(lambda z: jax.tree.map(lambda out: out[:1, :1], decoder(z)))
    assert rank_bound(narrow, point()[:3]) == 2
    assert float(eqx.filter_jit(volume)(narrow, point()[:3])) < 1e-7
