"""The parts of an observation: numbers, then images of bytes.

An observation is one flat row everywhere: first its numbers, then the pixels of its images, each in
the order of the environment. Rows of images alone are bytes (uint8) on the host. Each batch is
converted to floats after it reached the device. Networks that read or predict images find their
pixels with an `ObservationLayout`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ImageShape = tuple[int, ...]
# A byte array whose rows have two axes of at least this length holds images.
_LEAST_SIDE = 8
# An axis this short holds the channels (or the frames) of an image.
_MOST_CHANNELS = 7


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
    def parts(self) -> tuple[slice, ...]:
        """The columns of the numbers, if there are any, and of each image."""
        parts, start = [slice(0, self.numbers)] * bool(self.numbers), self.numbers
        for image in self.images:
            parts.append(slice(start, start + math.prod(image)))
            start += math.prod(image)
        return tuple(parts)


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
