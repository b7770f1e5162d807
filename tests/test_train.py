"""Training for users: from a reference to returns, resuming, and refusing bad input."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.paths import choose_most_valued
from gelato.agents.cloning import Cloning
from gelato.agents.iql import IQL
from gelato.agents.mobile import MOBILE
from gelato.agents.ppo import PPO
from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.data.reference import load
from gelato.data.spaces import Continuous
from gelato.data.transitions import Dataset
from gelato.dynamics import EnsembleConfig, EnsembleFit
from gelato.dynamics.latent import LatentFit, make_latent_dynamics
from gelato.errors import InputError
from gelato.model import training
from gelato.policy.encoded_env import EncodedEnv
from gelato.report.policy_table import gather
from gelato.runs import loop
from gelato.training import group as group_training
from gelato.training.environment import pessimistic_env
from gelato.training.method import Method, find_family, group_methods
from gelato.training.plan import make_plan
from gelato.training.policies import evaluate_run, trained_policies
from gelato.training.presets import (
    Parts,
    TrainSettings,
    change_method,
    choose_parts,
    clone_like,
    list_methods,
    make_grid,
    make_method,
    vary_method,
)
from gelato.training.train import train
from tests.runs.logged_run import read_csv
from tests.runs.test_loggers import read_tensorboard

AGENT = SAC(hidden=(8,), batch_size=8, updates=6, epoch=2, branches=4, horizon=2, replay=16)
# The data of these tests has discrete actions, which ReBRAC refuses.
METHODS = tuple(name for name in list_methods() if name != "rebrac")


@pytest.fixture(scope="module")
def dataset(shared_store: Path) -> Dataset:
    return load("four-rooms-hole,transitions=600")


@pytest.fixture(scope="module")
def parts(dataset: Dataset) -> Parts:
    chosen = choose_parts(dataset)
    model = replace(
        chosen.latent.model,
        decoders=2,
        hidden=(8,),
        forward_hidden=(8,),
        batch_size=32,
        updates=2,
        variance_updates=1,
    )
    ensemble = EnsembleConfig(members=3, elites=2, hidden=(8,), batch_size=8, updates=2)
    return replace(
        chosen,
        latent=LatentFit(model, state_noise=0.01),
        ensemble=EnsembleFit(ensemble),
        sac=AGENT,
        cloning=clone_like(AGENT),
        iql=IQL(hidden=(8,), batch_size=8, updates=6, epoch=2),
        mobile=MOBILE(hidden=(8,), batch_size=8, updates=6, epoch=2, branches=4, samples=2),
        settings=TrainSettings(neighbours=3, evaluations=2, episodes=2),
    )


@pytest.fixture(scope="module", autouse=True)
def untrained(request: pytest.FixtureRequest):
    """Make tiny settings: these tests do not need good policies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_run_phase", lambda *given: given[6].model)
        yield


def run_methods(dataset: Dataset, run: Path, parts: Parts, *names: str, **options):
    chosen = [make_method(name, parts) for name in names]
    options = {"seeds": 2, "settings": parts.settings, "workers": 1, **options}
    return train(dataset, run, chosen, **options)


@pytest.fixture(scope="module")
def finished(dataset: Dataset, parts: Parts, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "all"
    run_methods(dataset, run, parts, *METHODS, log="tensorboard")
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
            for column, value in zip(
                rows.values(), (observation, action, reward, truncated), strict=True
            ):
                column.append(value)
            observation = after
    np.savez(folder / "log.npz", **{name: np.array(column) for name, column in rows.items()})
    log = load(f"file:{folder}/log.npz,low=-2,high=2,environment=Pendulum-v1")
    fast = replace(AGENT, critic_rate=0.05, actor_rate=0.05, updates=8)
    settings = TrainSettings(evaluations=4, episodes=2)
    parts = replace(choose_parts(log), sac=fast, cloning=clone_like(fast), settings=settings)
    run_methods(log, folder / "run", parts, "sac", "bc")
    return folder / "run"


def test_every_method_runs_from_data_to_returns(finished: Path) -> None:
    records = json.loads((finished / "results.json").read_text())
    assert [(r["method"], r["seed"]) for r in records] == [
        (name, seed) for name in METHODS for seed in (0, 1)
    ]
    assert all(r["steps"] == 6 and 0 <= r["return"] <= 60 for r in records)


def test_every_column_and_field_of_a_run_is_in_its_guide(finished: Path) -> None:
    guide = (Path(__file__).parents[1] / "docs" / "guide" / "run_folder.md").read_text()
    records = json.loads((finished / "results.json").read_text())
    names = {name for record in records for name in record}
    for log in finished.glob("policies/*/metrics.csv"):
        names |= set(log.read_text().partition("\n")[0].strip().split(","))
    assert len(names) > 30
    assert not {name for name in names if f"`{name}`" not in guide}


def test_groups_with_equal_fits_share_what_was_fitted(
    dataset: Dataset, parts: Parts, tmp_path: Path
) -> None:
    method = make_method("gelato", parts)
    other = replace(method, name="other", agent=replace(parts.sac, discount=0.9))
    plan = make_plan(dataset, [method, other])
    assert len(plan.groups) == 2 and len(plan.fits) == 1
    first, second = (plan.fit(group.fit, tmp_path) for group in plan.groups)
    assert first is second


def test_the_last_and_the_best_policies_are_kept_and_return_again_what_they_did(
    swung: Path,
) -> None:
    records = json.loads((swung / "results.json").read_text())
    for which, name in (("last", "return"), ("best", "best_return")):
        again = evaluate_run(swung, episodes=2, which=which, workers=1)
        assert [(r["method"], r["seed"]) for r in again] == [
            (r["method"], r["seed"]) for r in records
        ]
        np.testing.assert_allclose(
            [r["return"] for r in again], [r[name] for r in records], rtol=1e-5
        )
    gains = np.array([r["best_return"] - r["return"] for r in records])
    assert np.all(gains >= 0) and np.any(gains > 1) and all(r["return"] < -1 for r in records)


def test_a_policy_is_the_same_beside_others_and_alone(
    dataset: Dataset, parts: Parts, finished: Path, tmp_path: Path
) -> None:
    run_methods(dataset, tmp_path / "alone", parts, "mbpo")
    assert not (tmp_path / "alone" / "model").exists()
    beside = trained_policies(finished, method="mbpo")
    alone = trained_policies(tmp_path / "alone", method="mbpo")
    assert len(alone) == 2
    for one, other in zip(beside, alone, strict=True):
        weights = jax.tree.leaves(one.policy.stages[0].layers)
        same = jax.tree.leaves(other.policy.stages[0].layers)
        for x, y in zip(weights, same, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


def test_methods_with_equal_fits_and_agents_share_a_program(parts: Parts) -> None:
    chosen = [make_method(name, parts) for name in METHODS]
    names = [[method.name for method in group.methods] for group in group_methods(chosen)]
    latent = ["gelato", "gelato-l2", "gelato-ensemble", "gelato-none"]
    assert names == [latent, ["mopo", "mbpo"], ["sac"], ["mobile"], ["iql"], ["bc"]]
    other = replace(chosen[1], agent=PPO())
    assert len(group_methods([chosen[0], other])) == 2


def test_a_name_a_method_and_a_mixture_of_both_can_be_trained(
    dataset: Dataset, parts: Parts, tmp_path: Path
) -> None:
    mine = Method("mine", AGENT)
    settings = parts.settings
    (record,) = train(dataset, tmp_path / "one", mine, settings=settings, workers=1)
    assert record["method"] == "mine" and record["real_fraction"] == 1.0
    clone = replace(make_method("bc", parts), name="my-clone")
    records = train(dataset, tmp_path / "two", [mine, clone], settings=settings, workers=1)
    assert [r["method"] for r in records] == ["mine", "my-clone"]
    assert records[0]["return"] == record["return"]
    with pytest.raises(InputError, match="with a different name"):
        train(dataset, tmp_path / "three", [mine, mine])
    with pytest.raises(InputError, match="'gelatto' is not one of gelato"):
        train(dataset, tmp_path / "three", "gelatto")
    assert not (tmp_path / "three").exists()


def test_a_finished_run_is_read_and_not_trained_again(
    dataset: Dataset, parts: Parts, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads((finished / "results.json").read_text())
    monkeypatch.setattr(group_training, "train_block", None)
    assert run_methods(dataset, finished, parts, *METHODS) == before


def test_the_most_valued_policy_of_every_method_is_chosen_without_the_environment(
    finished: Path,
) -> None:
    records = json.loads((finished / "results.json").read_text())
    chosen = choose_most_valued(finished)
    assert [trained.method for trained in chosen] == list(METHODS)
    for trained in chosen:
        own = {r["seed"]: r["initial_value"] for r in records if r["method"] == trained.method}
        assert own[trained.seed] is None or own[trained.seed] == max(own.values())


def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(
    dataset: Dataset, tmp_path: Path
) -> None:
    actions = np.zeros((len(dataset.transitions), 1), np.float32)
    space = Continuous((-np.inf,), (np.inf,))
    unbounded = replace(
        dataset, transitions=replace(dataset.transitions, actions=actions, action_space=space)
    )
    with pytest.raises(InputError, match="action range is unbounded"):
        train(unbounded, tmp_path / "run", "bc")
    with pytest.raises(InputError, match="2³¹"):
        train(dataset, tmp_path / "run", "bc", first_seed=2**31)
    alone = replace(dataset, transitions=dataset.transitions[dataset.transitions.episode_slices[0]])
    for name in ("bc", "mopo"):
        with pytest.raises(InputError, match="episode"):
            train(alone, tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_a_name_means_a_grid_that_is_the_same_for_all_data(dataset: Dataset) -> None:
    poor = replace(dataset, environment="Hopper-v5")
    for data in (dataset, poor):
        grid = make_grid("gelato", choose_parts(data))
        assert len(grid) == 10 and len(group_methods(grid)) == 1
        assert {method.penalty_weight for method in grid} == {0.3, 1.0, 3.0, 10.0, 30.0}
    names = [method.name for method in make_grid("gelato", choose_parts(dataset, "small"))]
    assert names == ["gelato λ=0.3", "gelato λ=3", "gelato λ=30"]
    assert [method.name for method in make_grid("bc", choose_parts(dataset))] == ["bc"]
    fractions = [method.name for method in make_grid("mbpo", choose_parts(dataset))]
    assert fractions == ["mbpo real=5%", "mbpo real=50%"]
    assert {find_family(name) for name in (*names, *fractions)} == {"gelato", "mbpo"}


def test_a_method_is_changed_or_refuses_a_change_that_it_would_ignore(parts: Parts) -> None:
    gelato, mopo, sac = (make_method(name, parts) for name in ("gelato", "mopo", "sac"))
    assert change_method(gelato, penalty_weight=7.0).penalty_weight == 7.0
    assert change_method(mopo, penalty="none").penalty_weight == 0.0
    assert change_method(gelato, real_fraction=0.2).real_fraction == 0.2
    with pytest.raises(InputError, match="use the method `sac`"):
        change_method(gelato, real_fraction=1.0)
    for change in ({"penalty": "geodesic"}, {"penalty_weight": 1.0}, {"real_fraction": 0.5}):
        with pytest.raises(InputError, match="has no effect"):
            change_method(sac, **change)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty": "geodesic", "penalty_weight": 3.0}, "learns from logged steps only"),
        ({"agent": Cloning(), "penalty": "none", "real_fraction": 0.5}, "without a fit"),
        ({"agent": PPO()}, "without a fit"),
        ({"penalty": 3}, "penalty is 3; give a registered name"),
    ],
)
def test_a_method_refuses_what_it_would_ignore(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"agent": SAC(), **changes}
    with pytest.raises(InputError, match=message):
        Method("mine", **given)


def test_a_penalty_without_imagined_steps_is_refused(parts: Parts) -> None:
    method = make_method("gelato", parts)
    for changes in ({"real_fraction": 1.0}, {"agent": Cloning()}):
        with pytest.raises(InputError, match="a penalty has no effect"):
            replace(method, **changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SAC(hidden=(0,)),
        lambda: SAC(actor_rate=-1.0),
        lambda: PPO(rate=0.0),
        lambda: Cloning(hidden=()),
        lambda: EnsembleConfig(members=0),
        lambda: EnsembleConfig(members=3, elites=5),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="must be"):
        make()


def test_the_scales_of_penalties_are_kept_in_the_run(finished: Path) -> None:
    scales = json.loads((finished / "policies" / "gelato" / "calibration.json").read_text())
    assert set(scales) == {"gelato", "gelato-l2", "gelato-ensemble", "gelato-none"}
    assert all(
        len(scale["level"]) == len(scale["unit"]) == 2 and min(scale["unit"]) > 0
        for scale in scales.values()
    )


def test_tensorboard_has_the_numbers_of_every_policy(finished: Path) -> None:
    found, dropped = read_tensorboard(finished / "tensorboard")
    expected = read_csv(finished)
    assert len(expected) > 200 and dropped == 0
    assert found == pytest.approx(expected)


def test_the_mdp_of_a_run_is_an_environment_for_others(finished: Path, dataset: Dataset) -> None:
    options = {"penalty": "euclidean", "horizon": 3, "state_noise": 0.01, "seed": 1}
    env = pessimistic_env(finished, num_envs=2, **options)
    env.reset(seed=0)
    _, _, terminated, truncated, infos = zip(*(env.step(np.zeros(2, int)) for _ in range(3)))
    assert infos[0]["penalty"].shape == (2,) and np.any([*terminated, *truncated])
    with pytest.raises(InputError, match=r"actions have shape \(3,\); expected \(2,\)"):
        env.step(np.zeros(3, int))
    with pytest.raises(InputError, match="penalty_weight=-1"):
        pessimistic_env(finished, penalty_weight=-1.0)
    alone = pessimistic_env(finished, **options)
    observation, _ = alone.reset(seed=0)
    assert alone.observation_space.contains(observation)
    real = EncodedEnv(gymnasium.make("gelato/FourRoomsGoal-v0"), finished, seed=1)
    assert real.observation_space.contains(real.reset(seed=0)[0])


def test_state_noise_has_that_mean_size_over_the_data(finished: Path) -> None:
    fitted = training.load_model(finished / "model")
    dynamics = make_latent_dynamics(fitted, 1, 0.01)
    states = jnp.asarray(fitted.scaling.states(np.asarray(fitted.parts[0].states)))
    model, noise = dynamics.model, dynamics.noise
    assert noise is not None
    deviations = jax.vmap(lambda s: jnp.sqrt(model.decode_variances(dynamics.encode(s))))(states)
    np.testing.assert_allclose(jax.vmap(jax.vmap(noise))(deviations).mean(), 0.01, rtol=0.05)
    np.testing.assert_allclose(noise.largest, 0.1, rtol=1e-6)
    assert make_latent_dynamics(fitted, 1, 0.0).noise is None


def test_a_run_that_was_killed_ends_with_the_same_policies(
    dataset: Dataset,
    parts: Parts,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    names = ("gelato", "gelato-l2", "gelato-ensemble", "gelato-none")
    calls = []
    train_block = group_training.train_block

    def interrupt(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train_block(*arguments, **options)

    monkeypatch.setattr(group_training, "train_block", interrupt)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_methods(dataset, run, parts, *names)
    assert "expected time" in capsys.readouterr().err
    monkeypatch.setattr(group_training, "train_block", train_block)
    resumed = run_methods(dataset, run, parts, *names)
    told = capsys.readouterr().err
    assert "resuming" in told and "expected time" not in told
    whole, again = (np.load(f / "policies" / "gelato" / "last.npz") for f in (finished, run))
    assert whole.files == again.files
    for name in whole.files:
        np.testing.assert_array_equal(whole[name], again[name])
    assert resumed == json.loads((finished / "results.json").read_text())[: len(resumed)]


def test_one_method_and_seed_can_be_picked(finished: Path) -> None:
    (chosen,) = trained_policies(finished, method="mopo", seed=1)
    assert (chosen.method, chosen.seed) == ("mopo", 1)
    # The model's folder stands for the training that it is part of.
    (same,) = trained_policies(finished / "model", method="mopo", seed=1)
    assert (same.method, same.seed) == ("mopo", 1)
    with pytest.raises(InputError, match="has no finished policy of method other"):
        trained_policies(finished, method="other")


def test_a_changed_setting_is_refused_and_nothing_is_lost(
    dataset: Dataset, parts: Parts, finished: Path
) -> None:
    before = (finished / "results.json").read_bytes()
    other = replace(parts.settings, episodes=3)
    with pytest.raises(InputError, match="started with another settings: episodes 2, not 3"):
        run_methods(dataset, finished, parts, *METHODS, settings=other)
    assert (finished / "results.json").read_bytes() == before


def test_data_that_cannot_be_fitted_is_refused_before_there_is_a_folder(
    dataset: Dataset, parts: Parts, tmp_path: Path
) -> None:
    model = replace(parts.latent.model, batch_size=10_000)
    large = replace(parts, latent=LatentFit(model))
    with pytest.raises(InputError, match=r"10,?000"):
        run_methods(dataset, tmp_path / "run", large, "bc", "gelato")
    assert not (tmp_path / "run").exists()


def test_a_number_that_is_not_finite_stops_training_and_says_where(
    dataset: Dataset, parts: Parts, tmp_path: Path
) -> None:
    wild = replace(parts, sac=replace(AGENT, critic_rate=float("inf")))
    with pytest.raises(
        InputError, match=r"critic_loss became nan between updates .* \(method sac, seed 0\)"
    ):
        run_methods(dataset, tmp_path / "run", wild, "sac")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "four-rooms-hole", "--run", "R", "--episodes", "0"], "episodes=0"),
        (["train", "four-rooms-hole", "--run", "R", "--seeds", "0"], "seeds=0"),
        (
            ["train", "four-rooms-hole", "--run", "R", "--method", "sac", "--penalty", "geodesic"],
            "a penalty has no effect",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--penalty", "geodesc"],
            "is not one of transport",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--penalty-weight", "-1"],
            "must be a finite number of at least 0",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--penalty-weight", "1", "auto"],
            "'auto' is not a number",
        ),
        (["select"], "name the folder of at least one run"),
        (["select", "nowhere"], "nowhere: no such folder"),
        (["select", "nowhere", "--budget", "-1"], "budget is -1"),
        (
            ["train", "four-rooms-hole", "--run", "R", "--state-noise", "-1"],
            "must be a finite number of at least 0",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--state-noise", "1", "--method", "sac"],
            "has no effect on sac",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--method", "bc", "--set", "sac.horizon=7"],
            "--set sac.horizon=7: has no effect on bc, which does not use sac",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--penalty-weight", "1", "--method", "bc"],
            "a penalty weight has no effect",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--real-fraction", ".5", "--method", "bc"],
            "--real-fraction has no effect",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--model-updates", "1", "--method", "bc"],
            "methods with a model",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--model", "x", "--method", "mopo"],
            "methods with the latent model",
        ),
        (
            [
                "train",
                "four-rooms-hole",
                "--run",
                "R",
                "--penalty",
                "none",
                "--penalty-weight",
                "1",
            ],
            "a penalty weight has no effect",
        ),
        (
            ["train", "four-rooms-hole", "--run", "R", "--model", "nowhere"],
            "nowhere: no such folder",
        ),
        (["train", "four-rooms-hole", "--run", "file"], "file: is a file; name a folder"),
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (
            ["evaluate", "nowhere", "--environment", "CartPol-v1"],
            "CartPol-v1: this environment is not installed",
        ),
        (
            ["uncertainty", "nowhere", "--results", "absent/x.json"],
            "the folder absent does not exist",
        ),
        (["table", "file"], "file: not a JSON file"),
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


def test_the_table_has_means_and_spreads(tmp_path: Path, capsys) -> None:
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
    assert "| hopper-medium | gelato | 2,000 ± 1,414 | 200.0 ± 141.4 | 1,300 | 2 | 10 |" in text
    assert "| gelato | 1 | 200.0 | 200.0 |" in text
    main(["table", str(tmp_path / "r.json"), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["cells"][1]["return_mean"] == 500


def test_runs_made_otherwise_are_not_seeds_of_one_cell(tmp_path: Path) -> None:
    row = {
        "dataset": "d",
        "method": "gelato",
        "steps": 10,
        "return": 1.0,
        "score": None,
        "state_noise": 0.01,
    }
    for name, other in (("discount", 0.9), ("largest_noise", None), ("real_fraction", 0.5)):
        rows = [{**row, "seed": 0, name: 0.1}, {**row, "seed": 1, name: other}]
        (tmp_path / "r.json").write_text(json.dumps(rows))
        with pytest.raises(InputError, match=f"runs differ in {name}"):
            gather([tmp_path / "r.json"])


def test_a_run_says_what_it_was_made_with(finished: Path) -> None:
    records = {r["method"]: r for r in json.loads((finished / "results.json").read_text())}
    assert records["gelato"]["state_noise"] == 0.01
    assert records["gelato"]["largest_noise"] == pytest.approx(0.1)
    assert records["mopo"]["state_noise"] is None and records["bc"]["discount"] is None
    assert records["sac"]["discount"] == AGENT.discount
    assert records["sac"]["transitions"] == 600
    assert 0 < records["bc"]["data_return"] < 1


def test_policies_are_judged_at_logged_states_and_in_imagined_rollouts(finished, capsys) -> None:
    command = ["trust", str(finished), "--policy", "--rows", "40", "--horizon", "3"]
    main([*command, "--method", "gelato", "--json"])
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["seed"] for record in records] == [0, 1]
    for record in records:
        assert (record["rows"], record["horizon"]) == (40, 3)
        for share in ("logged", "policy", "uniform", "imagined"):
            assert 0 <= record[f"{share}_trusted"] <= 1
        assert 0 <= record["steps_inside"] <= 3
    main([*command, "--method", "bc", "--seed", "1"])
    assert "steps inside" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--out", "rows.csv"])
    assert "--out writes the rows of DATA" in capsys.readouterr().err


def test_the_exported_graph_holds_the_guard_if_there_is_a_model(finished, tmp_path, capsys) -> None:
    onnx = pytest.importorskip("onnx")
    where = ["export", str(finished), "--method", "bc", "--onnx", str(tmp_path / "policy.onnx")]
    main([*where, "--prototypes", "100"])
    assert "100 prototypes" in capsys.readouterr().out
    graph = onnx.load(tmp_path / "policy.onnx").graph
    assert [output.name for output in graph.output][:3] == ["action", "penalty", "trusted"]
    main([*where, "--no-guard"])
    graph = onnx.load(tmp_path / "policy.onnx").graph
    assert [output.name for output in graph.output] == ["action"]
    alone = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(alone / "model")
    main(["export", str(alone), "--method", "bc", "--onnx", str(tmp_path / "alone.onnx")])
    assert "exported without a guard" in capsys.readouterr().err
    graph = onnx.load(tmp_path / "alone.onnx").graph
    assert [output.name for output in graph.output] == ["action"]


def test_a_return_is_shown_with_its_interval(finished, capsys) -> None:
    from gelato.report.policy_table import show_return

    assert show_return({"return": 100.0, "return_std": 20.0, "episodes": 5}) == "100 ± 28"
    assert show_return({"return": 1.0, "return_std": None, "episodes": 5}) == "1.00"
    records = json.loads((finished / "results.json").read_text())
    assert all(record["return_std"] >= 0 for record in records)
    main(["evaluate", str(finished), "--episodes", "2", "--method", "bc"])
    assert "±" in capsys.readouterr().out


def test_a_grid_is_one_program_with_one_penalty(dataset: Dataset, parts: Parts, tmp_path) -> None:
    grid = vary_method(make_method("gelato", parts), (0.3, 3.0), (0.05, 0.5))
    records = train(dataset, tmp_path / "run", grid, seeds=2, settings=parts.settings, workers=1)
    assert [path.name for path in (tmp_path / "run" / "policies").iterdir()] == ["gelato"]
    names = [record["method"] for record in records[::2]]
    assert names == [
        "gelato λ=0.3 real=5%",
        "gelato λ=0.3 real=50%",
        "gelato λ=3 real=5%",
        "gelato λ=3 real=50%",
    ]
    scales = json.loads((tmp_path / "run/policies/gelato/calibration.json").read_text())
    assert list(scales) == names and len({str(scale) for scale in scales.values()}) == 1
    alone = train(
        dataset, tmp_path / "alone", grid[2:3], seeds=2, settings=parts.settings, workers=1
    )
    together = [record for record in records if record["method"] == grid[2].name]
    for one, other in zip(alone, together, strict=True):
        assert one["initial_value"] == pytest.approx(other["initial_value"], rel=1e-4)


def test_variants_of_nothing_that_varies_are_refused(parts: Parts) -> None:
    with pytest.raises(InputError, match="a penalty weight has no effect"):
        vary_method(make_method("bc", parts), (1.0, 3.0))
    with pytest.raises(InputError, match="at least 0 and below 1"):
        vary_method(make_method("gelato", parts), (), (0.5, 1.0))
    assert vary_method(make_method("bc", parts)) == [make_method("bc", parts)]
