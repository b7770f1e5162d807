import io
from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest

from gelato.data.generate import run_episodes
from gelato.data.observations import ObservationLayout
from gelato.data.recipes import find_recipe
from gelato.report.page.collect.frames import list_frames


def test_gray_images_show_the_same_episodes_as_the_cars_do() -> None:
    pytest.importorskip("highway_env")
    pytest.importorskip("pygame")
    (cars,), (gray,) = (
        run_episodes(find_recipe(name), 0, 0, range(1)) for name in ("highway-fast", "highway-gray")
    )
    np.testing.assert_array_equal(cars.actions, gray.actions)
    np.testing.assert_array_equal(cars.rewards, gray.rewards)
    frames = gray.observations
    assert frames.dtype == np.uint8 and frames.shape[1:] == (1, 128, 64)
    # Cars move, so that frames differ; the road does not.
    assert all((one != other).any() for one, other in pairwise(frames))
    assert (np.ptp(frames, axis=0) == 0).mean() > 0.2


@pytest.mark.parametrize("shape", [(9, 12), (9, 12, 3), (3, 9, 12), (2, 9, 12), (300, 200)])
def test_frames_are_png_files_with_the_pixels_of_the_first_image(shape) -> None:
    images = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (2, *shape), dtype=np.uint8)
    layout = ObservationLayout(2, (shape, (8, 8)))
    pixels = np.concatenate([frames.reshape(2, -1), np.zeros((2, 64), np.uint8)], axis=1)
    uris = list_frames(pixels, layout)
    assert len(uris) == 2
    for uri, frame in zip(uris, frames, strict=True):
        found = np.asarray(images.open(io.BytesIO(b64decode(uri.partition(",")[2]))))
        expected = np.moveaxis(frame, 0, -1) if shape[0] == 3 else frame
        if shape[0] == 2:
            expected = frame[-1]  # the last frame of a stack
        if shape[0] == 300:
            expected = frame[::3, ::3]
        np.testing.assert_array_equal(found, expected)
