import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from gelato.mdp.env import PessimisticEnv
from gelato.mdp.pessimistic import ImaginedMDP, PessimisticMDP
from gelato.mdp.vector_env import PessimisticVectorEnv
from tests.mdp.test_pessimistic import fell, mdp  # noqa: F401
from tests.uncertainty.conftest import SPACE, data, held_out, model, scaling, transitions  # noqa: F401


@pytest.fixture
def env(mdp: PessimisticMDP) -> PessimisticVectorEnv:  # noqa: F811
    return PessimisticVectorEnv(mdp, SPACE, num_envs=4)


def test_observations_actions_and_batches_lie_in_their_spaces(env: PessimisticVectorEnv) -> None:
    assert isinstance(env, gymnasium.vector.VectorEnv)
    observations, _ = env.reset(seed=0)
    assert env.observation_space.contains(observations)
    env.action_space.seed(0)
    for _ in range(10):
        actions = env.action_space.sample()
        observations, rewards, terminated, truncated, infos = env.step(actions)
        assert env.observation_space.contains(observations)
        assert rewards.shape == terminated.shape == truncated.shape == (4,)
        assert rewards.dtype == np.float64 and terminated.dtype == truncated.dtype == bool
        assert not (terminated & truncated).any()
        ended = terminated | truncated
        if ended.any():
            np.testing.assert_array_equal(infos["_final_obs"], ended)
            assert all((row is not None) == end for row, end in zip(infos["final_obs"], ended))


def test_an_episode_that_ends_starts_anew_from_the_data_in_the_same_step(
    env: PessimisticVectorEnv,
) -> None:
    env.reset(seed=1)
    ended = np.zeros(4, bool)
    while not ended.any():
        observations, _, terminated, truncated, infos = env.step(np.zeros((4, 2), np.float32))
        ended = terminated | truncated
    row = int(np.flatnonzero(ended)[0])
    assert bool((env.mdp.imagined.starts == jnp.asarray(observations[row])).all(axis=1).any())
    assert not np.array_equal(infos["final_obs"][row], observations[row])


def test_final_observations_are_single_rows_also_if_all_episodes_end(
    mdp: PessimisticMDP,  # noqa: F811
) -> None:
    short = ImaginedMDP(mdp.imagined.dynamics, mdp.imagined.starts, horizon=1)
    env = PessimisticVectorEnv(
        PessimisticMDP(short, mdp.penalty, mdp.penalty_weight), SPACE, num_envs=4
    )
    env.reset(seed=0)
    infos = env.step(np.zeros((4, 2), np.float32))[4]
    assert infos["final_obs"].shape == (4,)
    assert all(row.dtype == np.float32 for row in infos["final_obs"])


def test_a_seed_fixes_everything_that_follows(env: PessimisticVectorEnv) -> None:
    def run() -> list[np.ndarray]:
        env.reset(seed=7)
        return [env.step(np.full((4, 2), 0.1, np.float32))[1] for _ in range(5)]

    np.testing.assert_array_equal(run(), run())


def test_gymnasiums_own_wrapper_counts_the_episodes(env: PessimisticVectorEnv) -> None:
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
    wrapped.reset(seed=0)
    lengths = []
    for _ in range(12):
        infos = wrapped.step(np.zeros((4, 2), np.float32))[-1]
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    assert lengths and max(lengths) <= env.mdp.imagined.horizon


def test_a_plain_environment_passes_gymnasiums_checks(mdp: PessimisticMDP) -> None:  # noqa: F811
    env = PessimisticEnv(mdp, SPACE)
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    ended, steps = False, 0
    while not ended:
        _, _, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        ended, steps = terminated or truncated, steps + 1
    assert 1 <= steps <= mdp.imagined.horizon and info["penalty"] >= 0
