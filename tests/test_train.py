"""Training as a user meets it: from a reference to returns in the real environment, resumed, refused."""

import json
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato import blocks
from gelato.agents.ppo import PPOConfig
from gelato.agents.sac import SACConfig
from gelato.baselines.ensemble import EnsembleConfig
from gelato.cli import main
from gelato.data.reference import load
from gelato.data.spaces import Continuous
from gelato.data.summary import episode_returns
from gelato.data.transitions import Dataset
from gelato.environments import pessimistic_env
from gelato.errors import InputError
from gelato.methods import METHODS, TrainConfig, grouped, method_for
from gelato.model import training
from gelato.model.config import preset
from gelato.pipeline import train
from gelato.report.policy_table import gather
from gelato.tensorboard import mirror
from gelato.trained import evaluate_run, most_valued, trained_policies
from gelato.worlds import latent_dynamics

SAC = SACConfig(hidden=(8,), batch_size=8, updates=6, epoch=2, branches=4, horizon=2, replay=16)


@pytest.fixture(scope="module")
def dataset(shared_store: Path) -> Dataset:
    return load("four-rooms-hole,transitions=600")


@pytest.fixture(scope="module")
def config(dataset: Dataset) -> TrainConfig:
    model = replace(
        preset("default", dataset),
        decoders=2,
        hidden=(8,),
        forward_hidden=(8,),
        batch_size=32,
        updates=2,
        variance_updates=1,
    )
    ensemble = EnsembleConfig(members=3, elites=2, hidden=(8,), batch_size=8, updates=2)
    return TrainConfig(model, ensemble, SAC, neighbours=3, doubt=0.01, evaluations=2, episodes=2)


@pytest.fixture(scope="module", autouse=True)
def untrained(request: pytest.FixtureRequest):
    """What is trained does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *arguments: arguments[-1])
        yield


def methods(dataset: Dataset, *names: str):
    return [method_for(name, dataset) for name in names]


@pytest.fixture(scope="module")
def finished(dataset: Dataset, config: TrainConfig, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "all"
    train(dataset, run, methods(dataset, *METHODS), seeds=2, config=config, workers=1, tensorboard=True)
    return run


@pytest.fixture(scope="module")
def swung(tmp_path_factory) -> Path:
    """A run on a log of Pendulum, whose returns are never zero and change with every update."""
    folder = tmp_path_factory.mktemp("pendulum")
    environment, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    rows: dict[str, list] = {"observations": [], "actions": [], "rewards": [], "truncations": []}
    for episode in range(2):
        observation, _ = environment.reset(seed=episode)
        for _ in range(200):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            after, reward, _, truncated, _ = environment.step(action)
            for column, value in zip(rows.values(), (observation, action, reward, truncated), strict=True):
                column.append(value)
            observation = after
    np.savez(folder / "log.npz", **{name: np.array(column) for name, column in rows.items()})
    log = load(f"file:{folder}/log.npz,low=-2,high=2,environment=Pendulum-v1")
    fast = replace(SAC, critic_rate=0.05, actor_rate=0.05, updates=8)
    config = TrainConfig(preset("default", log), EnsembleConfig(), fast, evaluations=4, episodes=2)
    train(log, folder / "run", methods(log, "sac", "bc"), seeds=2, config=config, workers=1)
    return folder / "run"


def test_every_method_runs_from_data_to_returns(finished: Path) -> None:
    records = json.loads((finished / "results.json").read_text())
    assert [(r["method"], r["seed"]) for r in records] == [(name, seed) for name in METHODS for seed in (0, 1)]
    assert all(r["steps"] == 6 and 0 <= r["return"] <= 60 for r in records)


def test_the_last_and_the_best_policies_are_kept_and_return_again_what_they_did(swung: Path) -> None:
    records = json.loads((swung / "results.json").read_text())
    for which, name in (("last", "return"), ("best", "best_return")):
        again = evaluate_run(swung, episodes=2, which=which, workers=1)
        assert [(r["method"], r["seed"]) for r in again] == [(r["method"], r["seed"]) for r in records]
        np.testing.assert_allclose([r["return"] for r in again], [r[name] for r in records], rtol=1e-5)
    gains = np.array([r["best_return"] - r["return"] for r in records])
    assert np.all(gains >= 0) and np.any(gains > 1) and all(r["return"] < -1 for r in records)


def test_a_policy_of_logged_steps_is_the_same_beside_others_and_alone(
    dataset: Dataset, config: TrainConfig, finished: Path, tmp_path: Path
) -> None:
    train(dataset, tmp_path / "alone", methods(dataset, "sac"), seeds=2, config=config, workers=1)
    assert not (tmp_path / "alone" / "ensemble").exists() and not (finished / "logged").exists()
    beside, alone = (trained_policies(run, method="sac") for run in (finished, tmp_path / "alone"))
    assert len(alone) == 2
    for one, other in zip(beside, alone, strict=True):
        weights, same = (jax.tree.leaves(trained.policy.stages[0].layers) for trained in (one, other))
        for x, y in zip(weights, same, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


def test_what_learns_by_another_algorithm_is_a_program_of_its_own(dataset: Dataset, config: TrainConfig) -> None:
    chosen = methods(dataset, "mopo", "sac")
    assert list(grouped(chosen, config)) == ["state"]
    assert list(grouped(chosen, replace(config, ppo=PPOConfig()))) == ["state", "logged"]


def test_the_most_valued_policy_of_every_method_is_chosen_without_the_environment(finished: Path) -> None:
    records = json.loads((finished / "results.json").read_text())
    chosen = most_valued(finished)
    assert [trained.method for trained in chosen] == list(METHODS)
    for trained in chosen:
        own = {r["seed"]: r["initial_value"] for r in records if r["method"] == trained.method}
        assert own[trained.seed] is None or own[trained.seed] == max(own.values())


def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(dataset: Dataset, tmp_path: Path) -> None:
    bc = methods(dataset, "bc")
    actions = np.zeros((len(dataset.transitions), 1), np.float32)
    space = Continuous((-np.inf,), (np.inf,))
    unbounded = replace(dataset, transitions=replace(dataset.transitions, actions=actions, action_space=space))
    with pytest.raises(InputError, match="range of actions is unbounded"):
        train(unbounded, tmp_path / "run", bc)
    with pytest.raises(InputError, match="below 2³¹"):
        train(dataset, tmp_path / "run", bc, first_seed=2**31)
    alone = replace(dataset, transitions=dataset.transitions[dataset.transitions.episode_slices[0]])
    for name in ("bc", "mopo"):
        with pytest.raises(InputError, match="episode"):
            train(alone, tmp_path / "run", methods(dataset, name))
    assert not (tmp_path / "run").exists()


def test_the_better_the_data_the_closer_a_policy_is_kept_to_it(dataset: Dataset) -> None:
    poor = replace(dataset, environment="Hopper-v5")
    returns = episode_returns(poor.transitions).mean()

    def scaled(mean: float) -> Dataset:
        rewards = np.asarray(poor.transitions.rewards) * mean / returns
        return replace(poor, transitions=replace(poor.transitions, rewards=rewards))

    weights = [method_for("gelato", data).penalty_weight for data in (poor, scaled(1_300.0), scaled(2_000.0))]
    assert weights == sorted(set(weights))
    assert method_for("mopo", scaled(2_000.0)).penalty_weight == method_for("gelato", scaled(1_300.0)).penalty_weight
    names, shares = ("gelato", "mopo", "mbpo", "sac", "bc"), []
    for data in (poor, scaled(1_300.0), scaled(2_000.0)):
        shares.append([method_for(name, data).real_share for name in names])
    assert shares == [[0.05, 0.05, 0.05, 1, 1], [0.5, 0.05, 0.05, 1, 1], [0.5, 0.5, 0.5, 1, 1]]
    assert method_for("gelato", poor, penalty_weight=7.0).penalty_weight == 7.0
    assert method_for("mbpo", scaled(2_000.0)).penalty_weight == 0
    assert method_for("gelato", poor, real_share=0.2).real_share == 0.2
    with pytest.raises(InputError, match="with 1 there is `sac`"):
        method_for("gelato", poor, real_share=1.0)


def test_the_scales_of_penalties_are_kept_in_the_run(finished: Path) -> None:
    scales = json.loads((finished / "latent" / "calibration.json").read_text())
    assert set(scales) == {"gelato", "gelato-l2", "gelato-ensemble", "gelato-none"}
    assert all(len(scale["level"]) == len(scale["unit"]) == 2 and min(scale["unit"]) > 0 for scale in scales.values())


def test_metrics_are_there_for_tensorboard_too(finished: Path) -> None:
    runs = {path.parent.name for path in (finished / "tensorboard").glob("*/events*")}
    assert {"gelato-0", "gelato-1", "bc-1"} <= runs


def test_what_was_logged_last_is_there_when_training_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), mirror(tmp_path) as write:
        for step in range(20):
            write([{"step": step, "method": "bc", "seed": 0, "loss": 1.5}])
        raise KeyboardInterrupt
    (events,) = (tmp_path / "bc-0").glob("events*")
    assert events.read_bytes().count(b"loss") == 20


def test_the_mdp_of_a_run_is_an_environment_for_others(finished: Path, dataset: Dataset) -> None:
    env = pessimistic_env(finished / "model", penalty="euclidean", horizon=3, doubt=0.01, num_envs=2, seed=1)
    env.reset(seed=0)
    _, _, terminated, truncated, infos = zip(*(env.step(np.zeros(2, int)) for _ in range(3)))
    assert infos[0]["penalty"].shape == (2,) and np.any([*terminated, *truncated])
    with pytest.raises(InputError, match=r"actions have shape \(3,\); it must be \(2,\)"):
        env.step(np.zeros(3, int))
    with pytest.raises(InputError, match="penalty's weight is -1"):
        pessimistic_env(finished / "model", penalty_weight=-1.0)


def test_doubt_is_the_mean_deviation_of_a_blurred_state_over_the_data(finished: Path) -> None:
    fitted = training.load_model(finished / "model")
    dynamics = latent_dynamics(fitted, 1, doubt=0.01)
    states = jnp.asarray(fitted.scaling.states(np.asarray(fitted.parts[0].states)))
    deviations = jax.vmap(lambda s: jnp.sqrt(dynamics.model.decoded_variances(dynamics.start(s))))(states)
    assert dynamics.blur is not None
    np.testing.assert_allclose(jax.vmap(jax.vmap(dynamics.blur))(deviations).mean(), 0.01, rtol=0.05)
    np.testing.assert_allclose(dynamics.blur.most, 0.1, rtol=1e-6)
    assert latent_dynamics(fitted, 1, doubt=0.0).blur is None


def test_a_run_that_was_killed_ends_where_it_would_have_ended(
    dataset: Dataset, config: TrainConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "CHECKPOINT_SECONDS", 0.0)
    chosen = methods(dataset, "gelato", "gelato-l2", "gelato-ensemble", "gelato-none")
    calls = []

    def killed(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_epoch(*arguments, **options)

    from gelato import pipeline

    run_epoch = pipeline.run_epoch
    monkeypatch.setattr(pipeline, "run_epoch", killed)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(dataset, run, chosen, seeds=2, config=config, workers=1)
    monkeypatch.setattr(pipeline, "run_epoch", run_epoch)
    train(dataset, run, chosen, seeds=2, config=config, workers=1)
    whole, resumed = (np.load(folder / "latent" / "last.npz") for folder in (finished, run))
    assert whole.files == resumed.files
    for name in whole.files:
        np.testing.assert_array_equal(whole[name], resumed[name])


def test_one_method_and_seed_can_be_picked(finished: Path) -> None:
    (chosen,) = trained_policies(finished, method="mopo", seed=1)
    assert (chosen.method, chosen.seed) == ("mopo", 1)
    with pytest.raises(InputError, match="holds no finished policy of method other"):
        trained_policies(finished, method="other")


def test_a_changed_setting_is_refused_and_nothing_is_lost(
    dataset: Dataset, config: TrainConfig, finished: Path
) -> None:
    before = (finished / "results.json").read_bytes()
    with pytest.raises(InputError, match="was begun with config"):
        train(dataset, finished, methods(dataset, *METHODS), seeds=2, config=replace(config, episodes=3))
    assert (finished / "results.json").read_bytes() == before


def test_data_that_cannot_be_fitted_is_refused_before_there_is_a_folder(
    dataset: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    large = replace(config, model=replace(config.model, batch_size=10_000))
    with pytest.raises(InputError, match="too few for batches of 10000"):
        train(dataset, tmp_path / "run", methods(dataset, "bc", "gelato"), config=large, workers=1)
    assert not (tmp_path / "run").exists()


def test_a_number_that_is_not_finite_stops_training_and_says_where(
    dataset: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    wild = replace(config, sac=replace(SAC, critic_rate=float("nan")))
    with pytest.raises(InputError, match=r"critic_loss became nan between updates .* \(method sac, seed 0\)"):
        train(dataset, tmp_path / "run", methods(dataset, "sac"), config=wild, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "four-rooms-hole", "--run", "R", "--episodes", "0"], "episodes is 0"),
        (["train", "four-rooms-hole", "--run", "R", "--seeds", "0"], "seeds is 0"),
        (["train", "four-rooms-hole", "--run", "R", "--method", "sac", "--penalty", "geodesic"], "one of their own"),
        (["train", "four-rooms-hole", "--run", "R", "--penalty", "geodesc"], "is not one of transport"),
        (["train", "four-rooms-hole", "--run", "R", "--penalty-weight", "-1"], "must be a number of at least 0"),
        (["train", "four-rooms-hole", "--run", "R", "--doubt", "-1"], "must be a number of at least 0"),
        (["train", "four-rooms-hole", "--run", "R", "--doubt", "1", "--method", "sac"], "nothing for sac here"),
        (
            ["train", "four-rooms-hole", "--run", "R", "--penalty-weight", "1", "--method", "bc"],
            "methods that penalise",
        ),
        (["train", "four-rooms-hole", "--run", "R", "--logged-share", ".5", "--method", "bc"], "methods that imagine"),
        (["train", "four-rooms-hole", "--run", "R", "--model-updates", "1", "--method", "bc"], "methods that imagine"),
        (["train", "four-rooms-hole", "--run", "R", "--model", "x", "--method", "mopo"], "in the latent model"),
        (["train", "four-rooms-hole", "--run", "R", "--penalty", "none", "--penalty-weight", "1"], "that penalise"),
        (["train", "four-rooms-hole", "--run", "R", "--model", "nowhere"], "nowhere: no such folder"),
        (["train", "four-rooms-hole", "--run", "file"], "file: is a file; name a folder"),
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (["evaluate", "nowhere", "--environment", "CartPol-v1"], "CartPol-v1: no such environment is installed here"),
        (["uncertainty", "nowhere", "--results", "absent/x.json"], "the folder absent does not exist"),
        (["table", "file"], "file: is no JSON file"),
        (["table", "nowhere"], "no such file or folder"),
        (["export", "nowhere", "--onnx", "x.onnx"], "nowhere: no such folder"),
        (["export", "nowhere", "--onnx", "x.txt"], "must end in .onnx"),
        (["export", "nowhere", "--onnx", "absent/x.onnx"], "the folder absent does not exist"),
        (["table", "nowhere", "--out", "absent/x.md"], "the folder absent does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    shared_store: Path, tmp_path: Path, monkeypatch, capsys, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no JSON")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and "Traceback" not in error
    assert not (tmp_path / "R" / "run.json").exists()


def test_the_table_has_means_spreads_and_the_papers_numbers(tmp_path: Path, capsys) -> None:
    rows = [
        {
            "dataset": "hopper-medium",
            "method": method,
            "seed": seed,
            "steps": 10,
            "return": value,
            "score": value / 10,
            "best_return": value,
            "data_return": 1300.0,
            "episodes": 2,
        }
        for method, seed, value in [("gelato", 0, 1000.0), ("gelato", 1, 3000.0), ("bc", 0, 500.0)]
    ]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    main(["table", str(tmp_path / "r.json")])
    text = capsys.readouterr().out
    assert "| hopper-medium | gelato | 2,000 ± 1,414 | 200.0 ± 141.4 | 1,300 | 1,676 | 2 | 10 |" in text
    assert "| gelato | 1 | 200.0 | 200.0 |" in text
    main(["table", str(tmp_path / "r.json"), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["cells"][1]["paper"] == 1234


def test_runs_made_otherwise_are_not_seeds_of_one_cell(tmp_path: Path) -> None:
    row = {"dataset": "d", "method": "gelato", "steps": 10, "return": 1.0, "score": None, "doubt": 0.01}
    for name, other in (("discount", 0.9), ("largest_blur", None), ("real_share", 0.5)):
        rows = [{**row, "seed": 0, name: 0.1}, {**row, "seed": 1, name: other}]
        (tmp_path / "r.json").write_text(json.dumps(rows))
        with pytest.raises(InputError, match=f"runs differ in {name}"):
            gather([tmp_path / "r.json"])


def test_a_run_says_what_it_was_made_with(finished: Path, config: TrainConfig) -> None:
    records = {r["method"]: r for r in json.loads((finished / "results.json").read_text())}
    assert records["gelato"]["doubt"] == 0.01 and records["gelato"]["largest_blur"] == pytest.approx(0.1)
    assert records["mopo"]["doubt"] is None and records["bc"]["discount"] is None
    assert records["sac"]["discount"] == config.sac.discount and records["sac"]["transitions"] == 600
    assert 0 < records["bc"]["data_return"] < 1
