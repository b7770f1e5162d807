"""Estimators on systems whose policies have known values."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from experiments.known_answers import (
    END,
    STATES,
    ChainDynamics,
    ChainPolicy,
    System,
    answer,
    make_chain,
    make_linear,
    record_log,
    score_answers,
    shrink,
)
from gelato.data.transitions import Standardiser
from gelato.errors import InputError
from gelato.model.latent import Scaling
from gelato.selection.cross_model import CrossModel
from gelato.selection.evidence import Evidence, SelectSettings
from gelato.selection.fqe import FittedQ
from gelato.selection.importance import (
    ESTIMATORS,
    ImportanceWeighting,
    clone_densities,
    weigh_log,
    weigh_rows,
)
from gelato.selection.models import imagine_steps
from gelato.selection.replay import measure_bias
from gelato.selection.rollouts import (
    Judge,
    RolloutConfig,
    Rollouts,
    begin_rollouts,
    continue_rollouts,
    roll_out,
)
from gelato.selection.temporal import TemporalConfig, find_problem
from gelato.selection.value import CommonValue, OwnValue, learn_values
from gelato.uncertainty.penalty import AbstractPenalty, Nothing

SMALL = TemporalConfig((16,), 3, 400, 64, 3e-3, 0.05)


class One(AbstractPenalty):
    """`U = 1` everywhere."""

    def __call__(self, e: Array, exclude: Array | int = -1) -> Array:
        del exclude
        return jnp.ones((), e.dtype)


@pytest.fixture(scope="module")
def chain() -> System:
    return make_chain()


def make_judge(dynamics: ChainDynamics, penalty: AbstractPenalty, largest: float, log) -> Judge:
    plain = Scaling(
        Standardiser(jnp.zeros(STATES), jnp.ones(STATES)),
        Standardiser(jnp.zeros(1), jnp.ones(1)),
        log.space,
    )
    return Judge(dynamics, plain, penalty, jnp.asarray(largest))


def make_evidence(system: System, **options) -> Evidence:
    log = record_log(system, 100, key=jax.random.key(1))
    settings = SelectSettings(discount=1.0, critics=replace(SMALL, **options))
    return Evidence(log, system.policies, settings)


def test_estimates_of_the_chain_are_close_and_their_intervals_cover_the_truth(
    chain: System,
) -> None:
    small = shrink(chain, 600)
    scores = score_answers(small, answer(small, 2, 100, pairs=3, rollouts=64))
    for score in scores:
        assert score["relative_error"] < 0.5, score
        assert score["coverage"] >= 0.7, score


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_chain, make_linear])
def test_intervals_cover_the_truth_over_many_logs(make) -> None:
    system = make()
    for score in score_answers(system, answer(system, 12, 100)):
        if score["estimator"] in ("fqe", "cross-model", "doubly robust"):
            assert score["coverage"] >= 0.85, score


def test_rollouts_in_the_true_model_have_the_true_mean(chain: System) -> None:
    log = record_log(chain, 100, key=jax.random.key(0))
    judge = make_judge(chain.truth, Nothing(), 0.0, log)
    starts = jnp.tile(log.initial_states[:1], (2_000, 1))
    carry = begin_rollouts(judge, starts, len(chain.values))
    config = RolloutConfig(40, 0.0)
    after = continue_rollouts(judge, chain.policies, carry, config, 40, key=jax.random.key(2))
    returns = np.asarray(after.sums[..., 0])
    np.testing.assert_allclose(returns.mean(axis=1), chain.values, atol=0.15)


def test_models_that_share_a_program_give_the_returns_of_models_alone(chain: System) -> None:
    """The third model's penalty has another structure, so it cannot be stacked with the others."""
    log = record_log(chain, 10, key=jax.random.key(0))
    richer = ChainDynamics(chain.truth.moves, chain.truth.rewards + 1, chain.truth.end)
    judges = [
        make_judge(chain.truth, One(), 0.5, log),
        make_judge(richer, One(), 2.0, log),
        make_judge(richer, Nothing(), 0.0, log),
    ]
    starts, config = log.initial_states[:4], RolloutConfig(12, -2.0)
    key, own = jax.random.key(2), np.zeros((3, len(chain.values)), bool)
    together = roll_out(judges, chain.policies, starts, own, config, key=key)
    for place, judge in enumerate(judges):
        alone = roll_out([judge], chain.policies, starts, own[:1], config, key=key)
        np.testing.assert_allclose(together.returns[place], alone.returns[0], rtol=1e-5)
        np.testing.assert_allclose(together.outside[place], alone.outside[0])
    assert (together.returns[0] == -24).all() and (together.returns[1] > 0).all()


def test_a_return_ends_pessimistically_outside_of_the_data(chain: System) -> None:
    log = record_log(chain, 10, key=jax.random.key(0))
    judge = make_judge(chain.truth, One(), 0.5, log)
    carry = begin_rollouts(judge, log.initial_states[:4], len(chain.values))
    config = RolloutConfig(10, -2.0)
    after = continue_rollouts(judge, chain.policies, carry, config, 10, key=jax.random.key(2))
    pessimistic, believed, _, steps, outside = np.moveaxis(np.asarray(after.sums), -1, 0)
    assert (pessimistic == -20).all() and (believed >= 0).all()
    np.testing.assert_array_equal(steps, outside)


def test_two_heads_learn_the_sums_of_reward_and_penalty(chain: System) -> None:
    """With a reward and a penalty of 1 both sums are the expected number of steps."""
    log = record_log(chain, 50, key=jax.random.key(0))
    constant = ChainDynamics(chain.truth.moves, jnp.ones((STATES, 2)), jnp.asarray(END))
    judges = [make_judge(constant, One(), 1.0, log)]
    homes = [0] * len(chain.values)
    imagined = imagine_steps(judges, chain.policies, homes, log, 2_000, key=jax.random.key(0))
    settings = SelectSettings(discount=1.0, critics=replace(SMALL, updates=1_000, members=2))
    weights = np.arange(5.0)
    evidence = Evidence(log, chain.policies, settings, None, imagined, weights)
    values = learn_values(evidence)
    np.testing.assert_allclose(values.rewards.mean(axis=1), 1 / END, rtol=0.1)
    np.testing.assert_allclose(values.penalties.mean(axis=1), 1 / END, rtol=0.1)
    common = CommonValue(2.0, values).estimate(evidence)
    np.testing.assert_allclose([each.estimate for each in common], -1 / END, rtol=0.2)
    own = [each.estimate for each in OwnValue(values).estimate(evidence)]
    np.testing.assert_allclose(own, (1 - weights) / END, atol=1.0)


def test_critics_that_diverge_are_reported(chain: System) -> None:
    evidence = make_evidence(chain, learning_rate=50.0, updates=100)
    estimates = FittedQ().estimate(evidence)
    assert any(each.problem is not None and "diverged" in each.problem for each in estimates)
    assert not all(each.usable for each in estimates)
    low, high = np.zeros(1), np.ones(1)
    still, moving = np.full((2, 1, 1), 0.5), np.array([[[0.5]], [[0.9]]])
    assert find_problem([still, still], low, high) == [None, None]
    assert "did not settle" in str(find_problem([still, moving], low, high)[1])
    assert "not finite" in str(find_problem([still * np.nan], low, high)[0])


def test_too_few_effective_episodes_make_importance_weighting_unusable(chain: System) -> None:
    evidence = make_evidence(chain)
    far = replace(evidence, policies=ChainPolicy(jnp.array([0.999])))
    weighted = weigh_log(far)
    for name in ESTIMATORS:
        (estimate,) = ImportanceWeighting(name, weighted).estimate(far)
        assert estimate.estimator == name and "effective episodes" in str(estimate.problem)
    with pytest.raises(InputError, match="no estimator 'other'"):
        ImportanceWeighting("other")


def test_the_cloned_behaviour_policy_has_the_densities_of_the_recorded_one(chain: System) -> None:
    log = record_log(chain, 100, key=jax.random.key(3))
    rows = int(log.count)
    found = np.asarray(clone_densities(log, key=jax.random.key(0)))[:rows]
    np.testing.assert_allclose(np.exp(found).mean(), 0.5, atol=0.05)
    ratios = weigh_rows(chain.policies, log, log.log_densities)
    np.testing.assert_allclose(np.asarray(ratios)[2, :rows], 0, atol=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_an_error_that_all_models_share_widens_the_interval(chain: System, shift: float) -> None:
    """Models whose rewards are all too large agree; the log shows that they are wrong."""
    log = record_log(chain, 100, key=jax.random.key(0))
    wrong = ChainDynamics(chain.truth.moves, chain.truth.rewards + shift, chain.truth.end)
    judges = [make_judge(wrong, Nothing(), 0.0, log)] * 3
    bias = measure_bias(judges, log, key=jax.random.key(1))
    everyone = np.ones(3, bool)
    assert bias.find_unexplained(everyone) == pytest.approx(shift, abs=0.1)
    steps = np.full((3, 5, 4), 10.0)
    returns = np.broadcast_to(chain.values[:, None] + 10 * shift, steps.shape)
    rollouts = Rollouts(returns, returns, 0 * steps, steps, 0 * steps, np.zeros((3, 5), bool))
    evidence = Evidence(log, chain.policies, SelectSettings(), rollouts, bias=bias)
    for estimate, value in zip(CrossModel().estimate(evidence), chain.values, strict=True):
        assert estimate.low is not None and estimate.high is not None
        assert estimate.high - estimate.low == pytest.approx(2 * estimate.details["widened"])
        assert estimate.low - 1.5 <= value <= estimate.high
