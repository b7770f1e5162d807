"""Rewards of the user, warnings, and what `data check` says about data whose answer is known."""

from pathlib import Path

import numpy as np
import pytest

import gelato
from gelato.cli import main
from gelato.data import find_warnings, judge_data, reference
from gelato.data.fields import MissingRewardsError
from gelato.errors import InputError, UserCodeError


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of remembered reward functions."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log without rewards: 4 episodes of 5 steps."""
    rows = np.arange(20.0)
    table = np.column_stack([rows, rows**2, np.sin(rows), rows // 5])
    path = tmp_path / "log.csv"
    np.savetxt(path, table, delimiter=",", header="obs_0,obs_1,act,episode", comments="")
    return path


def write_reward(folder: Path, body: str) -> Path:
    path = folder / "my_reward.py"
    path.write_text(f"def reward(states, actions, next_states):\n    {body}\n")
    return path


def test_a_reward_function_gets_arrays_and_is_part_of_the_fingerprint(log, tmp_path):
    path = write_reward(tmp_path, "return states[:, 0] - actions[:, 0] + next_states[:, 1]")
    first = gelato.load(f"csv:{log},reward={path}")
    data = first.transitions
    expected = data.states[:, 0] - data.actions[:, 0] + data.next_states[:, 1]
    np.testing.assert_allclose(data.rewards, expected, rtol=1e-6)
    again = gelato.load(first.reference)
    assert again.transitions.fingerprint() == data.fingerprint()
    path.write_text(path.read_text() + "# another comment\n")
    assert gelato.load(first.reference).transitions.fingerprint() != data.fingerprint()


def test_every_source_takes_a_reward_function(tmp_path, store):
    path = write_reward(tmp_path, "return states.sum(axis=1)")
    data = gelato.load(f"four-rooms,transitions=50,reward={path}").transitions
    np.testing.assert_allclose(data.rewards, data.states.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return states", r"returned shape \(20, 2\); it must be \(20,\)"),
        ("return states[:, 0] * float('nan')", "reward returned nan for row 0"),
    ],
)
def test_wrong_rewards_are_one_line(log, tmp_path, body, message):
    with pytest.raises(InputError, match=message):
        gelato.load(f"csv:{log},reward={write_reward(tmp_path, body)}")


def test_a_reward_function_that_raises_keeps_its_traceback(log, tmp_path, capsys):
    path = write_reward(tmp_path, "return states[:, 7]")
    with pytest.raises(UserCodeError, match="raised IndexError") as raised:
        gelato.load(f"csv:{log},reward={path}")
    assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(SystemExit, match="2"):
        main(["data", "info", f"csv:{log}", "--reward", str(path)])
    said = capsys.readouterr().err
    assert 'my_reward.py", line 2, in reward' in said and "gelato: reward=" in said
    path.write_text("def reward(:\n")
    with pytest.raises(UserCodeError, match="cannot be run"):
        gelato.load(f"csv:{log},reward={path}")
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="has no function reward"):
        gelato.load(f"csv:{log},reward={path}")
    with pytest.raises(InputError, match="cannot be read"):
        gelato.load(f"csv:{log},reward=absent.py")


def test_code_that_only_a_run_folder_names_is_not_run(log, tmp_path):
    """Whoever writes `run.json` must not choose a program for its reader."""
    proof = tmp_path / "proof"
    path = write_reward(tmp_path, f"open({str(proof)!r}, 'w'); return states[:, 0]")
    with pytest.raises(InputError, match="is code that you have not run before"):
        reference.load_stored(f"csv:{log},reward={path}")
    assert not proof.exists()
    gelato.load(f"csv:{log},reward={path}")
    assert proof.exists()
    assert len(reference.load_stored(f"csv:{log},reward={path}").transitions) == 20


def test_missing_rewards_are_an_error_except_where_data_is_inspected(log, capsys):
    with pytest.raises(MissingRewardsError, match="compute rewards with"):
        gelato.load(f"csv:{log}")
    main(["data", "info", f"csv:{log}"])
    shown = capsys.readouterr()
    assert "warning: no rewards" in shown.err
    assert "obs_0, obs_1" in shown.out and "row 4" in shown.out
    with pytest.raises(InputError, match="rewards= and reward= exclude each other"):
        gelato.load(f"csv:{log},rewards=act,reward=x.py")


def make_linear(episodes: int = 40, *, noise: float = 0.0, hidden: bool = False) -> gelato.Dataset:
    """A pushed cart; with `hidden`, only its position is recorded."""
    rng = np.random.default_rng(0)
    steps = 60
    states = np.zeros((episodes, steps + 1, 2))
    states[:, 0] = rng.normal(size=(episodes, 2))
    actions = rng.uniform(-1, 1, (episodes, steps))
    for step in range(steps):
        position, speed = states[:, step].T
        states[:, step + 1, 0] = position + 0.2 * speed
        states[:, step + 1, 1] = 0.9 * speed + 0.5 * actions[:, step]
    states += noise * rng.normal(size=states.shape)
    kept = states[..., :1] if hidden else states
    return gelato.make_dataset(
        kept[:, :-1].reshape(episodes * steps, -1),
        actions.reshape(-1, 1),
        -(states[:, 1:, 0] ** 2).ravel(),
        next_observations=kept[:, 1:].reshape(episodes * steps, -1),
        timeouts=np.tile(np.arange(steps) == steps - 1, episodes),
    )


def judge(dataset: gelato.Dataset) -> dict[str, str]:
    return {finding.topic: finding.verdict for finding in judge_data(dataset)}


def test_good_data_is_good_and_its_linear_dynamics_are_found():
    findings = {finding.topic: finding for finding in judge_data(make_linear())}
    assert findings["next state"].measured.startswith("R² linear 1.00")
    verdicts = {topic: finding.verdict for topic, finding in findings.items()}
    assert verdicts.pop("amount") == "thin", "2,400 steps"
    assert set(verdicts.values()) == {"good"}
    assert all(bool(each.advice) == (each.verdict != "good") for each in findings.values())


def test_a_hidden_velocity_noise_and_a_single_policy_are_noticed():
    assert judge(make_linear(hidden=True))["next state"] != "good"
    assert judge(make_linear(noise=5.0))["next state"] != "good"
    data = make_linear()
    states = data.transitions.states
    followed = gelato.make_dataset(
        states,
        np.clip(-0.1 * states[:, :1], -1, 1),
        data.transitions.rewards,
        timeouts=data.transitions.truncated,
    )
    assert judge(followed)["actions per state"] == "thin"


def test_too_little_data_is_missing():
    found = judge(make_linear(episodes=1))
    assert found["amount"] == found["held-out episodes"] == "missing"


def test_coverage_of_episodes_that_lie_apart_is_missing():
    """Every episode is elsewhere, so nothing is known about a new one."""
    near = make_linear()
    assert judge(near)["coverage"] == "good"
    rows = near.transitions
    places = np.concatenate([rows.states, 100 * np.repeat(np.eye(40), 60, axis=0)], axis=1)
    far = gelato.make_dataset(places, rows.actions, rows.rewards, timeouts=rows.truncated)
    assert judge(far)["coverage"] == "missing"


def test_warnings_name_constant_columns_and_count_duplicates():
    states = np.tile(np.arange(10.0), 2)[:, None] * [1, 0]
    ends = np.tile(np.arange(10) == 9, 2)
    dataset = gelato.make_dataset(states, np.full((20, 1), 0.5), np.ones(20), timeouts=ends)
    warnings = find_warnings(dataset)
    assert any("constant states: state[1]" in each for each in warnings)
    assert any("actions that never vary: action[0]" in each for each in warnings)
    assert any("10 rows are copies of earlier rows" in each for each in warnings)
    assert any("the reward is always 1" in each for each in warnings)
    assert find_warnings(make_linear()) == []


def test_the_command_prints_verdicts_for_people_and_for_programs(tmp_path, capsys):
    data = make_linear().transitions
    np.savez(
        tmp_path / "log.npz",
        obs=data.states,
        actions=data.actions,
        rewards=data.rewards,
        truncated=data.truncated,
    )
    main(["data", "check", f"file:{tmp_path / 'log.npz'}"])
    shown = capsys.readouterr()
    assert "next state" in shown.out and "amount: record at least" in " ".join(shown.err.split())
    main(["data", "check", f"file:{tmp_path / 'log.npz'}", "--json"])
    assert '"verdict": "good"' in capsys.readouterr().out
