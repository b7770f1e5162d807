"""Facts of the penalties, against brute force and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from gelato.data.transitions import Transitions
from gelato.errors import InputError
from gelato.geometry import Converged, EnsemblePullback, Near, Pullback, distance, prepare
from gelato.geometry import Euclidean as Flat
from gelato.model.latent import LatentModel, Scaling, predict
from gelato.uncertainty import registry
from gelato.uncertainty.build import (
    DecoderOutput,
    PenaltyInputs,
    build_penalty,
    estimate_growth_rate,
    fit_transport,
)
from gelato.uncertainty.calibration import calibrate
from gelato.uncertainty.embedded import (
    EmbeddedData,
    embed_pairs,
    rms,
    sample_out_of_distribution,
)
from gelato.uncertainty.penalty import (
    AbstractPenalty,
    EuclideanDistance,
    GeodesicDistance,
    Nothing,
    penalise,
)
from gelato.uncertainty.registry import list_penalties, register_penalty

NEIGHBOURLY = ("transport", "geodesic", "euclidean", "ambient")


class DecodedForward(eqx.Module):
    """`e -> (μ_D, σ_D)(μ_F(e))`: the decoders at the forward model's mean."""

    model: LatentModel

    def __call__(self, e: Array) -> tuple[Array, Array]:
        return DecoderOutput(self.model)(self.model.forward(e).mean)


def build_decoder_metric(model: LatentModel) -> EnsemblePullback:
    """Build a metric that is cheaper than the one of Theorem 2."""
    return EnsemblePullback(DecodedForward(model))


@pytest.fixture(scope="module")
def penalties(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> dict[str, AbstractPenalty]:
    inputs = PenaltyInputs(model, data, held_out, k=3)
    return {name: build_penalty(name, inputs) for name in list_penalties("latent")}


def test_one_neighbour_gives_zero_at_a_data_point_and_its_neighbours_distance_left_out(
    data: EmbeddedData,
) -> None:
    points = np.asarray(data.embeddings)
    gaps = np.linalg.norm(points[7] - np.delete(points, 7, axis=0), axis=1)
    penalty = EuclideanDistance(data.index, k=1)
    assert penalty(data.embeddings[7]) == 0
    np.testing.assert_allclose(penalty(data.embeddings[7], 7), gaps.min(), rtol=1e-5)


def test_geodesic_left_out_is_the_distance_to_the_nearest_under_the_metric(
    model: LatentModel, data: EmbeddedData
) -> None:
    metric = build_decoder_metric(model)
    penalty = GeodesicDistance(data.index, metric, k=1, shortlist=len(data) - 1)
    others = jnp.delete(data.embeddings, 7, axis=0)
    every = eqx.filter_jit(
        jax.vmap(lambda other: distance(metric, data.embeddings[7], other, Near()))
    )(others)
    np.testing.assert_allclose(
        eqx.filter_jit(penalty)(data.embeddings[7], 7), every.min(), rtol=1e-4
    )
    assert eqx.filter_jit(penalty)(data.embeddings[7]) == 0


def test_a_flat_metric_makes_geodesic_euclidean(data: EmbeddedData, held_out: EmbeddedData) -> None:
    flat = GeodesicDistance(
        data.index, Flat(), k=5, shortlist=5, solver=Converged(modes=2, nodes=4)
    )
    plain = EuclideanDistance(data.index, k=5)
    e = held_out.embeddings[:4]
    np.testing.assert_allclose(penalise(flat, e), penalise(plain, e), rtol=1e-4)


def test_lengths_between_images_are_bounds_that_meet_the_geodesic_for_near_points(
    model: LatentModel,
    data: EmbeddedData,
    held_out: EmbeddedData,
    penalties: dict[str, AbstractPenalty],
) -> None:
    chord, bent, four = (
        build_penalty("geodesic", PenaltyInputs(model, data, held_out, k=3, segments=segments))
        for segments in (1, 2, 4)
    )
    e = held_out.embeddings[:20]
    short, longer, longest = (penalise(penalty, e) for penalty in (chord, bent, four))
    assert (short <= longer * (1 + 1e-5)).all() and (longer <= longest * (1 + 1e-5)).all()
    # Very close to a data point, all of them are the speed of the metric times the distance.
    beside = data.embeddings[:5] + 1e-3 * jax.random.normal(
        jax.random.key(0), data.embeddings[:5].shape
    )
    near = []
    for segments in (None, 1, 2):
        inputs = PenaltyInputs(model, data, held_out, k=1, segments=segments)
        near.append(penalise(build_penalty("geodesic", inputs), beside))
    np.testing.assert_allclose(near[1], near[0], rtol=0.02)
    np.testing.assert_allclose(near[2], near[0], rtol=0.02)
    np.testing.assert_allclose(short, penalise(penalties["geodesic"], e), rtol=0.2)


@pytest.mark.parametrize("name", list_penalties("latent"))
def test_penalties_are_never_negative_and_compiled_calls_agree_with_plain_ones(
    name: str, penalties: dict[str, AbstractPenalty], held_out: EmbeddedData
) -> None:
    e = held_out.embeddings[:6]
    together = penalise(penalties[name], e)
    assert (together >= 0).all()
    # Without compilation where that is cheap, else one by one.
    dear = ("transport", "extrapolation", "geodesic")
    one = eqx.filter_jit(penalties[name]) if name in dear else penalties[name]
    np.testing.assert_allclose(together[:2], [one(row) for row in e[:2]], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", NEIGHBOURLY)
def test_the_order_of_the_data_does_not_matter(
    name: str,
    model: LatentModel,
    data: EmbeddedData,
    held_out: EmbeddedData,
    penalties: dict[str, AbstractPenalty],
) -> None:
    order = np.random.default_rng(1).permutation(len(data))
    shuffled = EmbeddedData(
        prepare(data.embeddings[order]), data.residuals[order], data.rows[order]
    )
    again = build_penalty(name, PenaltyInputs(model, shuffled, held_out, k=3))
    e = held_out.embeddings[:6]
    np.testing.assert_allclose(penalise(again, e), penalise(penalties[name], e), rtol=2e-4)


@pytest.mark.parametrize("name", ("geodesic", "euclidean"))
def test_points_moved_off_a_known_manifold_are_penalised_more(name: str) -> None:
    angles = jnp.linspace(0, 2 * jnp.pi, 100, endpoint=False)
    circle = prepare(jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1))
    stretched = Pullback(lambda p: jnp.stack([p[0], p[1], p @ p]))
    penalty = {
        "geodesic": GeodesicDistance(circle, stretched, k=5),
        "euclidean": EuclideanDistance(circle, k=5),
    }[name]
    radii = jnp.array([1.0, 1.2, 1.5, 2.0])
    values = penalise(penalty, radii[:, None] * jnp.array([0.6, 0.8]))
    assert (jnp.diff(values) > 0).all()


def test_transport_is_residuals_plus_the_rate_times_noise_times_distance(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> None:
    geodesic = GeodesicDistance(data.index, build_decoder_metric(model), k=4, shortlist=4)
    penalty = fit_transport(geodesic, PenaltyInputs(model, data, held_out))
    e = held_out.embeddings[0]
    gaps = jnp.linalg.norm(data.embeddings - e, axis=1)
    rows = jnp.argsort(gaps)[:4]
    lengths = eqx.filter_jit(jax.vmap(lambda other: distance(geodesic.metric, e, other, Near())))(
        data.embeddings[rows]
    )
    forward = model.forward(e)

    def outputs(z: Array) -> Array:
        decoded = model.decode(z)
        return jnp.stack([decoded.mean, jnp.sqrt(decoded.variance)])

    moved = jax.jacfwd(outputs)(forward.mean) * jnp.sqrt(forward.variance)
    noise = jnp.sqrt(jnp.sum(moved**2) / moved.shape[1] / moved.shape[2])
    expected = jnp.mean(data.residuals[rows] + penalty.beta * noise * lengths)
    np.testing.assert_allclose(eqx.filter_jit(penalty)(e), expected, rtol=1e-4)


def test_the_rate_makes_transport_a_bound_on_half_of_the_held_out_errors(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> None:
    geodesic = GeodesicDistance(data.index, build_decoder_metric(model), k=4, shortlist=4)
    penalty = fit_transport(geodesic, PenaltyInputs(model, data, held_out))
    np.testing.assert_allclose(penalty.beta, estimate_growth_rate(penalty, held_out))
    bounded = penalise(penalty, held_out.embeddings) >= held_out.residuals
    assert bounded.mean() >= 0.5


def test_residuals_are_the_models_one_step_errors(
    model: LatentModel, transitions: Array, data: EmbeddedData
) -> None:
    predicted = predict(
        model, jnp.asarray(transitions.states[3]), jnp.asarray(transitions.actions[3])
    ).next_state()
    np.testing.assert_allclose(
        data.residuals[3], rms(predicted.mean - transitions.next_states[3]), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["geodesic", "euclidean"])
def test_calibration_puts_data_near_zero_and_foreign_pairs_near_one(
    name: str,
    model: LatentModel,
    scaling: Scaling,
    data: EmbeddedData,
    penalties: dict[str, AbstractPenalty],
) -> None:
    calibrated = calibrate(penalties[name], model, scaling, data, sample=100)
    rows = jnp.arange(len(data))[-100:]
    inside = penalise(calibrated, data.embeddings[rows], rows)
    known, others = (
        penalise(
            calibrated, sample_out_of_distribution(model, scaling, data, 100, key=jax.random.key(k))
        )
        for k in (0, 1)
    )
    assert jnp.median(inside) < 0.2
    np.testing.assert_allclose(jnp.median(known), 1, rtol=1e-4)
    assert jnp.median(others) > 0.5


def test_a_penalty_that_is_nowhere_larger_keeps_its_unit(
    model: LatentModel, scaling: Scaling, data: EmbeddedData
) -> None:
    calibrated = calibrate(Nothing(), model, scaling, data, sample=20)
    assert (calibrated.scale.level, calibrated.scale.unit) == (0, 1)


def test_duplicates_of_the_data_do_not_set_the_rate(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> None:
    geodesic = GeodesicDistance(data.index, build_decoder_metric(model), k=4, shortlist=4)
    alone = fit_transport(geodesic, PenaltyInputs(model, data, held_out))
    mixed = EmbeddedData(
        prepare(jnp.concatenate([held_out.embeddings, data.embeddings[:10]])),
        jnp.concatenate([held_out.residuals, data.residuals[:10]]),
        jnp.concatenate([held_out.rows, data.rows[:10]]),
    )
    both = fit_transport(geodesic, PenaltyInputs(model, data, mixed))
    np.testing.assert_allclose(both.beta, alone.beta, rtol=0.5)


def test_the_papers_calibration_has_maximum_one(
    model: LatentModel, scaling: Scaling, data: EmbeddedData, penalties: dict[str, AbstractPenalty]
) -> None:
    calibrated = calibrate(penalties["euclidean"], model, scaling, data, how="paper", sample=100)
    rows = jnp.asarray(np.random.default_rng(0).permutation(len(data))[:100])
    inside = penalise(calibrated, data.embeddings[rows], rows)
    outside = penalise(
        calibrated, sample_out_of_distribution(model, scaling, data, 100, key=jax.random.key(0))
    )
    np.testing.assert_allclose(max(inside.max(), outside.max()), 1, rtol=1e-5)


def test_a_penalty_of_ones_own_needs_nothing_but_the_signature(data: EmbeddedData) -> None:
    class Norm(AbstractPenalty):
        def __call__(self, e: Array, exclude: Array | int = -1) -> Array:  # noqa: ARG002
            return jnp.linalg.norm(e)

    np.testing.assert_allclose(
        penalise(Norm(), data.embeddings), jnp.linalg.norm(data.embeddings, axis=1), rtol=1e-6
    )
    assert (penalise(Nothing(), data.embeddings) == 0).all()


def test_penalties_of_several_models_go_under_one_vmap(
    model: LatentModel,
    data: EmbeddedData,
    held_out: EmbeddedData,
    penalties: dict[str, AbstractPenalty],
) -> None:
    twice = jax.tree.map(
        lambda leaf: jnp.stack([leaf, leaf]) if eqx.is_array(leaf) else leaf, penalties["transport"]
    )
    e = held_out.embeddings[:3]
    both = eqx.filter_vmap(lambda penalty: penalise(penalty, e))(twice)
    np.testing.assert_allclose(both[0], penalise(penalties["transport"], e), rtol=1e-4)


def test_unknown_names_and_too_many_neighbours_are_refused(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> None:
    with pytest.raises(InputError, match="not one of"):
        build_penalty("euclid", PenaltyInputs(model, data, held_out))
    with pytest.raises(InputError, match=r"'euclidean': 150 neighbours .* only 150 data"):
        build_penalty("euclidean", PenaltyInputs(model, data, held_out, k=150))


class Drift(eqx.Module):
    """Dynamics in state space that predict no change."""

    size: int

    def __call__(self, pair: Array) -> Array:
        return pair[: self.size]


def test_in_state_space_a_pair_is_its_own_embedding_and_only_some_penalties_work(
    model: LatentModel, scaling: Scaling, transitions: Transitions
) -> None:
    data, held_out = (embed_pairs(Drift(3), scaling, t) for t in (transitions[:150], transitions))
    np.testing.assert_allclose(data.embeddings[:, 3:], transitions.actions[:150])
    change = rms(jnp.asarray(transitions.next_states - transitions.states))
    np.testing.assert_allclose(held_out.residuals, change, rtol=1e-5)
    inputs = PenaltyInputs(Drift(3), data, held_out, k=1)
    assert inputs.space == "state"
    assert build_penalty("euclidean", inputs)(data.embeddings[7]) == 0
    with pytest.raises(InputError, match=r"works in latent space.*Use one of euclidean, none"):
        build_penalty("transport", inputs)


def test_a_penalty_can_be_registered_once_and_built_from_a_name_a_function_or_a_value(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_PENALTIES", dict(registry._PENALTIES))
    inputs = PenaltyInputs(model, data, held_out, k=2)

    def nearest(inputs: PenaltyInputs) -> AbstractPenalty:
        return EuclideanDistance(inputs.data.index, k=1)

    register_penalty("nearest", nearest, help="distance to the nearest point")
    assert list_penalties("latent")[-1] == "nearest" and "nearest" not in list_penalties("state")
    built = build_penalty("nearest", inputs)
    assert eqx.tree_equal(built, build_penalty(nearest, inputs), build_penalty(built, inputs))
    with pytest.raises(InputError, match="'nearest' is registered already"):
        register_penalty("nearest", nearest)
    with pytest.raises(InputError, match="spaces are"):
        register_penalty("other", nearest, spaces=())


def test_a_build_function_that_fails_is_named_and_keeps_its_traceback(
    model: LatentModel, data: EmbeddedData, held_out: EmbeddedData
) -> None:
    inputs = PenaltyInputs(model, data, held_out)

    def broken(inputs: PenaltyInputs) -> AbstractPenalty:
        raise KeyError("weights")

    with pytest.raises(InputError, match="'broken': its build function failed with KeyError") as e:
        build_penalty(broken, inputs)
    assert isinstance(e.value.__cause__, KeyError)
    with pytest.raises(InputError, match="returned a int"):
        build_penalty(lambda _: 3, inputs)
