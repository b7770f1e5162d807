from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.sources import add_history
from gelato.data.transitions import choose_evenly
from gelato.errors import InputError
from gelato.model.check import check_model
from gelato.model.fit import normalise_batch, prepare_data
from gelato.model.split import split_dataset
from gelato.model.training import fit_model, load_model
from gelato.uncertainty.build import PenaltyInputs, build_geodesic
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.judge import judge_penalties
from gelato.uncertainty.penalty import penalise
from tests.images.systems import SIZE, TINY, make_bars, make_robot

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("make", "numbers"), [(make_bars, 0), (make_robot, 1)])
def test_a_batch_gathered_on_the_device_equals_the_rows_of_the_data(make, numbers) -> None:
    dataset = add_history(make(), 3)
    split = split_dataset(dataset)
    data = prepare_data(split.train, split.held_out, split.scaling, TINY, (0,))
    assert data.frames is not None and all(each.dtype == np.uint8 for each in data.frames)
    assert data.rows.shape[1] == 2 * numbers + 1 + 1 + 1
    rows = choose_evenly(split.train, 30)
    found = data.gather(jnp.asarray(rows), lambda rows: jnp.zeros((len(rows), 0)))
    expected = normalise_batch(split.train[rows], split.scaling)
    for name in ("states", "actions", "rewards", "next_states", "windows", "next_inputs"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    config = replace(TINY, updates=600, variance_updates=50)
    return fit_model(make_bars(40), tmp_path_factory.mktemp("model") / "run", config=config)


def test_a_convolutional_model_predicts_images_better_than_their_mean(fitted) -> None:
    (found,) = check_model(fitted)["seeds"]
    # Against the mean change of every pixel; about half of all pixels never change.
    assert found["delta_r2"] > 0.5 and found["reward_r2"] > 0.5
    assert found["delta_r2_per_dimension"] == []
    rollouts = found["rollouts"]
    assert rollouts["rmse"][0] < 0.7 * rollouts["rmse_of_no_change"][0]


def test_a_model_of_a_camera_and_joints_predicts_both(tmp_path) -> None:
    config = replace(TINY, updates=600, variance_updates=50)
    fitted = fit_model(make_robot(40), tmp_path / "run", config=config)
    (found,) = check_model(fitted, with_rollouts=False)["seeds"]
    (joints,) = found["delta_r2_per_dimension"]
    assert joints > 0.5 and found["delta_r2"] > 0.5


def test_a_fitted_model_is_read_back_from_its_folder(fitted) -> None:
    again = load_model(fitted.run.folder, fitted.dataset)
    frame = jnp.asarray(fitted.scaling.states(np.asarray(fitted.parts[1].states[0])))
    np.testing.assert_array_equal(
        again.seed(0).encode(frame).mean, fitted.seed(0).encode(frame).mean
    )


def test_projected_distances_are_those_of_whole_outputs_within_a_few_percent(
    fitted, monkeypatch
) -> None:
    train, held_out = fitted.parts
    model = fitted.seed(0)
    data, known = (embed(model, fitted.scaling, part, 60) for part in (train, held_out))
    assert data.rows.shape == (60, 0)
    inputs = PenaltyInputs(model, data, known, k=3, segments=2)
    whole = build_geodesic(inputs)
    assert whole.images is not None and whole.images.projection is None
    monkeypatch.setattr("gelato.uncertainty.build.LONG", SIZE**2 - 1)
    projected = build_geodesic(inputs)
    assert projected.images is not None and projected.images.projection is not None
    assert projected.images.outputs.shape == (60, 512)
    ratio = penalise(projected, known.embeddings) / penalise(whole, known.embeddings)
    np.testing.assert_allclose(ratio, 1, atol=0.1)


def test_what_cannot_read_images_says_so_in_one_line(fitted) -> None:
    with pytest.raises(InputError, match="penalties cannot be judged on images yet"):
        judge_penalties(fitted)
