"""Stable-Baselines3's PPO learns in the pessimistic MDP, and ours matches it on CartPole."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import make_vec

from experiments.online import train_online
from gelato.agents.ppo import PPO
from gelato.data.spaces import Discrete
from gelato.mdp.env import PessimisticEnv
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from gelato.uncertainty.penalty import Nothing
from tests.agents.conftest import Tiny

pytestmark = pytest.mark.integration


def test_ppo_of_stable_baselines_learns_in_the_pessimistic_mdp() -> None:
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy

    from gelato.mdp.stable_baselines import StableBaselinesEnv

    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    imagined = ImaginedMDP(Tiny("both"), starts, horizon=1)
    mdp = PessimisticMDP(imagined, Nothing(), jnp.zeros(()))
    env = StableBaselinesEnv(PessimisticVectorEnv(mdp, Discrete(2), num_envs=16))
    ppo = stable_baselines3.PPO(
        "MlpPolicy", env, n_steps=32, batch_size=128, learning_rate=3e-3, seed=0, device="cpu"
    )
    before, _ = evaluate_policy(ppo, env, n_eval_episodes=64, warn=False)
    ppo.learn(6_000)
    after, _ = evaluate_policy(ppo, env, n_eval_episodes=64, warn=False)
    assert before < 0.8
    np.testing.assert_allclose(after, 1.0, atol=0.05)


def test_a_plain_pessimistic_environment_works_with_stable_baselines_as_it_is() -> None:
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy

    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    imagined = ImaginedMDP(Tiny("both"), starts, horizon=1)
    env = PessimisticEnv(PessimisticMDP(imagined, Nothing(), jnp.zeros(())), Discrete(2))
    ppo = stable_baselines3.PPO(
        "MlpPolicy", env, n_steps=128, learning_rate=3e-3, seed=0, device="cpu"
    )
    ppo.learn(3_000)
    assert evaluate_policy(ppo, env, n_eval_episodes=32, warn=False)[0] > 0.9


STEPS, SEEDS = 40_960, 4


def theirs_on_cartpole(seed: int) -> float:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    options = {
        "n_steps": 64,
        "batch_size": 128,
        "n_epochs": 10,
        "gae_lambda": 0.95,
        "gamma": 0.98,
        "ent_coef": 0.01,
    }
    ppo = stable_baselines3.PPO(
        "MlpPolicy", env, learning_rate=1e-3, seed=seed, device="cpu", **options
    )
    ppo.learn(STEPS)
    return float(evaluate_policy(ppo, env, n_eval_episodes=40, deterministic=True, warn=False)[0])


def ours_on_cartpole(seed: int) -> float:
    rates = {"rate": 1e-3, "epsilon": 1e-5, "discount": 0.98, "entropy_weight": 0.01}
    config = PPO(episodes=8, steps=64, minibatches=4, passes=10, **rates)
    learner = train_online("CartPole-v1", config, steps=STEPS, seed=seed)
    act = eqx.filter_jit(lambda seen: learner.actor.mode(seen))
    env = make_vec("CartPole-v1", num_envs=40)
    seen, _ = env.reset(seed=1000 * seed)
    returns, running = np.zeros(40), np.ones(40, bool)
    while running.any():
        actions = np.asarray(jax.vmap(act)(jnp.asarray(seen))).argmax(axis=1)
        seen, rewards, terminated, truncated, _ = env.step(actions)
        returns += rewards * running
        running &= ~(terminated | truncated)
    return float(returns.mean())


def test_ppo_matches_that_of_stable_baselines_on_cartpole_within_its_spread_of_seeds() -> None:
    ours, theirs = (
        [run(seed) for seed in range(SEEDS)] for run in (ours_on_cartpole, theirs_on_cartpole)
    )
    assert min(np.mean(ours), np.mean(theirs)) > 450, (ours, theirs)
    assert np.mean(ours) >= np.mean(theirs) - 2 * np.std(theirs, ddof=1), (ours, theirs)
