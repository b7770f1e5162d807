"""From a run to a verdict: ranking, reasons, files, refusals, and no environment."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from gelato.agents.sac import SAC
from gelato.cli import main
from gelato.data.columns import make_dataset
from gelato.data.reference import load
from gelato.data.transitions import Dataset
from gelato.dynamics.latent import LatentFit
from gelato.errors import InputError
from gelato.model.split import split_dataset
from gelato.policy import evaluate
from gelato.runs.folder import Run
from gelato.selection import SelectSettings, TemporalConfig, find_selected, select
from gelato.selection.budget import Trial, choose_arm, choose_trial
from gelato.selection.cross_model import CrossModel
from gelato.selection.estimate import Estimate, bound_next, read_estimate
from gelato.selection.evidence import Evidence
from gelato.selection.log import make_log
from gelato.selection.models import split_in_halves
from gelato.selection.policies import stack_policies
from gelato.selection.rollouts import Rollouts
from gelato.selection.run import OTHER_STAGES, Candidate, RunEstimates
from gelato.selection.select import (
    Behaviour,
    decide,
    judge,
    measure_agreement,
    measure_behaviour,
    pool_candidates,
    rank_candidates,
)
from gelato.selection.value import (
    HeadValues,
    PathPenalty,
    change_weight,
    measure_common_weight,
    value_under,
)
from gelato.training.policies import trained_policies
from gelato.training.presets import (
    TrainSettings,
    choose_parts,
    clone_like,
    make_method,
    vary_method,
)
from gelato.training.train import train

SETTINGS = SelectSettings(
    episodes=2,
    model_updates=3,
    half_seeds=1,
    points=50,
    critics=TemporalConfig((8,), 2, 20, 8),
    imagined=60,
    all_estimators=True,
)
BEHAVIOUR = Behaviour(10.0, 8.0, 12.0, 5)


@pytest.fixture(scope="module")
def log_path(tmp_path_factory) -> Path:
    """Four episodes of Pendulum with random actions; the file names no environment."""
    environment, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    rows: dict[str, list] = {"observations": [], "actions": [], "rewards": [], "truncations": []}
    for episode in range(4):
        observation, _ = environment.reset(seed=episode)
        for step in range(40):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            after, reward, _, _, _ = environment.step(action)
            values = (observation, action, reward, step == 39)
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
            observation = after
    path = tmp_path_factory.mktemp("log") / "log.npz"
    np.savez(path, **{name: np.array(column) for name, column in rows.items()})
    return path


@pytest.fixture(scope="module")
def finished(log_path: Path, tmp_path_factory) -> Path:
    """A run of a tiny grid and behaviour cloning."""
    dataset = load(f"file:{log_path},low=-2,high=2")
    parts = choose_parts(dataset, "small")
    model = replace(
        parts.latent.model,
        decoders=2,
        hidden=(8,),
        forward_hidden=(8,),
        batch_size=16,
        updates=4,
        variance_updates=2,
    )
    agent = SAC(hidden=(8,), batch_size=8, updates=4, epoch=2, branches=4, horizon=2, replay=16)
    parts = replace(parts, latent=LatentFit(model), sac=agent, cloning=clone_like(agent))
    methods = [*vary_method(make_method("gelato", parts), (0.3, 3.0)), make_method("bc", parts)]
    run = tmp_path_factory.mktemp("runs") / "run"
    settings = TrainSettings(neighbours=3, points=50, evaluations=0)
    train(dataset, run, methods, seeds=2, settings=settings)
    return run


def refuse(*given: object, **options: object) -> None:
    pytest.fail(f"must not be called: {given} {options}")


@pytest.fixture(scope="module")
def selected(finished: Path) -> Path:
    """The run after `select`, in a place where any use of an environment fails."""
    results = finished / "results.json"
    before = results.read_text()
    # Estimators could not use true returns even if there were any.
    results.write_text(before.replace('"return": null', '"return": "unreadable"'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gymnasium, "make", refuse)
        patch.setattr(evaluate, "run_episode", refuse)
        select(finished, settings=SETTINGS)
    results.write_text(before)
    return finished


@pytest.mark.slow
def test_select_needs_no_environment_and_no_return(selected: Path) -> None:
    stored = json.loads((selected / "selection.json").read_text())
    # Policies that were best in an environment do not exist, so none can be chosen.
    assert not list(selected.rglob("best.npz"))
    assert len(stored["policies"]) == 6 and stored["real_episodes"] == 0
    verdicts = ("better than the data", "do not deploy", "not shown to be better")
    assert stored["verdict"] in verdicts and stored["reasons"]
    names = [each["estimator"] for each in stored["policies"][0]["estimates"]]
    assert names == [
        "cross-model",
        "fqe",
        "U along the path",
        "value, common λ",
        "value, own λ",
        "importance",
        "importance (self-normalised)",
        "doubly robust",
    ]
    assert find_selected(selected) == stored["chosen"]
    assert [each["rank"] for each in stored["policies"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_by_default_only_estimators_that_decide_or_check_are_computed(selected: Path) -> None:
    """And the stages of the others cost nothing."""
    found = select(selected, settings=replace(SETTINGS, all_estimators=False))
    everything = select(selected, settings=SETTINGS)
    names = [estimate.estimator for estimate in found.chosen.estimates]
    assert names == ["cross-model", "fqe", "U along the path"]
    assert set(everything.seconds) - set(found.seconds) == set(OTHER_STAGES)
    assert found.seconds["rollouts"] > 0 and found.describe()["seconds"]["rollouts"] >= 0
    assert [each.seed for each, _ in found.ranking] == [each.seed for each, _ in everything.ranking]


@pytest.mark.slow
def test_estimates_are_stored_and_read_again(selected: Path, monkeypatch) -> None:
    from gelato.selection import run as selection_run

    monkeypatch.setattr(selection_run, "_estimate", refuse)
    first = json.loads((selected / "selection.json").read_text())
    again = select(selected, settings=SETTINGS).describe()
    assert again["policies"] == first["policies"]


@pytest.mark.slow
def test_export_and_trained_policies_use_the_selected_policy(
    selected: Path, tmp_path: Path, capsys
) -> None:
    chosen = find_selected(selected)
    assert chosen is not None
    main(["export", str(selected), "--onnx", str(tmp_path / "policy.onnx")])
    answer = capsys.readouterr()
    assert chosen["method"] in answer.out and "selected policy" in answer.err
    assert len(trained_policies(selected, method="gelato")) == 4


def write_description(run: Path, description: dict[str, object]) -> None:
    """Change run.json through the run, so that its manifest knows the new content."""
    Run(run).write_json("run", description)


@pytest.mark.slow
def test_a_run_on_other_data_is_refused(selected: Path, tmp_path: Path) -> None:
    other = shutil.copytree(selected, tmp_path / "other")
    described = json.loads((other / "run.json").read_text())
    described["fingerprint"] = "0"
    write_description(other, described)
    with pytest.raises(InputError, match="other data"):
        select([selected, other])
    with pytest.raises(InputError, match="at least one run"):
        select([])
    assert Run(selected).description["fingerprint"] != "0"


def test_verdicts_follow_the_intervals() -> None:
    def verdict(low: float, high: float, outside: float = 0.0) -> str:
        return judge(Estimate("x", (low + high) / 2, low, high), BEHAVIOUR, outside)[0]

    assert verdict(12.1, 20.0) == "better than the data"
    assert verdict(11.9, 20.0) == "not shown to be better"
    assert verdict(1.0, 7.9) == "do not deploy"
    assert verdict(12.1, 20.0, outside=0.6) == "do not deploy"
    broken = judge(Estimate("x", 50.0, 40.0, 60.0, problem="diverged"), BEHAVIOUR, None)
    assert broken[0] == "not shown to be better" and "diverged" in broken[1]


def make_candidate(
    name: str, cross: float, fqe: float, problems: tuple[str | None, str | None] = (None, None)
) -> Candidate:
    estimates = (
        Estimate("cross-model", cross, cross - 1, cross + 1, problems[0]),
        Estimate("fqe", fqe, fqe - 1, fqe + 1, problems[1]),
    )
    return Candidate(Path("run"), name, 0, 1.0, 0.05, estimates)


def name_ranking(candidates: list[Candidate]) -> list[str]:
    return [each.method for each, _ in rank_candidates(candidates)]


def test_returns_in_other_models_rank_the_policies_whatever_fqe_says() -> None:
    candidates = [make_candidate("fair", 2.0, 9.0), make_candidate("good", 3.0, 1.0)]
    assert name_ranking(candidates) == ["good", "fair"]
    # A policy that fails in one model comes later, although its median is the largest.
    fragile = Estimate("cross-model", 4.0, details={"lower_quantile": 0.5})
    candidates.append(replace(candidates[0], method="fragile", estimates=(fragile,)))
    assert name_ranking(candidates) == ["good", "fair", "fragile"]


def test_a_diverged_estimate_is_never_used() -> None:
    lost = make_candidate("lost", 1e9, 1.0, ("diverged", None))
    candidates = [lost, make_candidate("fair", 2.0, 1.0), make_candidate("good", 3.0, 2.0)]
    assert name_ranking(candidates) == ["good", "fair", "lost"]
    selection = decide(rank_candidates(candidates), BEHAVIOUR, "data", 1.0)
    assert "cross-model: excluded for 1 of 3 (diverged)" in selection.reasons
    assert selection.describe()["policies"][-1]["score"] is None
    assert read_estimate(lost.estimates[0].describe()) == lost.estimates[0]


def test_fqe_ranks_the_policies_if_models_cannot() -> None:
    problems = "needs two models, has one", None
    candidates = [
        make_candidate(name, float("nan"), fqe, problems)
        for name, fqe in (("bad", 1.0), ("good", 3.0))
    ]
    assert name_ranking(candidates) == ["good", "bad"]
    selection = decide(rank_candidates(candidates), BEHAVIOUR, "data", 1.0)
    assert selection.verdict == "not shown to be better"
    assert "needs two models" in selection.reasons[0]
    assert selection.reasons[1].startswith("fqe ranks the policies")


def test_agreement_is_that_of_cross_model_and_fqe() -> None:
    def agree(values: list[float]) -> float | None:
        candidates = []
        for place, value in enumerate(values):
            candidates.append(make_candidate(str(place), float(place), value))
        return measure_agreement(candidates)

    assert agree([1.0, 5.0, 9.0]) == pytest.approx(1.0)
    assert agree([9.0, 5.0, 1.0]) == pytest.approx(-1.0)
    assert agree([1.0, 2.0]) is None and agree([1.0, 1.0, 1.0]) is None


def make_rollouts(returns: np.ndarray, penalties: np.ndarray, own: np.ndarray) -> Rollouts:
    steps = np.full(returns.shape, 10.0)
    return Rollouts(returns, returns, penalties, steps, np.zeros(returns.shape), own)


def test_the_common_weight_is_disagreement_per_unit_of_penalty() -> None:
    returns = np.array([[[10.0, 10.0]], [[16.0, 16.0]]])
    rollouts = make_rollouts(returns, np.full(returns.shape, 2.0), np.zeros((2, 1), bool))
    assert measure_common_weight(rollouts) == pytest.approx(3.0)


@pytest.mark.slow
def test_a_policy_is_not_judged_by_its_own_model(log_path: Path, finished: Path) -> None:
    log = make_log(load(f"file:{log_path},low=-2,high=2").transitions)
    policies = stack_policies([trained_policies(finished)[0].policy])
    returns = np.array([[[900.0, 900.0]], [[1.0, 1.0]], [[3.0, 3.0]]])
    own = np.array([[True], [False], [False]])
    rollouts = make_rollouts(returns, np.ones(returns.shape), own)
    evidence = Evidence(log, policies, SETTINGS, rollouts)
    (estimate,) = CrossModel().estimate(evidence)
    assert estimate.estimate == 2.0 and estimate.details["models"] == 2
    assert PathPenalty().estimate(evidence)[0].estimate == pytest.approx(-0.1)
    alone = replace(evidence, rollouts=make_rollouts(returns[:2], returns[:2], own[:2]))
    assert "needs two models" in str(CrossModel().estimate(alone)[0].problem)


def test_halves_are_disjoint_and_complete(log_path: Path) -> None:
    split = split_dataset(load(f"file:{log_path},low=-2,high=2"))
    first, second = split_in_halves(split)
    assert len(first.train) + len(second.train) == len(split.train)
    rows = {tuple(row) for row in np.asarray(first.train.states)}
    assert not rows & {tuple(row) for row in np.asarray(second.train.states)}


def test_halves_of_almost_equal_length_become_equal() -> None:
    """Then the second half needs no second compilation."""
    ends, lengths = np.zeros(4_030, bool), [1_000, 1_010, 1_005, 1_015]
    ends[np.cumsum(lengths) - 1] = True
    rows = np.random.default_rng(0).normal(size=(4_030, 2))
    dataset = make_dataset(rows, np.zeros(4_030, int), np.arange(4_030.0), timeouts=ends)
    split = replace(split_dataset(dataset), train=dataset.transitions)
    first, second = split_in_halves(split)
    assert len(first.train) == len(second.train) >= 2_000


def test_one_episode_and_impossible_probabilities_are_refused() -> None:
    states, actions = np.random.default_rng(0).normal(size=(20, 2)), np.zeros(20, int)
    alone = make_dataset(states, actions, np.arange(20.0))
    with pytest.raises(InputError, match="has one episode"):
        measure_behaviour(Dataset("mine", None, alone.transitions))
    for wrong in (1.5, 0.0, -0.1):
        with pytest.raises(InputError, match=r"action_probabilities holds .* in row 3"):
            probabilities = np.full(20, 0.5)
            probabilities[3] = wrong
            make_dataset(states, actions, np.arange(20.0), action_probabilities=probabilities)
    kept = make_dataset(states, actions, np.arange(20.0), action_probabilities=np.full(20, 0.5))
    assert make_log(kept.transitions).log_densities is not None


def test_a_grid_on_one_episode_is_refused_before_it_is_trained(tmp_path: Path, capsys) -> None:
    path, run = tmp_path / "log.npz", tmp_path / "run"
    rows = np.random.default_rng(0).normal(size=(30, 2))
    ends = np.arange(30) == 29
    np.savez(path, observations=rows, actions=rows[:, :1], rewards=rows[:, 0], truncations=ends)
    with pytest.raises(SystemExit) as stopped:
        main(["train", f"file:{path},low=-4,high=4", "--run", str(run)])
    assert stopped.value.code == 2 and not run.exists()
    assert "has one episode" in capsys.readouterr().err


def test_real_episodes_go_to_the_best_arm() -> None:
    candidate = make_candidate("x", 1.0, 1.0)
    arms = [Trial(candidate, [1.0, 1.1]), Trial(candidate, [5.0, 5.1]), Trial(candidate)]
    assert choose_arm(arms) == 2
    arms[2].returns += [1.0, 1.1]
    assert choose_arm(arms) == 1
    low, high = arms[1].estimate.low, arms[1].estimate.high
    assert low is not None and high is not None and low < 5.05 < high


@pytest.mark.slow
def test_a_budget_is_spent_in_the_real_environment(selected: Path) -> None:
    found = select(selected, settings=SETTINGS, budget=6, environment="Pendulum-v1")
    assert sum(len(trial.returns) for trial in found.trials) == 6
    assert found.estimate.estimator == "real episodes"
    described = found.describe()["trials"]
    assert sum(trial["details"]["episodes"] for trial in described) == 6
    with pytest.raises(InputError, match="no effect without a budget"):
        select(selected, settings=SETTINGS, environment="Pendulum-v1")


def make_values(policies: int = 2) -> HeadValues:
    rng = np.random.default_rng(0)
    rewards, penalties = rng.normal(size=(policies, 4)), rng.uniform(1, 2, (policies, 4))
    return HeadValues(rewards, penalties, [None] * policies)


def test_a_value_under_another_weight_equals_the_one_made_with_that_weight() -> None:
    values = make_values()
    first = value_under(values, np.array([1.0, 1.0]), "value, common λ")
    wanted = value_under(values, np.array([5.0, 5.0]), "value, common λ")
    for made, other in zip(first, wanted, strict=True):
        found = change_weight(made, 5.0)
        assert found.estimate == pytest.approx(other.estimate)
        assert (found.low, found.high) == pytest.approx((other.low, other.high))
    members = values.rewards[-1] - 5.0 * values.penalties[-1]
    low, high = bound_next(members, float(members.mean()))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_policies_of_several_runs_are_compared_under_one_weight() -> None:
    """Each run measured its own common weight; under it alone the order would be another."""
    runs = []
    for name, weight in (("first", 1.0), ("second", 9.0)):
        (value,) = value_under(make_values(1), np.array([weight]), "value, common λ")
        candidate = Candidate(Path(name), name, 0, 1.0, 0.05, (value,))
        runs.append(RunEstimates((candidate,), "print", "data", weight, 2, {}))
    candidates, weight = pool_candidates(runs)
    assert weight == 5.0
    first, second = (candidate.estimates[0] for candidate in candidates)
    assert first == second and first.details["penalty_weight"] == 5.0


def test_a_value_that_is_not_finite_is_read_as_such() -> None:
    values = replace(make_values(1), rewards=np.full((1, 4), np.inf), problems=["diverged"])
    with np.errstate(invalid="ignore"):
        (made,) = value_under(values, np.ones(1), "value, common λ")
    found = change_weight(read_estimate(made.describe()), 2.0)
    assert not found.usable and found.problem == "diverged"


def test_the_chosen_policy_has_most_real_episodes_not_the_luckiest() -> None:
    candidate = make_candidate("x", 1.0, 1.0)
    lucky, good = Trial(candidate, [9.0]), Trial(candidate, [5.0, 5.1, 5.2])
    assert choose_trial([lucky, good]) is good


@pytest.mark.slow
def test_a_missing_environment_and_other_data_are_refused_before_any_estimate(
    finished: Path, log_path: Path, monkeypatch
) -> None:
    module = importlib.import_module("gelato.selection.select")
    monkeypatch.setattr(module, "estimate_run", refuse)
    with pytest.raises(InputError, match="environment is unknown"):
        select(finished, budget=3)
    dataset = load(f"file:{log_path},low=-2,high=2")
    with pytest.raises(InputError, match="was trained on other data"):
        select(finished, data=replace(dataset, transitions=dataset.transitions[:40]))
