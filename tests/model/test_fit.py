import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gelato.cli import main
from gelato.data.columns import Columns, assemble
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.model import training
from gelato.model.check import check_model
from gelato.model.config import DEFAULT, PAPER, ModelConfig, preset
from gelato.model.fit import MEANS, VARIANCES, begin_phase, make_models, prepare_data, run_block
from gelato.model.latent import predict
from gelato.model.split import split_dataset
from gelato.model.training import fit_latent_model, fit_model, load_model
from gelato.runs import loop
from gelato.runs.folder import Run

TINY = replace(
    DEFAULT,
    latent_size=2,
    decoders=2,
    hidden=(16,),
    forward_hidden=(16,),
    batch_size=32,
    updates=600,
    variance_updates=400,
)
A, B, NOISE = np.array([[0.9, 0.2], [-0.1, 0.8]]), np.array([[0.5], [1.0]]), np.array([0.1, 0.3])


def linear_gaussian(steps: int = 2_000) -> Dataset:
    """`s′ = A s + B a + noise`, `r = s₀ + 2 a`, in episodes of 40 steps; ends where `s₁ > 1`."""
    rng = np.random.default_rng(0)
    episodes = steps // 40
    states = np.zeros((episodes, 41, 2))
    states[:, 0] = rng.normal(size=(episodes, 2))
    actions = rng.uniform(-1, 1, (episodes, 40, 1))
    for t in range(40):
        states[:, t + 1] = (
            states[:, t] @ A.T + actions[:, t] @ B.T + NOISE * rng.normal(size=(episodes, 2))
        )
    flat, successors = states[:, :-1].reshape(-1, 2), states[:, 1:].reshape(-1, 2)
    rewards = flat[:, 0] + 2 * actions.reshape(-1)
    time_up = np.tile(np.arange(40) == 39, episodes)
    columns = Columns(
        "linear", flat, actions.reshape(-1, 1), rewards, successors, flat[:, 1] > 1, time_up
    )
    return Dataset("linear", None, assemble(columns))


@pytest.fixture
def untrained(monkeypatch):
    """Make small settings: these tests do not need a good model."""
    monkeypatch.setattr(training, "_run_phase", lambda *given: given[6].model)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    config = replace(
        TINY,
        latent_size=3,
        hidden=(32,),
        forward_hidden=(32,),
        batch_size=128,
        updates=2_000,
        variance_updates=2_000,
    )
    return fit_model(
        linear_gaussian(8_000), tmp_path_factory.mktemp("runs") / "linear", config=config, seeds=2
    )


def test_on_a_linear_gaussian_system_mean_and_variance_are_recovered(fitted):
    rng = np.random.default_rng(1)
    states = jnp.asarray(rng.normal(size=(500, 2)) * 0.7, jnp.float32)
    actions = jnp.asarray(rng.uniform(-1, 1, (500, 1)), jnp.float32)
    truth = np.asarray(states) @ A.T + np.asarray(actions) @ B.T
    for index in range(2):
        model, scale = fitted.seed(index), fitted.scaling.states
        predictions = jax.vmap(lambda s, a, model=model: predict(model, s, a))(
            scale(states), actions
        )
        next_states = jax.vmap(lambda p: p.next_state())(predictions)
        error = np.asarray(scale.inverse(next_states.mean)) - truth
        assert np.sqrt((error**2).mean(axis=0)).max() < 0.1, "a third of the noise at most"
        deviation = np.sqrt(np.asarray(next_states.variance)) * scale.scale
        np.testing.assert_allclose(np.median(deviation, axis=0), NOISE, rtol=0.25)
        rewards = fitted.scaling.rewards.inverse(np.asarray(predictions.reward.mean))[:, 0]
        np.testing.assert_allclose(
            rewards, np.asarray(states)[:, 0] + 2 * np.asarray(actions)[:, 0], atol=0.35
        )


def test_the_check_sees_what_is_true_of_that_system(fitted):
    result = check_model(fitted)
    change_variance = np.var(
        fitted.dataset.transitions.next_states - fitted.dataset.transitions.states, axis=0
    )
    unit = np.asarray(fitted.scaling.states.scale)
    best = 1 - np.sum(NOISE**2 / unit**2) / np.sum(change_variance / unit**2)
    for seed in result["seeds"]:
        assert best - 0.05 < seed["delta_r2"] < best + 0.03
        assert seed["reward_r2"] > 0.97
        assert 0.8 < seed["coverage_90"] < 0.97
        assert seed["termination_recall"] > 0.5 and seed["termination_precision"] > 0.5
        assert seed["termination_by"] == "learned head"
        assert len(seed["rollouts"]["rmse"]) == seed["rollouts"]["horizon"] <= 40
        assert seed["rollouts"]["rmse"][0] < seed["rollouts"]["rmse_of_no_change"][0]
    json.dumps(result)
    assert not result["warnings"]


def test_a_second_check_compiles_nothing(fitted, count_compilations):
    check_model(fitted)
    assert count_compilations(lambda: check_model(fitted)) == 0


def test_a_run_describes_itself_and_comes_back(fitted):
    description = json.loads((fitted.run.folder / "run.json").read_text())
    assert description["config"]["updates"] == 2_000 and description["seeds"] == [0, 1]
    assert description["fingerprint"] == fitted.dataset.transitions.fingerprint()
    assert {"jax", "numpy", "gelato-rl", "python"} <= set(description["versions"])
    assert not any(
        path.suffix in (".pkl", ".pickle", ".eqx") for path in fitted.run.folder.rglob("*")
    )
    again = load_model(fitted.run.folder, fitted.dataset)
    assert eqx.tree_equal((again.models, again.scaling), (fitted.models, fitted.scaling))
    types, same = (
        [jax.typeof(leaf) for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)]
        for model in (again.models, fitted.models)
    )
    assert types == same, "what was fitted compiles as what was read"
    header, *rows = (fitted.run.folder / "metrics.csv").read_text().splitlines()
    assert header.startswith("step,phase,seed,updates_per_second,reconstruction") and len(rows) > 20


def test_a_model_is_found_in_a_training_run_too(fitted, tmp_path):
    training_run = {"format": 1, "kind": "policies", "model": None}
    (tmp_path / "run.json").write_text(json.dumps(training_run))
    with pytest.raises(InputError, match="has no fitted latent model"):
        load_model(tmp_path, fitted.dataset)
    shutil.copytree(fitted.run.folder, tmp_path / "model")
    assert eqx.tree_equal(load_model(tmp_path, fitted.dataset).models, fitted.models)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    training_run["model"] = str(fitted.run.folder)
    (elsewhere / "run.json").write_text(json.dumps(training_run))
    assert load_model(elsewhere, fitted.dataset).run.folder == fitted.run.folder


def test_a_split_is_the_same_data_in_either_scaling_of_rewards():
    dataset = linear_gaussian(2000)
    plain, unit = split_dataset(dataset), split_dataset(dataset, rewards_to_unit_range=True)
    assert plain.fingerprint == unit.fingerprint == dataset.transitions.fingerprint()
    assert eqx.tree_equal(plain.parts, unit.parts)
    assert eqx.tree_equal(plain.scale_rewards(to_unit_range=True).scaling, unit.scaling)
    assert eqx.tree_equal(unit.scale_rewards(to_unit_range=False).scaling, plain.scaling)
    scaled = unit.scaling.rewards(np.asarray(unit.train.rewards)[:, None])
    np.testing.assert_allclose((scaled.min(), scaled.max()), (-1, 1), atol=1e-5)


def test_a_fit_takes_the_scaling_of_rewards_from_its_settings(untrained, tmp_path):
    paper = replace(TINY, rewards_to_unit_range=True)
    split = split_dataset(linear_gaussian(2000))
    fitted = fit_latent_model(split, tmp_path / "run", paper, (3,))
    assert eqx.tree_equal(fitted.scaling, split.scale_rewards(to_unit_range=True).scaling)
    assert fitted.seeds == (3,) and fitted.split.fingerprint == split.fingerprint
    again = fit_latent_model(split, tmp_path / "run", paper, (3,))
    assert eqx.tree_equal((again.models, again.scaling), (fitted.models, fitted.scaling))


def test_the_models_of_different_seeds_differ(fitted):
    first, second = (jax.tree.leaves(fitted.seed(index).encoder) for index in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def one_block(phase: int, updates: int = 5):
    dataset = linear_gaussian(2000)
    split = split_dataset(dataset)
    data = prepare_data(*split.parts, split.scaling, TINY, range(1))
    before = make_models(TINY, 2, split.train.action_space, jnp.arange(1))
    state = begin_phase(TINY, phase, before)
    constants = (data, jnp.arange(1))
    state, *_ = run_block(constants, state, config=TINY, phase=phase, updates=updates)
    return before, state


def test_phase_two_leaves_every_frozen_weight_untouched_and_phase_one_the_variances():
    for phase in (MEANS, VARIANCES):
        before, state = one_block(phase)
        after = state.model

        def changed(pick, before=before, after=after) -> bool:
            pairs = zip(jax.tree.leaves(pick(before)), jax.tree.leaves(pick(after)), strict=True)
            return any(not np.array_equal(a, b) for a, b in pairs)

        for pick in (lambda m: m.decoders.raw_variance, lambda m: m.reward.raw_variance):
            assert changed(pick) == (phase == VARIANCES)
        for pick in (
            lambda m: m.encoder,
            lambda m: m.embedding,
            lambda m: m.forward,
            lambda m: m.decoders.mean,
            lambda m: m.reward.mean,
            lambda m: m.termination,
            lambda m: m.policy,
        ):
            assert changed(pick) == (phase == MEANS)
        assert not changed(lambda m: m.support)


def test_the_target_encoder_is_the_moving_average_of_the_encoder():
    before, state = one_block(MEANS, updates=1)
    old, new, target = (
        jax.tree.leaves(e) for e in (before.encoder, state.model.encoder, state.target_encoder)
    )
    for a, b, averaged in zip(old, new, target, strict=True):
        np.testing.assert_allclose(averaged, (1 - 0.01) * a + 0.01 * b, rtol=1e-5, atol=1e-7)


def test_the_best_model_on_held_out_data_is_kept():
    _, state = one_block(MEANS)
    assert np.isfinite(state.best_loss).all()
    assert eqx.tree_equal(state.best_model, state.model), (
        "after the first block, the best is the only one"
    )


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from gelato.runs import loop
from tests.model.test_fit import TINY, linear_gaussian, fit_model
loop.CHECKPOINT_SECONDS = 0.0
fit_model(linear_gaussian(2000), sys.argv[1], config=TINY)
"""


@pytest.mark.slow
def test_a_run_killed_in_either_phase_ends_bit_for_bit_where_the_uninterrupted_one_does(tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parents[2]))
    whole = fit_model(linear_gaussian(2000), tmp_path / "whole", config=TINY)
    for after in (100, TINY.updates + 100):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "killed")], stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 120
        newest = 0
        while newest < after and process.poll() is None and time.monotonic() < deadline:
            files = (tmp_path / "killed/checkpoints").glob("[0-9]*.npz")
            newest = max((int(file.stem) for file in files), default=0)
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "killed/model.npz").exists(), "it was killed before the end"
    resumed = fit_model(linear_gaussian(2000), tmp_path / "killed", config=TINY)
    assert eqx.tree_equal(resumed.models, whole.models)
    rows, same = (
        [{**row, "updates_per_second": ""} for row in fitted.run.metrics]
        for fitted in (resumed, whole)
    )
    assert rows == same and {row["phase"] for row in rows} == {"means", "variances"}


def stopped_fit(folder, monkeypatch, what, name):
    """Run a fit that stops when it reaches `what.name`."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(what, name, stop)
        fit_model(linear_gaussian(2000), folder, config=TINY)


def test_a_fit_stopped_between_its_phases_or_without_a_checkpoint_that_can_be_read_ends_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    whole = fit_model(linear_gaussian(2000), tmp_path / "whole", config=TINY)
    run = Run(tmp_path / "run")
    stopped_fit(run.folder, monkeypatch, training, "set_support")
    assert run.checkpoints == [400, 500]
    phase = training._run_phase
    monkeypatch.setattr(
        training, "_run_phase", lambda *given: phase(*given) if given[3] == MEANS else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        fit_model(linear_gaussian(2000), run.folder, config=TINY)
    assert run.checkpoints == [500, 600]
    monkeypatch.setattr(training, "_run_phase", phase)
    stopped_fit(run.folder, monkeypatch, training, "finish")
    assert run.checkpoints == [800, 900]
    for step in run.checkpoints:
        path = run.folder / f"checkpoints/{step:012d}.npz"
        path.write_bytes(path.read_bytes()[:60])
    stopped_fit(run.folder, monkeypatch, training, "set_support")
    assert run.checkpoints == [400, 500], "those that could not be read are gone"
    assert eqx.tree_equal(
        fit_model(linear_gaussian(2000), run.folder, config=TINY).models, whole.models
    )


def test_a_checkpoint_cut_short_is_passed_over_for_the_one_before_it(tmp_path, capsys):
    run = Run(tmp_path)
    for step in (1, 2, 3):
        run.save_checkpoint(step, {"x": np.full(3, float(step))})
    assert run.checkpoints == [2, 3]
    newest = tmp_path / "checkpoints/000000000003.npz"
    newest.write_bytes(newest.read_bytes()[:60])
    assert run.load_checkpoint(3, {"x": np.zeros(3)}) is None
    told = " ".join(capsys.readouterr().err.split())
    assert "perhaps cut short" in told and "using the previous checkpoint" in told
    np.testing.assert_array_equal(run.load_checkpoint(2, {"x": np.zeros(3)})["x"], 2.0)


def test_a_full_disk_while_saving_leaves_the_previous_checkpoint_whole(tmp_path):
    script = f"""
import resource, signal, numpy as np
from pathlib import Path
from gelato.runs.folder import Run
run = Run(Path({str(tmp_path)!r}))
run.save_checkpoint(1, {{"x": np.zeros(10)}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    run.save_checkpoint(2, {{"x": np.zeros(100_000)}})
except OSError as error:
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    print(error.errno, run.checkpoints, names)
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "27 [1] ['000000000001.npz']"


def test_a_run_of_other_data_other_settings_or_a_newer_program_is_refused(fitted, tmp_path):
    with pytest.raises(InputError, match="the dataset changed since this run started"):
        fit_model(linear_gaussian(4000), fitted.run.folder, config=fitted.config, seeds=2)
    with pytest.raises(InputError, match=r"started with another config: updates 2000, not 700"):
        fit_model(
            fitted.dataset, fitted.run.folder, config=replace(fitted.config, updates=700), seeds=2
        )
    with pytest.raises(InputError, match="other data"):
        load_model(fitted.run.folder, linear_gaussian(4000))
    with pytest.raises(InputError, match="not a run folder"):
        load_model(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="contains other files"):
        fit_model(linear_gaussian(2000), tmp_path, config=TINY)
    newer = tmp_path / "newer"
    newer.mkdir()
    description = json.loads((fitted.run.folder / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(description | {"format": 99}))
    with pytest.raises(InputError, match="of a newer gelato; upgrade"):
        load_model(newer, fitted.dataset)


def test_a_run_in_use_by_another_process_is_refused(tmp_path):
    with Run(tmp_path).lock(), pytest.raises(InputError, match="in use by another process"):
        fit_model(linear_gaussian(2000), tmp_path, config=TINY)


def changed(dataset: Dataset, **fields) -> Dataset:
    places = tuple(fields)
    data = eqx.tree_at(
        lambda t: tuple(getattr(t, name) for name in places),
        dataset.transitions,
        tuple(fields.values()),
    )
    return replace(dataset, transitions=data)


def test_data_that_cannot_be_fitted_is_refused_in_one_line(tmp_path, capsys):
    data = linear_gaussian(2000)
    constant = changed(
        data, states=np.ones((2000, 2), np.float32), next_states=np.ones((2000, 2), np.float32)
    )
    with pytest.raises(InputError, match="observations never change"):
        fit_model(constant, tmp_path / "a", config=TINY)
    with pytest.raises(InputError, match="too few for batches of 2048"):
        fit_model(data, tmp_path / "b", config=replace(TINY, batch_size=2048))
    with pytest.raises(InputError, match="latent size 65 is too large for 2 state dimensions"):
        fit_model(data, tmp_path / "c", config=replace(TINY, latent_size=65))
    longest = max(data.transitions.episode_slices, key=lambda rows: rows.stop - rows.start)
    single = replace(data, transitions=data.transitions[longest])
    with pytest.raises(InputError, match="single episode"):
        fit_model(single, tmp_path / "d", config=replace(TINY, batch_size=2))
    assert not any(tmp_path.iterdir()), "nothing was begun"


def test_a_constant_reward_and_a_singular_metric_are_said(untrained, tmp_path, capsys):
    data = changed(linear_gaussian(2000), rewards=np.full(2000, 3.0, np.float32))
    fitted = fit_model(
        data,
        tmp_path / "run",
        config=replace(TINY, updates=100, variance_updates=100, latent_size=8),
    )
    error = " ".join(capsys.readouterr().err.split())
    assert (
        "the reward is always 3" in error
        and "state size = 8 is less than the embedding size 9" in error
    )
    result = check_model(fitted)
    assert result["seeds"][0]["reward_r2"] is None and "singular" in result["warnings"][0]


def test_nan_stops_the_fit_with_the_term_and_the_update(tmp_path):
    with pytest.raises(
        InputError, match=r"term became (nan|inf) at update \d+ of the means \(seed 0\)"
    ):
        fit_model(
            linear_gaussian(2000),
            tmp_path / "run",
            config=replace(TINY, learning_rate=1e30, gradient_norm=None),
        )


def test_the_papers_preset_is_its_table():
    dataset = linear_gaussian(80)
    paper = preset("paper", replace(dataset, environment="Hopper-v5"))
    assert (paper.latent_size, paper.hidden, paper.forward_hidden) == (32, (256, 256), (256, 256))
    assert (paper.batch_size, paper.learning_rate, paper.target_rate) == (128, 1e-3, 0.01)
    assert (paper.updates, paper.variance_updates, paper.minimum_variance) == (
        100_000,
        50_000,
        0.01,
    )
    driving = preset("paper", replace(dataset, environment="gelato/Intersection-v0"))
    assert (driving.batch_size, driving.updates, driving.variance_updates) == (32, 10_000, 2_000)
    assert preset("default", replace(dataset, environment="gelato/FourRooms-v0")).latent_size == 2
    assert paper == PAPER


def test_small_states_get_few_latent_dimensions_unless_the_paper_says_so():
    dataset = linear_gaussian(80)
    size = 4 * dataset.transitions.states.shape[1]
    assert (
        preset("default", dataset).latent_size == size < preset("paper", dataset).latent_size == 32
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latent_size": 0}, "latent_size=0"),
        ({"activation": "relu"}, "'relu' is not one of"),
        ({"hidden": ()}, r"hidden=\(\)"),
        ({"hidden": (64, 0)}, "each greater than 0"),
    ],
)
def test_senseless_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        ModelConfig(**settings)


def test_a_value_out_of_all_proportion_is_said(untrained, tmp_path, capsys):
    data = linear_gaussian(2000)
    states = np.array(data.transitions.states)
    states[7, 1] = 1e30
    fit_model(changed(data, states=states), tmp_path / "odd", config=TINY)
    error = " ".join(capsys.readouterr().err.split())
    assert "column 1 of the observations has values up to 1e+30" in error
    assert "column 0" not in error


def test_fit_and_check_from_the_command_line(untrained, store, tmp_path, capsys):
    sizes = "--latent-size 2 --decoders 2 --batch-size 32 --updates 100 --variance-updates 100"
    reference = "four-rooms,transitions=600"
    main(["model", "fit", reference, "--run", str(tmp_path / "run"), *sizes.split()])
    assert "R² of the state change" in capsys.readouterr().out
    main(["model", "check", str(tmp_path / "run"), "--json", "--plot", str(tmp_path / "fans.png")])
    result = json.loads(capsys.readouterr().out)
    assert (
        result["dataset"] == "four-rooms,transitions=600,seed=0"
        and (tmp_path / "fans.png").stat().st_size > 10_000
    )
    # The same data at another place is accepted.
    description = json.loads((tmp_path / "run" / "run.json").read_text())
    description["data"]["reference"] = "file:/moved.npz"
    (tmp_path / "run" / "run.json").write_text(json.dumps(description))
    (tmp_path / "run" / "manifest.json").unlink()  # Without the manifest, files are not checked.
    with pytest.raises(SystemExit):
        main(["model", "check", str(tmp_path / "run")])
    assert (
        "/moved.npz: no such file). If the data moved, give its new location by --fitted-to"
        in capsys.readouterr().err
    )
    main(["model", "check", str(tmp_path / "run"), "--json", "--fitted-to", reference])
    assert json.loads(capsys.readouterr().out)["seeds"] == result["seeds"]
    with pytest.raises(SystemExit) as stop:
        main(["model", "check", str(tmp_path)])
    assert stop.value.code == 2 and "not a run folder" in capsys.readouterr().err
