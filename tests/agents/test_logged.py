"""What is learned from logged rows: values, bounds, clones, and how the rows come about."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.agents.learner import new_clones, new_policies, run_cloning, run_epoch
from gelato.agents.networks import Critic
from gelato.agents.replay import packed, unpacked
from gelato.agents.sac import SACConfig, SACState, Terms, draws_for, least_of_critics, update
from gelato.agents.world import World
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset, Transitions
from gelato.mdp.pessimistic import Experience
from gelato.methods import METHODS, Method, train_preset
from gelato.uncertainty.penalty import Nothing
from gelato.worlds import state_world

BOX = Continuous((-2.0,), (2.0,))
CONFIG = SACConfig(
    hidden=(32, 32),
    actor_rate=1e-3,
    critic_rate=3e-3,
    discount=0.8,
    target_rate=0.05,
    initial_temperature=0.01,
    batch_size=32,
    updates=1500,
    epoch=500,
)


def logged_world(rows: Experience, space: ActionSpace, highest: float = 100.0) -> World:
    """Rows alone: nothing is imagined."""
    seen = rows.latents[None]
    terms = Terms(jnp.ones(1), jnp.full(1, -100.0), jnp.full(1, highest))
    return World(
        None, packed(rows)[None], seen, seen, (Nothing(),), jnp.zeros(1), terms, jnp.zeros(1, jnp.int32), space
    )


def rows_of(latents: np.ndarray, actions: np.ndarray, rewards: np.ndarray, ends: np.ndarray) -> Experience:
    """Rows that lead where they began."""
    z, a, r, end = (jnp.asarray(x, jnp.float32) for x in (latents, actions, rewards, ends))
    return Experience(z, a, r, z, end)


def values(rows: Experience, **changes: float) -> np.ndarray:
    """What SAC, from these rows alone, holds logged steps to be worth."""
    world = logged_world(rows, BOX, **changes)
    policies = new_policies(world, CONFIG)
    for _ in range(CONFIG.updates // CONFIG.epoch):
        policies, _ = run_epoch(world, policies, config=CONFIG, updates=CONFIG.epoch)
    critics = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, policies.agent.critics)
    return np.asarray(least_of_critics(critics, rows.latents, rows.actions))


@pytest.fixture(scope="module")
def loops() -> Experience:
    """A step of reward 1 that ends the task, and one of reward 1 that leads back to itself and was merely cut off."""
    actions = np.linspace(-2, 2, 64)[:, None]
    latents = np.repeat(np.array([[1.0, 0.0], [0.0, 1.0]]), 32, axis=0)
    return rows_of(latents, actions, np.ones(64), np.repeat([1.0, 0.0], 32))


def test_an_end_is_worth_its_reward_and_a_cut_what_would_have_followed(loops: Experience) -> None:
    found = values(loops)
    np.testing.assert_allclose(found[:32], 1.0, atol=0.3)
    np.testing.assert_allclose(found[32:], 1 / (1 - CONFIG.discount), atol=0.6)


def test_no_value_is_learned_above_what_rewards_allow(loops: Experience) -> None:
    np.testing.assert_allclose(values(loops, highest=2.5)[32:], 2.5, atol=0.3)


def test_the_lesser_of_the_critics_counts() -> None:
    critics = eqx.filter_vmap(lambda key: Critic(2, 1, (32,), key=key))(jax.random.split(jax.random.key(3), 2))
    z, a = 3 * jax.random.normal(jax.random.key(1), (500, 2)), 3 * jax.random.normal(jax.random.key(2), (500, 1))
    each = [jax.vmap(jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, critics))(z, a) for i in range(2)]
    assert (each[0] < each[1]).any() and (each[1] < each[0]).any()
    np.testing.assert_allclose(least_of_critics(critics, z, a), np.minimum(*map(np.asarray, each)), rtol=1e-5)


def test_the_last_update_leaves_the_actor_where_it_is(loops: Experience) -> None:
    world = logged_world(loops, BOX)
    policy = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, new_policies(world, CONFIG))
    terms = jax.tree.map(lambda x: x[0], world.terms)
    draws = draws_for(policy.ring, world.real[0], BOX, CONFIG.batch_size, key=jax.random.key(0))
    last = eqx.tree_at(lambda p: p.step, policy, jnp.asarray(CONFIG.updates, jnp.int32))

    def moved(before: SACState) -> tuple[float, float]:
        after, _ = eqx.filter_jit(update)(before, world.real[0], terms, CONFIG, draws)
        agents = [(agent.actor.network.layers[0], agent.critics.layers[0]) for agent in (after.agent, before.agent)]
        return tuple(float(jnp.abs(new.weight - old.weight).max()) for new, old in zip(*agents, strict=True))

    assert min(moved(policy)) > 1e-5
    actor, critics = moved(last)
    assert actor < 1e-9 and critics > 1e-5


@pytest.mark.parametrize("space", [BOX, Discrete(3)], ids=["box", "discrete"])
def test_a_clone_does_what_the_data_did(space: ActionSpace) -> None:
    z = jax.random.uniform(jax.random.key(0), (256, 2), minval=-1, maxval=1)
    if isinstance(space, Discrete):
        actions = jax.nn.one_hot((z[:, 0] > 0).astype(int) + (z[:, 1] > 0), 3)
    else:
        actions = 1.5 * z[:, :1]
    world = logged_world(rows_of(z, actions, np.zeros(256), np.zeros(256)), space)
    config = replace(CONFIG, batch_size=64)
    clones, _ = run_cloning(world, new_clones(world, config), config=config, updates=800)
    actor = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, clones.actor)
    found = jax.vmap(actor.mode)(z)
    if isinstance(space, Discrete):
        assert (found.argmax(axis=1) == actions.argmax(axis=1)).mean() > 0.9
    else:
        np.testing.assert_allclose(found, actions, atol=0.2)


def test_the_data_as_policies_see_it_and_what_values_can_be(tmp_path: Path) -> None:
    """An end without successor stays, a cut without one goes; rewards and ends are the data's own."""
    n = 120
    rng = np.random.default_rng(0)
    states = rng.normal(3.0, 2.0, (n, 2)).astype(np.float32)
    cut, ended = np.zeros(n, bool), np.zeros(n, bool)
    cut[9::20], ended[19::20] = True, True
    data = Transitions(
        states=states,
        actions=rng.uniform(-2, 2, (n, 1)).astype(np.float32),
        rewards=np.linspace(-1, 4, n).astype(np.float32),
        next_states=np.roll(states, -1, axis=0),
        terminated=ended,
        truncated=cut,
        has_successor=~(cut | ended),
        observation_shape=(2,),
        action_space=BOX,
    )
    dataset = Dataset("mine", None, data)
    methods = [METHODS["sac"], Method("other", "state", "none", 2.0, 1.0)]
    config = train_preset("small", dataset)
    world, scaling = state_world(dataset, tmp_path, methods, (0,), config)
    rows = unpacked(world.real[0], 2)
    kept = ~cut
    np.testing.assert_allclose(rows.latents, scaling.states(states[kept]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rows.rewards, data.rewards[kept])
    np.testing.assert_array_equal(rows.terminated, ended[kept])
    goes_on = kept & ~ended
    np.testing.assert_allclose(
        rows.next_latents[~ended[kept]], scaling.states(data.next_states[goes_on]), rtol=1e-5, atol=1e-6
    )
    # The lowest reward, and three times a λ of 2 below it, for ever; the highest for ever.
    ahead = 1 / (1 - config.sac.discount)
    np.testing.assert_allclose(world.terms.lowest_value, [-1 * ahead, -7 * ahead], rtol=1e-4)
    np.testing.assert_allclose(world.terms.highest_value, [4 * ahead] * 2, rtol=1e-4)
