import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from gelato.agents.networks import Actor
from gelato.agents.replay import Experience, ReplayBuffer, pack, unpack
from gelato.agents.sac import SAC, SACState
from gelato.data.spaces import Continuous, Discrete
from gelato.training.program import Population, init_policies, train_block
from tests.agents.conftest import DISCOUNT, Known, One, Tiny, make_population

AGENT = SAC(
    hidden=(32, 32),
    actor_rate=3e-3,
    critic_rate=3e-3,
    discount=DISCOUNT,
    target_rate=0.05,
    batch_size=64,
    updates=1500,
    epoch=500,
    branches=32,
    horizon=2,
    replay=512,
)


def train(population: Population, agent: SAC = AGENT, times: int = 1) -> SACState:
    states = init_policies(population, agent)
    for _ in range(times * agent.updates // agent.epoch):
        states, _ = train_block(population, states, agent=agent, updates=agent.epoch)
    return states


def first(tree: SACState) -> SACState:
    return jax.tree.map(lambda leaf: leaf[0, 0] if eqx.is_array(leaf) else leaf, tree)


def learned_values(known: Known, times: int = 1) -> Array:
    state = first(train(make_population(known), times=times))
    return jax.vmap(lambda z: AGENT.value(state, z))(known.starts)


def test_sac_finds_the_known_values_of_five_tiny_mdps(known: Known) -> None:
    np.testing.assert_allclose(learned_values(known), known.values, atol=0.1)


@pytest.fixture
def simple() -> Known:
    return Known(Tiny("both"), Discrete(2), jnp.array([[0.0, 1.0], [0.0, -1.0]]), jnp.ones(2))


QUICK = SAC(hidden=(8,), batch_size=8, updates=6, epoch=3, branches=4, horizon=2, replay=16)


def test_a_policy_is_the_same_whatever_is_trained_beside_it(simple: Known) -> None:
    beside = train(make_population(simple, seeds=(0, 3), weights=(0.0, 0.5), penalty=One()), QUICK)
    alone = train(make_population(simple, seeds=(3,), weights=(0.5,), penalty=One()), QUICK)
    for together, apart in zip(jax.tree.leaves(beside), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together[1, 1], apart[0, 0], rtol=1e-4, atol=1e-6)


def test_imagined_rewards_have_the_weighted_penalty_taken_off_exactly(simple: Known) -> None:
    plain = train(make_population(simple), QUICK)
    dear = train(make_population(simple, weights=(0.25,), penalty=One()), QUICK)
    without, with_ = (unpack(first(p).replay.rows[:8], 2) for p in (plain, dear))
    np.testing.assert_array_equal(without.latents, with_.latents)
    np.testing.assert_array_equal(without.rewards - 0.25, with_.rewards)


def test_a_weight_of_zero_reproduces_the_plain_mdp(simple: Known) -> None:
    plain = train(make_population(simple), QUICK)
    weightless = train(make_population(simple, weights=(0.0,), penalty=One()), QUICK)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(weightless), strict=True):
        np.testing.assert_array_equal(a, b)


def rows(values: Array) -> Array:
    return jnp.tile(jnp.asarray(values, jnp.float32)[:, None], (1, 3))


def test_the_replay_buffer_keeps_the_newest_rows_when_it_wraps_around() -> None:
    ring = ReplayBuffer.create(5, 3)
    for begin in range(0, 12, 4):
        ring = ring.write(rows(jnp.arange(begin, begin + 4)))
    assert int(ring.filled) == 5
    assert sorted(ring.rows[:, 0].tolist()) == [7, 8, 9, 10, 11]


def test_of_more_rows_than_fit_the_replay_buffer_keeps_the_last() -> None:
    ring = ReplayBuffer.create(3, 3).write(rows(jnp.arange(2))).write(rows(jnp.arange(10, 18)))
    assert sorted(ring.rows[:, 0].tolist()) == [15, 16, 17]
    assert int(ring.filled) == 3


def test_rows_are_taken_apart_as_they_were_put_together() -> None:
    rng = np.random.default_rng(0)
    whole = Experience(
        *(
            jnp.asarray(rng.normal(size=shape), jnp.float32)
            for shape in ((4, 3), (4, 2), 4, (4, 3), 4)
        )
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(unpack(pack(whole), 3)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_density_of_a_squashed_action_integrates_to_one() -> None:
    actor = Actor(2, Continuous((-1.0,), (1.0,)), (8,), key=jax.random.key(0))
    z = jnp.array([0.3, -0.7])
    noise = jax.random.normal(jax.random.key(1), (20_000, 1))
    actions, log_density = jax.vmap(lambda noise: actor.sample_with_density(z, noise))(noise)
    # E[1/π(a)] over a ~ π is the length of the interval that π reaches, 2.
    np.testing.assert_allclose(
        jnp.mean(jnp.exp(-log_density) * (jnp.abs(actions[:, 0]) < 0.9)), 1.8, rtol=0.05
    )


def test_termination_stops_the_bootstrap_and_truncation_does_not() -> None:
    """A horizon truncates rollouts, not values: 1 per step is worth 1/(1 − γ) without an end, and
    1.
    """
    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    for kind, value in (("constant", 1.0), ("endless", 10.0)):
        known = Known(Tiny(kind), Discrete(2), starts, jnp.full(2, value))
        np.testing.assert_allclose(learned_values(known, times=2), known.values, rtol=0.05)
