"""Networks and surfaces with known geodesics; mathematics is tested in double precision."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

from gelato.geometry import Composite, EnsemblePullback, Pullback
from gelato.geometry.metric import stack_ensemble


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


class Gaussians(eqx.Module):
    """`M` random networks `x -> (mean, scale)`, or one where `members` is None."""

    networks: eqx.nn.MLP
    members: int | None = eqx.field(static=True)

    def __init__(self, dim, out, members, key):
        def network(key):
            return eqx.nn.MLP(dim, 2 * out, 12, 1, activation=jnp.tanh, key=key)

        self.members = members
        self.networks = (
            network(key) if members is None else eqx.filter_vmap(network)(jr.split(key, members))
        )

    def __call__(self, x):
        out = (
            self.networks(x)
            if self.members is None
            else eqx.filter_vmap(lambda net: net(x))(self.networks)
        )
        mean, scale = jnp.split(3 * out, 2, axis=-1)
        return mean, 0.3 + jax.nn.softplus(scale)


@pytest.fixture
def forward():
    return Gaussians(4, 3, None, jr.key(10))


@pytest.fixture
def decoder():
    return Gaussians(3, 5, 4, jr.key(11))


@pytest.fixture
def composite(forward, decoder):
    return Composite(forward, decoder)


@pytest.fixture
def ensemble(decoder):
    return EnsemblePullback(decoder)


class Units(eqx.Module):
    """The ensemble's map in other units.

    The units are arrays, so that one compiled program serves all of them.
    """

    decoder: Gaussians
    observed: jax.Array
    latent: jax.Array

    def __call__(self, z):
        return self.observed * stack_ensemble(*self.decoder(z / self.latent))


@pytest.fixture
def in_units(decoder):
    """Return the ensemble's metric in other units of observations and latent states."""
    return lambda observed=1.0, latent=1.0: Pullback(
        Units(decoder, jnp.asarray(observed), jnp.asarray(latent))
    )


def on_sphere(z):
    """Longitude and latitude on the unit sphere."""
    return jnp.stack([jnp.cos(z[1]) * jnp.cos(z[0]), jnp.cos(z[1]) * jnp.sin(z[0]), jnp.sin(z[1])])


def on_torus(z):
    """Angles on a torus with radii 2 and 1."""
    ring = 2 + jnp.cos(z[1])
    return jnp.stack([ring * jnp.cos(z[0]), ring * jnp.sin(z[0]), jnp.sin(z[1])])


@pytest.fixture
def sphere():
    return Pullback(on_sphere)


@pytest.fixture
def torus():
    return Pullback(on_torus)
