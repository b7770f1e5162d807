"""Networks that read or predict images, next to numbers if there are any.

All convolutions are without overlap: the kernel is as large as the stride. Such a layer reads its
input in blocks, so it is the same `Linear` that reads windows. It is one matrix product, also with
an axis of decoders or seeds and in Jacobian-vector products. The NumPy and ONNX policies have it
already. The blocks of an image are patches, and the next layer joins neighbouring patches:

    image ─► patches of 4×4 ─► 4×4 patches of features each ─► grid ─► MLP       encoder
    z ─► MLP ─► grid ─► 4×4 patches of features for each cell ─► 4×4 pixels each       decoder

`find_patches` puts the pixels in this order, once per network. The frames of a window are channels
of one image, so that the first layer sees motion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gelato.data.history import WindowLayout
from gelato.data.observations import ImageShape, ObservationLayout, find_channels
from gelato.model.networks import ACTIVATIONS, MLP, AbstractNetwork, Linear, linear_layers

# Side of a patch of pixels, and features of a patch in the first and the second layer.
PATCH = 4
FEATURES = (32, 64)
# Patches that the second layer joins, per side: for images with sides of at least 32, and for
# smaller ones.
_JOINED, _JOINED_SMALL, _LARGE = 4, 2, 32


@dataclass(frozen=True)
class Reading:
    """What a network reads: a window of observations, or one observation."""

    observed: ObservationLayout
    action_size: int = 0
    history: int = 1

    @property
    def layout(self) -> WindowLayout:
        """The columns of the input."""
        return WindowLayout(self.history, self.observed.size, self.action_size)


def count_joined(image: ImageShape) -> int:
    """Return how many patches per side the second layer joins."""
    sides = [size for axis, size in enumerate(image) if axis != find_channels(image)]
    return _JOINED if min(sides) >= _LARGE else _JOINED_SMALL


@cache
def find_patches(image: ImageShape) -> Int[np.ndarray, "cells joined pixels channels"]:
    """Return the place of every pixel in a flattened image, patch by patch.

    A cell is a square of joined patches. Images are padded to whole cells; places outside of the
    image are the number of its pixels.
    """
    places = np.arange(math.prod(image)).reshape(image)
    axis = find_channels(image)
    places = places[..., None] if axis is None else np.moveaxis(places, axis, -1)
    joined = count_joined(image)
    side = PATCH * joined
    missing = [(0, -size % side) for size in places.shape[:2]]
    places = np.pad(places, (*missing, (0, 0)), constant_values=math.prod(image))
    rows, columns, channels = (places.shape[0] // side, places.shape[1] // side, places.shape[2])
    split = places.reshape(rows, joined, PATCH, columns, joined, PATCH, channels)
    ordered = split.transpose(0, 3, 1, 4, 2, 5, 6)
    return ordered.reshape(rows * columns, joined**2, PATCH**2, channels)


@cache
def find_inputs(
    reading: Reading,
) -> tuple[Int[np.ndarray, " numbers"], tuple[Int[np.ndarray, "cells joined pixels"], ...]]:
    """Return the places of the numbers of an input, and those of the pixels of each image.

    The pixels of all frames of a window are together. Places outside of an image are the number of
    inputs.
    """
    layout, observed = reading.layout, reading.observed
    width = layout.row_size if reading.history > 1 else layout.size
    starts = width * np.arange(reading.history)
    others = np.concatenate([np.arange(observed.numbers), np.arange(observed.size, width)])
    numbers = (starts[:, None] + others).ravel()
    images = []
    for image, part in zip(observed.images, observed.image_parts, strict=True):
        patches, first = find_patches(image), observed.numbers + part.start
        inside = patches < math.prod(image)
        frames = [np.where(inside, start + first + patches, -1) for start in starts]
        together = np.stack(frames, axis=-1).reshape(*patches.shape[:2], -1)
        images.append(np.where(together < 0, layout.size, together))
    return numbers, tuple(images)


class Convolutions(eqx.Module):
    """`x ↦ a(W_L … a(W_1 x))`, each layer by blocks."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, sizes: Sequence[tuple[int, int]], activation: str, *, key: PRNGKeyArray
    ) -> None:
        self.layers = linear_layers([sizes[-1][1]], convolutions=sizes, key=key)
        self.activation = activation

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x


class ImageEncoder(AbstractNetwork):
    """Convolutions over the images of an input; an MLP reads their features and the numbers."""

    trunks: tuple[Convolutions, ...]
    head: MLP
    reading: Reading = eqx.field(static=True)

    def __init__(
        self,
        reading: Reading,
        out_size: int,
        hidden: Sequence[int],
        activation: str,
        *,
        key: PRNGKeyArray,
    ) -> None:
        numbers, images = find_inputs(reading)
        keys = jax.random.split(key, len(images) + 1)
        trunks, features = [], len(numbers)
        for (cells, joined, pixels), trunk_key in zip(
            (places.shape for places in images), keys[1:], strict=True
        ):
            sizes = [(pixels, FEATURES[0]), (joined * FEATURES[0], FEATURES[1])]
            trunks.append(Convolutions(sizes, activation, key=trunk_key))
            features += cells * FEATURES[1]
        self.trunks, self.reading = tuple(trunks), reading
        self.head = MLP(features, out_size, hidden, activation, key=keys[0])

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        numbers, images = find_inputs(self.reading)
        padded = jnp.append(x, 0)
        parts = [x[numbers]]
        for trunk, places in zip(self.trunks, images, strict=True):
            parts.append(trunk(padded[places.ravel()]))
        return self.head(jnp.concatenate(parts))


class ImageDecoder(AbstractNetwork):
    """An MLP that predicts numbers, and features of each image that convolutions turn to pixels."""

    head: MLP
    trunks: tuple[Convolutions, ...]
    pixels: tuple[Linear, ...]
    observed: ObservationLayout = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        observed: ObservationLayout,
        hidden: Sequence[int],
        activation: str,
        *,
        key: PRNGKeyArray,
    ) -> None:
        keys = jax.random.split(key, 2 * len(observed.images) + 1)
        trunks: list[Convolutions] = []
        last: list[Linear] = []
        features = observed.numbers
        for number, image in enumerate(observed.images):
            cells, joined, pixels, channels = find_patches(image).shape
            trunk_key, last_key = keys[2 * number + 1 : 2 * number + 3]
            sizes = [(FEATURES[1], joined * FEATURES[0])]
            trunks.append(Convolutions(sizes, activation, key=trunk_key))
            sizes = [(FEATURES[0], pixels * channels)]
            last += linear_layers([pixels * channels], convolutions=sizes, key=last_key)
            features += cells * FEATURES[1]
        self.head = MLP(in_size, features, hidden, activation, key=keys[0])
        self.trunks, self.pixels, self.observed = tuple(trunks), tuple(last), observed

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        features, start = self.head(x), self.observed.numbers
        parts = [features[:start]]
        for image, trunk, last in zip(self.observed.images, self.trunks, self.pixels, strict=True):
            patches = find_patches(image)
            stop = start + len(patches) * FEATURES[1]
            hidden = ACTIVATIONS[trunk.activation](features[start:stop])
            # Places of the padding follow after all pixels.
            order = np.argsort(patches.ravel(), kind="stable")[: math.prod(image)]
            drawn = last(trunk(hidden)).at[order]
            parts.append(drawn.get(unique_indices=True, mode="promise_in_bounds"))
            start = stop
        return jnp.concatenate(parts)
