"""The parts of an observation: numbers, then images of bytes.

An observation is one flat row everywhere: first its numbers, then the pixels of its images, each in
the order of the environment. Rows of images alone are bytes (uint8) on the host, and rows of both
are `MixedRows`, which hold the pixels as bytes. Each batch is converted to floats after it reached
the device. Networks that read or predict images find their pixels with an `ObservationLayout`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Num, UInt8

from gelato.data.disk_columns import DiskColumn

HostOrDevice = np.ndarray | Array
ImageShape = tuple[int, ...]
# A byte array whose rows have two axes of at least this length holds images.
_LEAST_SIDE = 8
# An axis this short holds the channels (or the frames) of an image.
_MOST_CHANNELS = 7
# Cells per side of a shrunk image, which is no longer than the shortest side.
_CELLS = 8


@dataclass(frozen=True)
class ObservationLayout:
    """How many numbers an observation has, and the shapes of its images."""

    numbers: int
    images: tuple[ImageShape, ...] = ()

    @property
    def size(self) -> int:
        """Number of values in an observation."""
        return self.numbers + self.pixels

    @property
    def pixels(self) -> int:
        """Number of values of all images."""
        return sum(map(math.prod, self.images))

    @property
    def image_parts(self) -> tuple[slice, ...]:
        """The columns of each image among the pixels."""
        stops = np.cumsum([0, *map(math.prod, self.images)]).tolist()
        return tuple(slice(start, stop) for start, stop in pairwise(stops))

    @property
    def parts(self) -> tuple[slice, ...]:
        """The columns of the numbers, if there are any, and of each image."""
        parts = [slice(0, self.numbers)] * bool(self.numbers)
        for part in self.image_parts:
            parts.append(slice(self.numbers + part.start, self.numbers + part.stop))
        return tuple(parts)


class MixedRows(eqx.Module):
    """Rows of numbers and of pixels that look like one array of floats, `[numbers, pixels]`."""

    numbers: Float[HostOrDevice, "*n numbers"]
    pixels: UInt8[HostOrDevice, "*n pixels"]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the joined rows."""
        return len(self.numbers), self.numbers.shape[1] + self.pixels.shape[1]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(
        self, rows: int | slice | Num[HostOrDevice, "*k"] | Bool[HostOrDevice, " n"]
    ) -> "MixedRows":
        return MixedRows(self.numbers[rows], self.pixels[rows])

    def __array__(
        self, dtype: np.dtype | None = None, copy: bool | None = None
    ) -> Float[np.ndarray, "*n state"]:
        """Return the rows as floats, which take four times the memory of the pixels."""
        joined = np.concatenate([self.numbers, self.pixels], axis=-1, dtype=np.float32)
        return joined if dtype is None else joined.astype(dtype, copy=bool(copy))


def split_parts(
    states: Num[HostOrDevice, "n state"] | MixedRows | DiskColumn, numbers: int
) -> tuple[Num[np.ndarray, "n numbers"], Num[np.ndarray, "n pixels"]]:
    """Return the numbers of states and their pixels, in memory and each with its own type."""
    if isinstance(states, MixedRows):
        return np.asarray(states.numbers), np.asarray(states.pixels)
    rows = np.asarray(states)
    return rows[:, :numbers], rows[:, numbers:]


def is_image(dtype: np.dtype, shape: Sequence[int]) -> bool:
    """Return whether observations of this type and shape are images.

    They are bytes with two long axes and at most one axis of channels.
    """
    long = [size for size in shape if size >= _LEAST_SIDE]
    short = [size for size in shape if size <= _MOST_CHANNELS]
    return dtype == np.uint8 and len(long) == 2 and len(short) == len(shape) - 2 <= 1


def find_channels(image: ImageShape) -> int | None:
    """Return the axis of an image that holds its channels, or None if it has none."""
    return None if len(image) == 2 else int(np.argmin(image))


def shrink_images(
    states: Num[HostOrDevice, "n state"] | MixedRows, layout: ObservationLayout
) -> Float[np.ndarray, "n short"]:
    """Return the numbers of states, and the mean brightness of 8×8 cells of each image."""
    numbers, every = split_parts(states, layout.numbers)
    parts = [numbers.astype(np.float32)]
    for image, part in zip(layout.images, layout.image_parts, strict=True):
        pixels, axis = every[:, part].reshape(-1, *image), find_channels(image)
        pixels = pixels[..., None] if axis is None else np.moveaxis(pixels, axis + 1, -1)
        sides = [size // _CELLS for size in pixels.shape[1:3]]
        kept = pixels[:, : _CELLS * sides[0], : _CELLS * sides[1]]
        cells = kept.reshape(len(kept), _CELLS, sides[0], _CELLS, sides[1], -1)
        parts.append(cells.mean(axis=(2, 4), dtype=np.float32).reshape(len(kept), -1))
    return np.concatenate(parts, axis=1)
