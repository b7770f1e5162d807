import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gelato.agents.ppo import PPOConfig, PPOState, advantages, begin_ppo, iterate
from gelato.uncertainty.penalty import Nothing
from tests.agents.conftest import DISCOUNT, Known

CONFIG = PPOConfig(
    hidden=(32, 32), rate=3e-3, discount=DISCOUNT, entropy_weight=1e-3, episodes=64, steps=8, minibatches=2, horizon=4
)


@eqx.filter_jit
def trained(known: Known, iterations: int) -> PPOState:
    state = begin_ppo(CONFIG, known.starts, known.space, key=jax.random.key(0))
    arrays, static = eqx.partition(state, eqx.is_array)

    def step(arrays, key):
        state = eqx.combine(arrays, static)
        state, _ = iterate(state, known.dynamics, known.starts, Nothing(), jnp.zeros(()), CONFIG, key=key)
        return eqx.filter(state, eqx.is_array), None

    arrays, _ = jax.lax.scan(step, arrays, jax.random.split(jax.random.key(1), iterations))
    return eqx.combine(arrays, static)


def test_ppo_finds_the_known_values_of_five_tiny_mdps(known: Known) -> None:
    learner = trained(known, 200).learner
    values = jax.vmap(lambda z: learner.value(z)[0])(known.starts)
    np.testing.assert_allclose(values, known.values, atol=0.1)


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
