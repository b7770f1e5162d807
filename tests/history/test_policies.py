from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from gelato.agents.networks import Actor
from gelato.data.history import encode_actions
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.data.transitions import Standardiser
from gelato.errors import InputError
from gelato.model.latent import Scaling
from gelato.model.networks import GaussianMLP, choose_convolutions
from gelato.policy.deploy import deploy
from gelato.policy.evaluate import evaluate_policy
from gelato.policy.onnx_export import export_onnx, measure_latency
from gelato.policy.policy import DeployedPolicy, RunningPolicy, load_policies, pack_policies
from gelato.runs.folder import Run
from gelato.selection.policies import NetworkPolicy, group_by_shape
from tests.history.systems import record

SPACES = {"box": Continuous((-2.0,), (2.0,)), "discrete": Discrete(3)}
ENVIRONMENTS = {"box": "Pendulum-v1", "discrete": "MountainCar-v0"}
HISTORIES = (2, 4, 6, 7, 16)


def make_parts(
    space: ActionSpace, history: int, states: int = 3
) -> tuple[Actor, GaussianMLP, Scaling]:
    rng = np.random.default_rng(history)
    mean, scale = rng.normal(size=states), rng.uniform(0.5, 2, states)
    rewards = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    observed = Standardiser(mean.astype(np.float32), scale.astype(np.float32))
    scaling = Scaling(observed, rewards, space, history)
    size = scaling.layout.size
    encoder = GaussianMLP(
        size, 5, (16, 8), "silu", 1e-4, shortcut=True, history=history, key=jax.random.key(0)
    )
    return Actor(5, space, (16,), key=jax.random.key(1)), encoder, scaling


def act_in_jax(
    parts: tuple[Actor, GaussianMLP, Scaling], window: np.ndarray
) -> np.ndarray | np.int64:
    actor, encoder, scaling = parts
    action = actor.mode(encoder(jnp.asarray(scaling.inputs(window))).mean)
    return np.int64(jnp.argmax(action)) if isinstance(actor.space, Discrete) else np.asarray(action)


@pytest.mark.parametrize("history", HISTORIES)
def test_convolutions_join_all_rows_and_no_row_twice(history: int) -> None:
    sizes = choose_convolutions(history * 3, history, 8)
    rows, width = history, 3
    for inputs, outputs in sizes:
        assert inputs % width == 0
        rows, left = divmod(rows, inputs // width)
        assert left == 0
        width = outputs
    assert (rows, width) == (1, 8)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("space", SPACES)
def test_a_policy_and_its_export_act_like_jax_over_whole_episodes(
    space: str, history: int, tmp_path: Path
) -> None:
    environment = gymnasium.make(ENVIRONMENTS[space], max_episode_steps=60)
    size = int(np.prod(environment.observation_space.shape or ()))
    parts = make_parts(SPACES[space], history, size)
    policy = deploy(*parts)
    assert export_onnx(policy, tmp_path / "p.onnx") < 1e-5
    assert measure_latency(tmp_path / "p.onnx", steps=5).median > 0
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    names = [each.name for each in session.get_inputs()], [o.name for o in session.get_outputs()]
    assert names == (["observation", "window"], ["action", "next_window"])
    in_jax = NetworkPolicy.of(policy)
    for seed in range(2):
        running, layout = policy.begin(), policy.layout
        assert isinstance(running, RunningPolicy)
        memory, carried = layout.start(), np.zeros((1, layout.memory_size), np.float32)
        observation, ended = environment.reset(seed=seed)[0], False
        while not ended:
            given = np.asarray(observation, np.float32)
            window = np.asarray(layout.open(given, memory))
            expected = act_in_jax(parts, window)
            action = running(observation)
            np.testing.assert_array_equal(running.window, window)
            np.testing.assert_allclose(action, expected, atol=1e-5)
            chosen = in_jax.choose(jnp.asarray(window), key=jax.random.key(0))
            np.testing.assert_allclose(
                chosen, encode_actions(policy.space, np.asarray(action)), atol=1e-5
            )
            feed = {"observation": given[None], "window": carried}
            exported, carried = session.run(None, feed)
            np.testing.assert_allclose(exported[0], expected, atol=1e-5)
            memory = np.asarray(layout.remember(window, encode_actions(policy.space, action)))
            np.testing.assert_allclose(carried[0], memory, atol=1e-5)
            observation, _, terminated, truncated, _ = environment.step(action)
            ended = terminated or truncated


def test_the_deployed_window_equals_the_training_window() -> None:
    data = record(episodes=3, steps=12, history=5).transitions
    policy = deploy(*make_parts(Continuous((-1.0,), (1.0,)), 5, 1))
    windows, actions = data.inputs, np.asarray(data.actions)
    for episode in data.episode_slices:
        running = policy.begin()
        assert isinstance(running, RunningPolicy)
        for row in range(episode.start, episode.stop):
            running(np.asarray(data.states)[row])
            np.testing.assert_array_equal(running.window, windows[row])
            running.replace_action(actions[row])


def test_episodes_of_an_evaluation_do_not_share_a_window() -> None:
    policy = deploy(*make_parts(SPACES["box"], 4))
    both = evaluate_policy(policy, "Pendulum-v1", episodes=2)
    np.testing.assert_array_equal(
        both.returns, evaluate_policy(policy, "Pendulum-v1", episodes=2).returns
    )
    alone = evaluate_policy(policy, "Pendulum-v1", episodes=1)
    assert alone.returns[0] == both.returns[0]


def test_policies_with_a_history_survive_their_file(tmp_path: Path) -> None:
    policies = [deploy(*make_parts(SPACES["box"], history)) for history in (1, 4, 16)]
    Run(tmp_path).save("p", pack_policies(policies))
    found = load_policies(tmp_path / "p.npz")
    for policy, other in zip(policies, found, strict=True):
        assert other.history == policy.history
        window = np.linspace(-1, 1, policy.layout.size, dtype=np.float32)
        np.testing.assert_array_equal(policy(window), other(window))
    assert len(group_by_shape([*policies, *found])) == 3


def test_a_batch_of_windows_gives_the_actions_of_each() -> None:
    policy = deploy(*make_parts(SPACES["box"], 6))
    windows = np.random.default_rng(0).normal(size=(7, policy.layout.size)).astype(np.float32)
    each = np.array([policy(window) for window in windows])
    np.testing.assert_allclose(policy(windows), each, atol=1e-6)


def test_a_single_observation_is_refused_with_the_remedy() -> None:
    policy = deploy(*make_parts(SPACES["box"], 4))
    with pytest.raises(InputError, match=r"windows of 4 .*call begin\(\)"):
        policy(np.zeros(3, np.float32))
    running = policy.begin()
    with pytest.raises(InputError, match="has 2 values; the policy expects 3"):
        running(np.zeros(2, np.float32))
    assert isinstance(running, RunningPolicy)
    with pytest.raises(InputError, match="no window before the first observation"):
        running.replace_action(np.zeros(1, np.float32))


def test_a_file_that_claims_a_wrong_history_is_damaged(tmp_path: Path) -> None:
    policy = deploy(*make_parts(SPACES["box"], 4))
    wrong = DeployedPolicy(policy.mean, policy.scale, policy.stages, policy.space, 5)
    Run(tmp_path).save("p", pack_policies([wrong]))
    with pytest.raises(InputError, match="does not describe policies"):
        load_policies(tmp_path / "p.npz")
