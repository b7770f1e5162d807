"""Theorem 2 for several forward models: the expectation over a member that is drawn and held."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from gelato.geometry import Composite, freeze, probe, sample
from gelato.geometry.composite import compute_noise_effect
from tests.geometry.conftest import Gaussians

MEMBERS = 3


class Stacked(eqx.Module):
    """A function of one latent point, applied to several that lie one after the other."""

    decoder: Gaussians

    def __call__(self, x):
        mean, scale = jax.vmap(self.decoder)(x.reshape(MEMBERS, -1))
        return mean.reshape(-1, mean.shape[-1]), scale.reshape(-1, scale.shape[-1])


class Joined(eqx.Module):
    """The values of all forward models, one after the other."""

    forwards: Gaussians

    def __call__(self, e):
        mean, scale = self.forwards(e)
        return jnp.ravel(mean), jnp.ravel(scale)


class Held(eqx.Module):
    """One of the forward models."""

    forwards: Gaussians
    member: int

    def __call__(self, e):
        mean, scale = self.forwards(e)
        return mean[self.member], scale[self.member]


@pytest.fixture
def forwards():
    return Gaussians(4, 3, MEMBERS, jr.key(20))


@pytest.fixture
def metric(forwards, decoder):
    return Composite(Joined(forwards), Stacked(decoder), members=MEMBERS)


@pytest.fixture
def each(forwards, decoder):
    """The metrics of the single members."""
    return [Composite(Held(forwards, member), decoder) for member in range(MEMBERS)]


POINT = np.array([0.3, -0.7, 0.2, 0.5])


@eqx.filter_jit
def tensor(metric, point):
    return metric(point)


def test_the_metric_is_the_mean_of_the_members_metrics(metric, each):
    mean = np.mean([tensor(member, jnp.array(POINT)) for member in each], axis=0)
    np.testing.assert_allclose(tensor(metric, jnp.array(POINT)), mean, rtol=1e-12)


def test_the_metric_is_the_average_over_drawn_members_noise_and_decoders(metric, forwards, decoder):
    """Every random number is drawn, and held while the point moves."""
    point = jnp.array(POINT)

    def gram(key):
        choice_key, x_key, forward_key, decoder_key, member_key = jr.split(key, 5)
        which = jr.randint(choice_key, (), 0, MEMBERS)
        noise_F, noise_D = jr.normal(forward_key, (3,)), jr.normal(decoder_key, (5,))
        member = jr.randint(member_key, (), 0, 4)

        def predict(e):
            mean, scale = forwards(e)
            return mean[which], scale[which]

        def decode(x):
            mean, scale = decoder(x)
            return mean[member] + scale[member] * noise_D

        mean, scale = predict(point)
        # In the theorem, x in Ḡ and the noise in J_F are independent, so they are drawn separately.
        J_D = jax.jacfwd(decode)(mean + scale * jr.normal(x_key, (3,)))
        J_F = jax.jacfwd(lambda e: predict(e)[0] + predict(e)[1] * noise_F)(point)
        return J_F.T @ J_D.T @ J_D @ J_F

    grams = np.asarray(jax.jit(jax.vmap(gram))(jr.split(jr.key(2), 100_000)))
    assert grams.dtype == np.float64
    sampled = sample(metric, 3 * MEMBERS, 4_000, key=jr.key(3))
    error = grams.std(axis=0) / np.sqrt(len(grams))
    # Ḡ is an average of 4,000 draws itself, so it has an error as well.
    exact = np.asarray(tensor(sampled, point))
    np.testing.assert_array_less(np.abs(grams.mean(axis=0) - exact), 5 * error + 0.01 * exact.max())
    at_mean = np.asarray(tensor(metric, point))
    assert np.abs(at_mean - exact).max() > 5 * error.max(), "the test can tell them apart"


def test_the_spread_of_the_slopes_is_inside_the_metric(forwards, decoder):
    """With one Ḡ for all members, the metric is that of the mean model plus the spread."""
    linear = jr.normal(jr.key(5), (5, 3))

    class Linear(eqx.Module):
        def __call__(self, x):
            mean = x.reshape(MEMBERS, 3) @ linear.T
            return mean, jnp.ones_like(mean)

    class Certain(eqx.Module):
        def __call__(self, e):
            mean, _ = Joined(forwards)(e)
            return mean, jnp.ones_like(mean)

    found = tensor(Composite(Certain(), Linear(), members=MEMBERS), jnp.array(POINT))
    J = jax.jacfwd(lambda e: forwards(e)[0])(jnp.array(POINT))
    G = linear.T @ linear
    centre = J.mean(axis=0)
    expected = centre.T @ G @ centre + np.mean([(j - centre).T @ G @ (j - centre) for j in J], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.linalg.norm(found - centre.T @ G @ centre) > 0.1 * np.linalg.norm(found)


@pytest.mark.parametrize("variant", ["mean", "sampled", "frozen", "probed"])
def test_products_and_immersions_equal_the_tensors(metric, variant):
    variants = {
        "mean": lambda: metric,
        "sampled": lambda: sample(metric, 3 * MEMBERS, 7, key=jr.key(4)),
        "frozen": lambda: freeze(metric, jnp.array(POINT) + 0.1),
        "probed": lambda: probe(metric, 3 * MEMBERS, 2, key=jr.key(5)),
    }
    v = jnp.array([1.0, -2.0, 0.5, 0.3])

    @eqx.filter_jit
    def three_ways(metric, z):
        immersed = jax.jvp(metric.immersion(z), (z,), (v,))[1]
        return v @ metric(z) @ v, metric.quadratic(z, v), immersed @ immersed

    whole, product, immersed = three_ways(variants[variant](), jnp.array(POINT))
    np.testing.assert_allclose([product, immersed], [whole, whole], rtol=1e-10)


def test_the_noise_effect_is_the_deviation_of_the_outputs_of_a_random_member(forwards, decoder):
    """For linear decoders the formula is exact, so it has to agree with samples."""
    linear = jr.normal(jr.key(6), (5, 3))

    class Linear(eqx.Module):
        def __call__(self, x):
            mean = x.reshape(MEMBERS, 3) @ linear.T
            return mean, jnp.ones_like(mean)

    metric = Composite(Joined(forwards), Linear(), members=MEMBERS)
    found = eqx.filter_jit(compute_noise_effect)(metric, jnp.array(POINT))
    mean, scale = forwards(jnp.array(POINT))

    def draw(key):
        member_key, noise_key = jr.split(key)
        member = jr.randint(member_key, (), 0, MEMBERS)
        return linear @ (mean[member] + scale[member] * jr.normal(noise_key, (3,)))

    drawn = jax.vmap(draw)(jr.split(jr.key(7), 200_000))
    np.testing.assert_allclose(found, np.sqrt(np.sum(np.var(drawn, axis=0))), rtol=0.01)
    alone = [
        compute_noise_effect(
            Composite(Held(forwards, member), lambda x: ((linear @ x)[None], jnp.ones((1, 5)))),
            jnp.array(POINT),
        )
        for member in range(MEMBERS)
    ]
    assert found > np.sqrt(np.mean(np.square(alone))), "disagreement adds to the noise"
