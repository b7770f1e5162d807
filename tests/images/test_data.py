import numpy as np
import pytest

from gelato.data import store as minari_store
from gelato.data.columns import make_dataset
from gelato.data.generate import run_episodes
from gelato.data.observations import MixedRows, ObservationLayout, is_image
from gelato.data.recipes import find_recipe
from gelato.data.reference import load
from gelato.data.transitions import Standardiser
from gelato.errors import InputError
from gelato.tasks.environments import make_environment
from gelato.tasks.pixels import draw_pendulum
from tests.images.systems import SIZE, draw_bar, make_bars, make_robot, save_bars


def test_images_stay_bytes_on_the_host_and_rows_are_flat(tmp_path) -> None:
    for transitions in (
        make_bars().transitions,
        load(f"file:{save_bars(tmp_path / 'log.npz')}").transitions,
    ):
        assert transitions.states.dtype == transitions.next_states.dtype == np.uint8
        assert transitions.states.shape == (400, SIZE**2)
        assert transitions.images == (transitions.observation_shape,) == ((SIZE, SIZE),)
        assert transitions.observed == ObservationLayout(0, ((SIZE, SIZE),))
        assert transitions.nbytes < 400 * (2 * SIZE**2 + 40)
        assert transitions[3:5].states.dtype == np.uint8


@pytest.mark.usefixtures("store")
def test_images_survive_minaris_store() -> None:
    dataset = make_bars()
    written = minari_store.write_transitions("mine/bars-v0", dataset, "bars")
    read = minari_store.read("mine/bars-v0").transitions
    assert read.states.dtype == np.uint8 and read.images == ((SIZE, SIZE),)
    assert read.fingerprint() == written.fingerprint() == dataset.transitions.fingerprint()


def test_a_camera_and_joints_are_one_observation_whose_pixels_stay_bytes() -> None:
    dataset, bars = make_robot(), make_bars().transitions
    transitions = dataset.transitions
    assert isinstance(transitions.states, MixedRows)
    assert transitions.states.shape == (400, 1 + SIZE**2)
    assert transitions.observed == ObservationLayout(1, ((SIZE, SIZE),))
    assert transitions.pixels.dtype == np.uint8
    np.testing.assert_array_equal(transitions.pixels, bars.states)
    np.testing.assert_array_equal(np.asarray(transitions.next_states)[:, 1:], bars.next_states)
    assert transitions.nbytes < 400 * (2 * SIZE**2 + 50)
    assert dataset.list_state_names()[:2] == ["joints", "pixel[0]"]
    part = transitions[5:7]
    np.testing.assert_array_equal(part.inputs, np.asarray(transitions.states)[5:7])
    windows = transitions.with_history(2)[5:7].inputs
    np.testing.assert_array_equal(windows[1, : 1 + SIZE**2], part.inputs[1])
    np.testing.assert_array_equal(windows[1, 3 + SIZE**2 :][: 1 + SIZE**2], part.inputs[0])


def test_without_next_observations_images_are_shifted_like_numbers() -> None:
    frames = draw_bar(np.linspace(-1, 1, 6))
    dictionary = {"camera": frames, "joints": np.arange(6.0)}
    ends = np.arange(6) % 3 == 2
    dataset = make_dataset(dictionary, np.zeros((6, 1)), np.zeros(6), timeouts=ends)
    following = np.asarray(dataset.transitions.with_successors().next_states)
    np.testing.assert_array_equal(following[:, 0], [1, 2, 4, 5])
    np.testing.assert_array_equal(following[:, 1:], frames[[1, 2, 4, 5]].reshape(4, -1))


def test_a_window_of_images_holds_the_frames_before_and_zeros_before_the_episode() -> None:
    transitions = make_bars().transitions.with_history(2)
    assert transitions.past.states.dtype == np.uint8
    rows = transitions[np.array([0, 1])]
    layout, states = transitions.layout, np.asarray(transitions.states)
    np.testing.assert_array_equal(rows.inputs[:, : SIZE**2], states[:2])
    np.testing.assert_array_equal(rows.inputs[0, layout.row_size :], 0)
    np.testing.assert_array_equal(rows.inputs[1, layout.row_size :][: SIZE**2], states[0])
    np.testing.assert_array_equal(rows.next_inputs[0], rows.inputs[1])


def test_pixels_have_means_of_their_own_and_one_scale() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 255, (3_000, 64), dtype=np.uint8)
    rows[:, :32] = 7
    transitions = make_dataset(rows.reshape(-1, 8, 8), np.zeros((3_000, 1)), np.zeros(3_000))
    scaling = Standardiser.fit_observations(transitions.transitions)
    np.testing.assert_allclose(scaling.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(scaling.scale, np.sqrt(rows.var(axis=0).mean()), rtol=1e-5)
    assert np.abs(scaling(rows)[:, :32]).max() < 1e-6


def test_bytes_are_images_only_with_two_long_axes() -> None:
    byte, single = np.dtype(np.uint8), np.dtype(np.float32)
    assert is_image(byte, (64, 64)) and is_image(byte, (64, 48, 3)) and is_image(byte, (4, 128, 64))
    assert not is_image(byte, (64,)) and not is_image(byte, (3, 2)) and not is_image(byte, ())
    assert not is_image(single, (64, 64)) and not is_image(byte, (16, 16, 16))


@pytest.mark.parametrize("next_shape", [(10, 10), (16, 12)])
def test_images_of_different_shapes_are_refused_in_one_line(next_shape) -> None:
    frames = draw_bar(np.zeros(4))
    ragged = [*frames[:3], np.zeros(next_shape, np.uint8)]
    with pytest.raises(InputError, match=r"images of different shapes, such as 16×16 and 1"):
        make_dataset(ragged, np.zeros((4, 1)), np.zeros(4))
    others = np.zeros((4, *next_shape), np.uint8)
    with pytest.raises(InputError, match=r"has shape \(4, .*\(images\), but observations has"):
        make_dataset(frames, np.zeros((4, 1)), np.zeros(4), next_observations=others)


def test_a_frame_shows_the_angle_of_the_pendulum_and_nothing_else() -> None:
    angles = np.linspace(0, 2 * np.pi, 9)
    frames = draw_pendulum(np.cos(angles), np.sin(angles))
    assert frames.shape == (9, 64, 64) and frames.dtype == np.uint8
    np.testing.assert_array_equal(frames[0], frames[-1])
    up, left, down = frames[0], frames[2], frames[4]
    np.testing.assert_array_equal(down, up[::-1])
    np.testing.assert_array_equal(left, up.T)
    # The weighted centre of the rod lies in the direction of its angle.
    places = np.arange(64) - 31.5
    weights = frames / frames.sum(axis=(1, 2), keepdims=True)
    x, y = (weights * places).sum(axis=(1, 2)), (weights * places[:, None]).sum(axis=(1, 2))
    np.testing.assert_allclose(np.arctan2(-x, -y) % (2 * np.pi), angles % (2 * np.pi), atol=0.01)
    # Small turns change the frame a little: it is smooth in the angle.
    near = draw_pendulum(np.cos(0.01), np.sin(0.01))
    assert 0 < np.abs(near.astype(float) - up).max() < 80


def test_both_pendulum_datasets_hold_the_same_episodes() -> None:
    (states,), (frames,) = (
        run_episodes(find_recipe(name), 1, 0, range(1)) for name in ("pendulum", "pendulum-pixels")
    )
    np.testing.assert_array_equal(states.actions, frames.actions)
    np.testing.assert_array_equal(states.rewards, frames.rewards)
    drawn = draw_pendulum(states.observations[:, 0], states.observations[:, 1])
    # The environment draws from an angle in double precision.
    assert np.abs(drawn.astype(int) - frames.observations).max() <= 1
    assert np.abs(states.actions).max() > 1


def test_the_pixel_environment_shows_images_for_200_steps() -> None:
    environment = make_environment("gelato/PendulumPixels-v0")
    observation, _ = environment.reset(seed=0)
    assert environment.observation_space.contains(observation)
    ended = [environment.step(np.zeros(1, np.float32))[3] for _ in range(200)]
    assert ended == [False] * 199 + [True]
