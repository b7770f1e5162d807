"""The guard depends on actions, and each of its numbers is what it claims to be."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from gelato.data.transitions import Transitions
from gelato.model.latent import LatentModel, Scaling
from gelato.uncertainty.build import PenaltyInputs, build_penalty
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.guard import Guard, UnusualAction, choose_kernel
from gelato.uncertainty.penalty import penalise
from gelato.uncertainty.scores import auroc


@pytest.fixture(scope="module")
def habits(transitions: Transitions) -> Transitions:
    """Transitions whose action is a function of the state, with a little noise."""
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.normal(size=(len(transitions), 2))
    actions = np.clip(np.tanh(2 * transitions.states[:, :2]) * 0.9 + noise, -1, 1)
    return replace(transitions, actions=actions.astype(np.float32))


@pytest.fixture(scope="module")
def inputs(model: LatentModel, scaling: Scaling, habits: Transitions) -> PenaltyInputs:
    data = embed(model, scaling, habits[:150])
    return PenaltyInputs(model, data, embed(model, scaling, habits[jnp.arange(150, 200)]), k=3)


def embed_actions(model: LatentModel, states: Array, actions: Array) -> Array:
    return jax.vmap(lambda s, a: model.embedding(model.encode(s).mean, a))(states, actions)


def test_the_guard_tells_habits_from_random_actions_and_a_distance_does_not(
    inputs: PenaltyInputs, habits: Transitions
) -> None:
    model = inputs.latent_model
    states, actions = jnp.asarray(habits.states[150:]), jnp.asarray(habits.actions[150:])
    others = jax.random.uniform(jax.random.key(0), actions.shape, minval=-1, maxval=1)
    pairs = [embed_actions(model, states, chosen) for chosen in (actions, others)]
    label = np.repeat([False, True], len(states))

    def tell(name: str) -> float:
        penalty = build_penalty(name, inputs)
        values = [np.asarray(penalise(penalty, embeddings)) for embeddings in pairs]
        return auroc(np.concatenate(values), label)

    assert tell("guard") > 0.85
    assert tell("unusual-action") > 0.85
    assert tell("guard") > tell("euclidean")


def test_an_unusual_action_is_one_that_is_rare_at_the_nearest_states(
    inputs: PenaltyInputs,
) -> None:
    penalty = build_penalty("unusual-action", inputs)
    assert isinstance(penalty, UnusualAction)
    embeddings = np.asarray(inputs.held_out.embeddings)
    for e in embeddings[:5]:
        z, a = inputs.latent_model.embedding.inverse(jnp.asarray(e))
        gaps = np.linalg.norm(np.asarray(penalty.states.data) - np.asarray(z), axis=1)
        nearest = np.argsort(gaps)[: penalty.k]
        weights = np.maximum(1 - np.square(gaps[nearest] / gaps[nearest[-1]]), 1e-6)
        own = np.asarray(a) / np.asarray(penalty.scale)
        squares = np.square(np.asarray(penalty.actions)[nearest] - own).sum(axis=1)
        kernels = np.exp(-squares / (2 * float(penalty.width) ** 2))
        expected = -np.log(np.average(kernels, weights=weights))
        np.testing.assert_allclose(penalty(jnp.asarray(e)), expected, rtol=1e-3, atol=1e-3)


def test_the_guard_is_the_larger_part_in_units_of_its_spread(
    inputs: PenaltyInputs,
) -> None:
    guard = build_penalty("guard", inputs)
    assert isinstance(guard, Guard)
    e = inputs.held_out.embeddings
    parts = np.stack([np.asarray(penalise(part, e)) for part in (guard.distance, guard.action)])
    np.testing.assert_allclose(guard.levels, np.median(parts, axis=1), rtol=1e-5)
    scaled = (parts - np.asarray(guard.levels)[:, None]) / np.asarray(guard.units)[:, None]
    expected = np.maximum(scaled.max(axis=0), 0)
    np.testing.assert_allclose(penalise(guard, e), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [0.05, 0.2, 0.8])
def test_the_kernel_is_as_wide_as_actions_scatter(width: float) -> None:
    rng = np.random.default_rng(0)
    # All states are equally near, so many of them are better than few.
    centres = width * rng.standard_normal((400, 200, 2))
    own = width * rng.standard_normal((400, 1, 2))
    squares = np.square(centres - own).sum(axis=2)
    k, chosen = choose_kernel(np.ones_like(squares), squares, 2, discrete=False)
    assert k >= 100
    assert width / 4 <= chosen <= width


def test_random_one_hot_actions_need_many_states_and_fixed_habits_a_narrow_kernel() -> None:
    rng = np.random.default_rng(0)
    random = np.where(rng.random((300, 50)) < 0.75, 2.0, 0.0)
    near = np.ones((300, 50))
    assert choose_kernel(near, random, 4, discrete=True)[0] > 10
    assert choose_kernel(near, np.zeros((300, 50)), 4, discrete=True)[1] == 0.4
