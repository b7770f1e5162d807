import equinox as eqx
import jax
import numpy as np
import pytest

from experiments import online
from experiments.online import Progress, train_online
from gelato.agents.ppo import PPO, PPORows

CONFIG = PPO(hidden=(8,), episodes=2, steps=32, minibatches=2, passes=1)


@pytest.mark.slow
def test_rollouts_of_real_environments_end_in_the_last_observation_and_not_in_the_next_first(
    monkeypatch,
) -> None:
    rollouts: list[PPORows] = []
    improve = online._improve

    def watch(agent, networks, optimiser, rows, key):
        rollouts.append(rows)
        return improve(agent, networks, optimiser, rows, key)

    monkeypatch.setattr(online, "_improve", watch)
    seen: list[Progress] = []
    learner = train_online(
        "CartPole-v1",
        CONFIG,
        steps=128,
        should_continue=lambda progress: seen.append(progress) or True,
    )
    assert [progress.steps for progress in seen] == [64, 128] and len(rollouts) == 2
    assert not eqx.tree_equal(learner, seen[0].learner)
    rollout = jax.tree.map(np.asarray, rollouts[0])
    follows = np.abs(rollout.next_latents[:-1] - rollout.latents[1:]).max(axis=-1) == 0
    np.testing.assert_array_equal(follows, ~rollout.ended[:-1])
    assert rollout.ended.any() and rollout.terminated[rollout.ended].all()
    # A pole that fell is further from upright than one that was just set up.
    assert np.abs(rollout.next_latents[rollout.terminated][:, 2]).min() > 0.1
    assert np.isclose(seen[0].length, seen[0].episode_return)
