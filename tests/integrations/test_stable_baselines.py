"""Another library as Algorithm 1's "RL algorithm": Stable-Baselines3's PPO on the pessimistic MDP."""

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.data.spaces import Discrete
from gelato.mdp.pessimistic import PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.uncertainty.penalty import Nothing
from tests.agents.conftest import Tiny

pytestmark = pytest.mark.integration


def test_ppo_of_stable_baselines_learns_in_the_pessimistic_mdp() -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    from gelato.mdp.stable_baselines import StableBaselinesEnv

    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    mdp = PessimisticMDP(Tiny("both"), Nothing(), jnp.zeros(()), starts, horizon=1)
    env = StableBaselinesEnv(PessimisticVectorEnv(mdp, Discrete(2), num_envs=16))
    ppo = PPO("MlpPolicy", env, n_steps=32, batch_size=128, learning_rate=3e-3, seed=0, device="cpu")
    before, _ = evaluate_policy(ppo, env, n_eval_episodes=64, warn=False)
    ppo.learn(6_000)
    after, _ = evaluate_policy(ppo, env, n_eval_episodes=64, warn=False)
    assert before < 0.8
    np.testing.assert_allclose(after, 1.0, atol=0.05)
