"""Learning from logged rows: values, bounds, clones, and how the rows are made."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.agents.agent import View
from gelato.agents.cloning import Cloning
from gelato.agents.networks import Critic
from gelato.agents.replay import Experience, pack, unpack
from gelato.agents.sac import SAC, SACState, estimate_value
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Dataset, Transitions
from gelato.dynamics.fit import PenaltySettings
from gelato.model.split import split_dataset
from gelato.runs.folder import Run
from gelato.training.method import Method
from gelato.training.population import build_population
from gelato.training.program import Population, init_policies, train_block
from gelato.uncertainty.penalty import Nothing

BOX = Continuous((-2.0,), (2.0,))
AGENT = SAC(
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


def make_logged(rows: Experience, space: ActionSpace, highest: float = 100.0) -> Population:
    """Make a view with logged rows only; nothing is imagined."""
    latents = rows.latents[None]
    return Population(
        dynamics=None,
        logged=pack(rows)[None],
        starts=latents,
        initial=latents,
        penalties=(Nothing(),),
        weights=jnp.zeros(1),
        real_fractions=jnp.ones(1),
        # The highest value is the highest reward forever.
        reward_range=jnp.array([-20.0, highest * (1 - AGENT.discount)]),
        seeds=jnp.zeros(1, jnp.int32),
        action_space=space,
    )


def view_of(population: Population) -> View:
    """Return the view of the first policy."""
    return View(
        None,
        population.logged[0],
        population.starts[0],
        population.weights[0],
        population.real_fractions[0],
        population.reward_range,
        population.action_space,
    )


def rows_of(
    latents: np.ndarray, actions: np.ndarray, rewards: np.ndarray, ends: np.ndarray
) -> Experience:
    """Make rows whose next state is their own state."""
    z, a, r, end = (jnp.asarray(x, jnp.float32) for x in (latents, actions, rewards, ends))
    return Experience(z, a, r, z, end)


def values(rows: Experience, **changes: float) -> np.ndarray:
    """Return the values that SAC learns for logged steps from these rows alone."""
    population = make_logged(rows, BOX, **changes)
    states = init_policies(population, AGENT)
    for _ in range(AGENT.updates // AGENT.epoch):
        states, _ = train_block(population, states, agent=AGENT, updates=AGENT.epoch)
    critics = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, states.networks.critics)
    return np.asarray(estimate_value(critics, rows.latents, rows.actions))


@pytest.fixture(scope="module")
def loops() -> Experience:
    """Make two steps of reward 1: one ends the task, one leads back to itself and is truncated."""
    actions = np.linspace(-2, 2, 64)[:, None]
    latents = np.repeat(np.array([[1.0, 0.0], [0.0, 1.0]]), 32, axis=0)
    return rows_of(latents, actions, np.ones(64), np.repeat([1.0, 0.0], 32))


def test_an_end_is_worth_its_reward_and_a_cut_what_would_have_followed(loops: Experience) -> None:
    found = values(loops)
    np.testing.assert_allclose(found[:32], 1.0, atol=0.3)
    np.testing.assert_allclose(found[32:], 1 / (1 - AGENT.discount), atol=0.6)


def test_no_value_is_learned_above_what_rewards_allow(loops: Experience) -> None:
    np.testing.assert_allclose(values(loops, highest=2.5)[32:], 2.5, atol=0.3)


def test_the_lesser_of_the_critics_counts() -> None:
    critics = eqx.filter_vmap(lambda key: Critic(2, 1, (32,), key=key))(
        jax.random.split(jax.random.key(3), 2)
    )
    z, a = (
        3 * jax.random.normal(jax.random.key(1), (500, 2)),
        3 * jax.random.normal(jax.random.key(2), (500, 1)),
    )
    each = [
        jax.vmap(jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, critics))(z, a)
        for i in range(2)
    ]
    assert (each[0] < each[1]).any() and (each[1] < each[0]).any()
    np.testing.assert_allclose(
        estimate_value(critics, z, a), np.minimum(*map(np.asarray, each)), rtol=1e-5
    )


def test_the_last_update_leaves_the_actor_where_it_is(loops: Experience) -> None:
    population = make_logged(loops, BOX)
    states = init_policies(population, AGENT)
    policy = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, states)
    view = view_of(population)
    draws = AGENT._draw(view, policy.replay, key=jax.random.key(0))
    last = eqx.tree_at(lambda p: p.step, policy, jnp.asarray(AGENT.updates, jnp.int32))

    def moved(before: SACState) -> tuple[float, float]:
        after, _ = eqx.filter_jit(AGENT.update)(view, before, draws)
        agents = [
            (networks.actor.network.layers[0], networks.critics.layers[0])
            for networks in (after.networks, before.networks)
        ]
        return tuple(
            float(jnp.abs(new.weight - old.weight).max()) for new, old in zip(*agents, strict=True)
        )

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
    population = make_logged(rows_of(z, actions, np.zeros(256), np.zeros(256)), space)
    agent = Cloning(hidden=(32, 32), rate=3e-3, batch_size=64, updates=800, epoch=800)
    clones, metrics = train_block(
        population, init_policies(population, agent), agent=agent, updates=800
    )
    assert set(metrics) == {"loss"} and agent.value(clones, z[0]) is None
    actor = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, clones.actor)
    found = jax.vmap(actor.mode)(z)
    if isinstance(space, Discrete):
        assert (found.argmax(axis=1) == actions.argmax(axis=1)).mean() > 0.9
    else:
        np.testing.assert_allclose(found, actions, atol=0.2)


def test_the_data_as_policies_see_it_and_what_values_can_be(tmp_path: Path) -> None:
    """A terminal row needs no successor; a truncated row without one is dropped."""
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
    methods = [Method("sac", AGENT), Method("other", AGENT, penalty_weight=2.0)]
    split = split_dataset(dataset)
    folder, scaling = Run(tmp_path), split.scaling
    population = build_population(split, None, methods, (0,), PenaltySettings(), folder)
    rows = unpack(population.logged[0], 2)
    kept = ~cut
    np.testing.assert_allclose(rows.latents, scaling.states(states[kept]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rows.rewards, data.rewards[kept])
    np.testing.assert_array_equal(rows.terminated, ended[kept])
    goes_on = kept & ~ended
    np.testing.assert_allclose(
        rows.next_latents[~ended[kept]],
        scaling.states(data.next_states[goes_on]),
        rtol=1e-5,
        atol=1e-6,
    )
    # The lowest reward, and three times a λ of 2 below it, for ever; the highest for ever.
    ahead = 1 / (1 - AGENT.discount)
    bounds = population.map(lambda view, _: AGENT.compute_value_bounds(view))
    np.testing.assert_allclose(bounds[0][:, 0], [-1 * ahead, -7 * ahead], rtol=1e-4)
    np.testing.assert_allclose(bounds[1][:, 0], [4 * ahead] * 2, rtol=1e-4)
