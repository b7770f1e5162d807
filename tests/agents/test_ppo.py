from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gelato.agents.ppo import PPO, PPORows, PPOState, compute_advantages
from gelato.data.spaces import Discrete
from gelato.training.program import Population, init_policies, train_block
from tests.agents.conftest import DISCOUNT, Known, One, Tiny, make_population

AGENT = PPO(
    hidden=(32, 32),
    rate=3e-3,
    discount=DISCOUNT,
    entropy_weight=1e-3,
    episodes=64,
    steps=8,
    minibatches=2,
    horizon=4,
)


def train(population: Population, agent: PPO = AGENT, iterations: int = 200) -> PPOState:
    steps = iterations * agent.updates_per_rollout
    states = init_policies(population, agent)
    return train_block(population, states, agent=agent, updates=steps)[0]


def test_ppo_finds_the_known_values_of_five_tiny_mdps(known: Known) -> None:
    states = train(make_population(known))
    state = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, states)
    values = jax.vmap(lambda z: AGENT.value(state, z))(known.starts)
    np.testing.assert_allclose(values, known.values, atol=0.1)


QUICK = replace(AGENT, hidden=(8,), episodes=4, steps=4)


def test_a_policy_is_the_same_whatever_is_trained_beside_it() -> None:
    simple = Known(Tiny("both"), Discrete(2), jnp.array([[0.0, 1.0], [0.0, -1.0]]), jnp.ones(2))
    both = make_population(simple, seeds=(0, 3), weights=(0.0, 0.5), penalty=One())
    beside = train(both, QUICK, 3)
    alone = train(make_population(simple, seeds=(3,), weights=(0.5,), penalty=One()), QUICK, 3)
    for together, apart in zip(jax.tree.leaves(beside), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together[1, 1], apart[0, 0], rtol=1e-4, atol=1e-6)


def test_the_weighted_penalty_is_taken_off_every_imagined_reward_exactly() -> None:
    constant = Known(
        Tiny("constant"), Discrete(2), jnp.array([[0.0, 1.0], [0.0, -1.0]]), jnp.ones(2)
    )
    population = make_population(constant, weights=(0.0, 0.25), penalty=One())
    states = init_policies(population, QUICK)
    steps = QUICK.updates_per_rollout
    _, metrics = train_block(population, states, agent=QUICK, updates=steps)
    np.testing.assert_array_equal(metrics["penalty"][:, 0], [1.0, 1.0])
    np.testing.assert_array_equal(metrics["imagined_reward"][:, 0], [1.0, 0.75])


def test_advantages_are_discounted_sums_that_stop_at_an_end_and_bootstrap_at_a_horizon() -> None:
    rewards, values = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([0.5, 0.4, 0.3, 0.2])
    next_values = jnp.array([0.4, 7.0, 0.2, 9.0])
    terminated = jnp.array([False, False, False, True])
    ended = jnp.array([False, True, False, True])
    found = compute_advantages(rewards, values, next_values, terminated, ended, AGENT)
    gamma, trace = AGENT.discount, AGENT.trace
    second, fourth = 2 + gamma * 7.0 - 0.4, 4 - 0.2
    first = 1 + gamma * 0.4 - 0.5 + gamma * trace * second
    third = 3 + gamma * 0.2 - 0.3 + gamma * trace * fourth
    np.testing.assert_allclose(found, [first, second, third, fourth], rtol=1e-6)


def test_the_share_of_clipped_ratios_counts_valid_rows_only() -> None:
    agent = replace(QUICK, passes=1, minibatches=1)
    networks = agent.init_networks(2, Discrete(2), key=jax.random.key(0))
    shape = agent.steps, agent.episodes
    z = jax.random.normal(jax.random.key(1), (*shape, 2))
    choices = jax.nn.one_hot(jnp.zeros(shape, int), 2)
    densities = jax.vmap(jax.vmap(networks.actor.compute_density_and_entropy))(z, choices)[0]
    # Three steps are valid. The ratio is 1 at two of them, and far from 1 everywhere else.
    valid = jnp.zeros(shape, bool).at[0, :3].set(True)
    densities = jnp.where(valid, densities, densities - 5.0).at[0, 0].add(5.0)
    ends = jnp.zeros(shape, bool)
    rows = PPORows(z, choices, densities, jnp.ones(shape), z, ends, ends, valid)
    optimiser = agent.optimiser().init(eqx.filter(networks, eqx.is_array))
    *_, metrics = agent.update(networks, optimiser, rows, key=jax.random.key(2))
    np.testing.assert_allclose(metrics[2], 1 / 3, rtol=1e-6)
