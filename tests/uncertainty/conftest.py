"""A small model and a small dataset that all tests share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.spaces import Continuous
from gelato.data.transitions import Standardiser, Transitions
from gelato.model.latent import LatentModel, Scaling
from gelato.uncertainty.embedded import EmbeddedData, embed

SPACE = Continuous((-1.0, -1.0), (1.0, 1.0))


def unit(size: int) -> Standardiser:
    """Return a standardiser that changes nothing."""
    return Standardiser(np.zeros(size, np.float32), np.ones(size, np.float32))


@pytest.fixture(scope="session")
def scaling() -> Scaling:
    """Return scaling that changes nothing."""
    return Scaling(unit(3), unit(1), SPACE)


@pytest.fixture(scope="session")
def model() -> LatentModel:
    """Make an untrained model; the facts about penalties hold for any network."""
    return LatentModel(
        3,
        SPACE,
        latent_size=3,
        decoders=4,
        hidden=(16,),
        forward_hidden=(16,),
        couplings=2,
        activation="silu",
        minimum_variance=1e-4,
        observation_minimum_variance=1e-6,
        shortcuts=True,
        key=jax.random.key(0),
    )


@pytest.fixture(scope="session")
def transitions() -> Transitions:
    """Make random states and actions; a successor is close to its state."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 3)).astype(np.float32)
    ends = np.zeros(200, bool)
    ends[19::20] = True
    return Transitions(
        states=states,
        actions=rng.uniform(-1, 1, (200, 2)).astype(np.float32),
        rewards=rng.normal(size=200).astype(np.float32),
        next_states=(states + 0.1 * rng.normal(size=(200, 3))).astype(np.float32),
        terminated=np.zeros(200, bool),
        truncated=ends,
        has_successor=np.ones(200, bool),
        observation_shape=(3,),
        action_space=SPACE,
    )


@pytest.fixture(scope="session")
def data(model: LatentModel, scaling: Scaling, transitions: Transitions) -> EmbeddedData:
    """Return the first 150 transitions, embedded."""
    return embed(model, scaling, transitions[:150])


@pytest.fixture(scope="session")
def held_out(model: LatentModel, scaling: Scaling, transitions: Transitions) -> EmbeddedData:
    """Return the other 50 transitions, embedded."""
    return embed(model, scaling, transitions[jnp.arange(150, 200)])
