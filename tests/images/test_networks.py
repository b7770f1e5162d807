import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.observations import ObservationLayout
from gelato.data.spaces import Continuous
from gelato.model.fit import make_model
from gelato.model.images import ImageDecoder, ImageEncoder, Reading, find_inputs, find_patches
from gelato.model.networks import MLP
from tests.images.systems import TINY

SHAPES = [(16, 16), (64, 64), (20, 13), (16, 24, 3), (3, 16, 24)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pixel_is_in_one_patch_and_a_patch_is_a_square_of_neighbours(shape) -> None:
    places = find_patches(shape)
    inside = places[places < math.prod(shape)]
    np.testing.assert_array_equal(np.sort(inside), np.arange(math.prod(shape)))
    channels = 1 if len(shape) == 2 else 3
    assert places.shape[2:] == (16, channels)
    axis = None if len(shape) == 2 else shape.index(3)
    for patch in places.reshape(-1, 16, channels):
        known = patch[patch < math.prod(shape)]
        if len(known) == 0:
            continue
        spread = [np.ptp(axis) for axis in np.unravel_index(known, shape)]
        assert all(width < 4 for number, width in enumerate(spread) if number != axis)


def test_the_inputs_of_a_window_are_its_numbers_and_the_frames_of_each_image() -> None:
    observed = ObservationLayout(2, ((8, 8), (8, 9, 3)))
    reading = Reading(observed, action_size=1, history=3)
    numbers, images = find_inputs(reading)
    size = reading.layout.size
    assert len(numbers) == 3 * (2 + 1 + 1) and len(images) == 2
    every = np.concatenate([numbers, *(places.ravel() for places in images)])
    np.testing.assert_array_equal(np.sort(every[every < size]), np.arange(size))
    # All frames of a pixel are next to each other, newest first.
    first = images[0][0, 0, :3]
    np.testing.assert_array_equal(first, 2 + reading.layout.row_size * np.arange(3))


@pytest.mark.parametrize("images", [((16, 16),), ((20, 13), (3, 8, 8))])
@pytest.mark.parametrize("numbers", [0, 2])
def test_encoders_and_decoders_read_and_predict_all_values(images, numbers) -> None:
    observed, key = ObservationLayout(numbers, images), jax.random.key(0)
    reading = Reading(observed, action_size=2, history=2)
    encoder = ImageEncoder(reading, 3, (8,), "silu", key=key)
    x = jax.random.normal(key, (reading.layout.size,))
    assert np.all(np.any(np.asarray(jax.jacrev(encoder)(x)) != 0, axis=0))
    decoder = ImageDecoder(3, observed, (8,), "silu", key=key)
    z = jax.random.normal(key, (3,))
    assert decoder(z).shape == (observed.size,)
    assert np.all(np.any(np.asarray(jax.jacfwd(decoder)(z)) != 0, axis=1))


def test_an_encoder_finds_a_shifted_pattern_by_shifted_features() -> None:
    encoder = ImageEncoder(
        Reading(ObservationLayout(0, ((32, 32),))), 3, (8,), "silu", key=jax.random.key(0)
    )
    image = np.zeros((32, 32), np.float32)
    image[3:9, 2:7] = 1
    shifted = np.roll(image, 16, axis=1)
    _, (places,) = find_inputs(encoder.reading)
    features, moved = (
        np.asarray(encoder.trunks[0](jnp.ravel(x)[places.ravel()])).reshape(2, 2, -1)
        for x in (image, shifted)
    )
    np.testing.assert_allclose(moved, np.roll(features, 1, axis=1), rtol=1e-5, atol=1e-6)


def test_the_model_has_convolutions_for_images_and_mlps_for_numbers() -> None:
    space = Continuous((-1.0,), (1.0,))
    plain = make_model(TINY, 5, space, key=jax.random.key(0))
    assert isinstance(plain.encoder.network, MLP) and isinstance(plain.decoders.mean, MLP)
    model = make_model(TINY, 64, space, 2, ((8, 8),), key=jax.random.key(0))
    assert isinstance(model.encoder.network, ImageEncoder)
    assert isinstance(model.decoders.mean, ImageDecoder)
    assert model.members == TINY.decoders and model.observed == ObservationLayout(0, ((8, 8),))
    z, tangent = jnp.ones(4), jnp.arange(4.0)
    # Lengths come from Jacobian-vector products, as for vectors.
    _, pushed = jax.jvp(model.decode_means, (z,), (tangent,))
    np.testing.assert_allclose(
        pushed, jax.jacrev(model.decode_means)(z) @ tangent, rtol=1e-4, atol=1e-5
    )


def test_images_have_less_weight_than_their_pixels() -> None:
    space = Continuous((-1.0,), (1.0,))
    model = make_model(replace(TINY, decoders=1), 258, space, 1, ((16, 16),), key=jax.random.key(0))
    assert model.observed == ObservationLayout(2, ((16, 16),))
    assert eqx.filter_eval_shape(model.decode, jnp.ones(4)).mean.shape == (1, 258)
