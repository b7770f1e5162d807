from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gelato.agents.ppo import PPOConfig, PPOState, advantages
from gelato.agents.ppo_learner import ITERATION_METRICS, new_ppo_policies, run_iterations
from gelato.agents.world import World
from gelato.data.spaces import Discrete
from tests.agents.conftest import DISCOUNT, Known, One, Tiny, world_of

CONFIG = PPOConfig(
    hidden=(32, 32), rate=3e-3, discount=DISCOUNT, entropy_weight=1e-3, episodes=64, steps=8, minibatches=2, horizon=4
)


def trained(world: World, config: PPOConfig = CONFIG, iterations: int = 200) -> PPOState:
    return run_iterations(world, new_ppo_policies(world, config), config=config, iterations=iterations)[0]


def test_ppo_finds_the_known_values_of_five_tiny_mdps(known: Known) -> None:
    world = world_of(known)
    learner = jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, trained(world).learner)
    values = jax.vmap(lambda z: learner.value(z)[0])(known.starts)
    np.testing.assert_allclose(values, known.values, atol=0.1)


QUICK = replace(CONFIG, hidden=(8,), episodes=4, steps=4)


def test_a_policy_is_the_same_whatever_is_trained_beside_it() -> None:
    simple = Known(Tiny("both"), Discrete(2), jnp.array([[0.0, 1.0], [0.0, -1.0]]), jnp.ones(2))
    both = world_of(simple, seeds=(0, 3), weights=(0.0, 0.5), penalty=One())
    beside = trained(both, QUICK, 3)
    alone = trained(world_of(simple, seeds=(3,), weights=(0.5,), penalty=One()), QUICK, 3)
    for together, apart in zip(jax.tree.leaves(beside), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together[1, 1], apart[0, 0], rtol=1e-4, atol=1e-6)


def test_the_weighted_penalty_is_taken_off_every_imagined_reward_exactly() -> None:
    constant = Known(Tiny("constant"), Discrete(2), jnp.array([[0.0, 1.0], [0.0, -1.0]]), jnp.ones(2))
    world = world_of(constant, weights=(0.0, 0.25), penalty=One())
    _, metrics = run_iterations(world, new_ppo_policies(world, QUICK), config=QUICK, iterations=1)
    reward, penalty = ITERATION_METRICS.index("imagined_reward"), ITERATION_METRICS.index("penalty")
    np.testing.assert_array_equal(metrics[:, 0, penalty], [1.0, 1.0])
    np.testing.assert_array_equal(metrics[:, 0, reward], [1.0, 0.75])


def test_advantages_are_discounted_sums_that_stop_at_an_end_and_bootstrap_at_a_horizon() -> None:
    rewards, values = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([0.5, 0.4, 0.3, 0.2])
    next_values = jnp.array([0.4, 7.0, 0.2, 9.0])
    terminated = jnp.array([False, False, False, True])
    ended = jnp.array([False, True, False, True])
    found = advantages(rewards, values, next_values, terminated, ended, CONFIG)
    gamma, trace = CONFIG.discount, CONFIG.trace
    second, fourth = 2 + gamma * 7.0 - 0.4, 4 - 0.2
    first = 1 + gamma * 0.4 - 0.5 + gamma * trace * second
    third = 3 + gamma * 0.2 - 0.3 + gamma * trace * fourth
    np.testing.assert_allclose(found, [first, second, third, fourth], rtol=1e-6)
