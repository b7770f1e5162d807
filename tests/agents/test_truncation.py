"""Imagined episodes that end where the penalty is above its limit, on systems with known values."""

import json
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gelato
from gelato.agents import MOBILE, SAC
from gelato.agents.agent import AbstractAgent
from gelato.agents.ppo import PPO
from gelato.agents.replay import ReplayBuffer, unpack
from gelato.data.spaces import Discrete
from gelato.dynamics import EnsembleFit, LatentFit
from gelato.dynamics.fit import PenaltySettings
from gelato.dynamics.latent import FittedLatent
from gelato.errors import InputError
from gelato.mdp.pessimistic import (
    ImaginedMDP,
    Limit,
    PessimisticMDP,
    State,
    Step,
    end_unknown_rollouts,
    make_limit,
    rollout,
    start_episodes,
)
from gelato.runs.folder import Run
from gelato.training.program import Population, init_policies, train_block
from gelato.uncertainty.embedded import embed
from gelato.uncertainty.penalty import AbstractPenalty, penalise
from tests.agents import test_ppo, test_sac
from tests.agents.conftest import (
    DISCOUNT,
    Known,
    One,
    RightAction,
    SecondState,
    Tiny,
    make_population,
)
from tests.golden.test_golden import CONTINUOUS, choose_tiny

pytestmark = pytest.mark.slow

STARTS = jnp.array([[0.0, 1.0], [0.0, -1.0]])
# The smallest logged reward of these populations is −1, and γ is 0.9.
WORST = -10.0
AGENTS: dict[str, AbstractAgent] = {
    "sac": replace(test_sac.AGENT, truncation=1.0),
    "ppo": replace(test_ppo.AGENT, truncation=1.0),
}


def limit_population(
    kind: str, penalty: AbstractPenalty, weight: float = 0.0, limit: float = 0.5
) -> Population:
    known = Known(Tiny(kind), Discrete(2), STARTS, jnp.zeros(2))
    population = make_population(known, weights=(weight,), penalty=penalty)
    found = make_limit(
        jnp.full((1, 1), limit), population.reward_range[0], jnp.array([[weight]]), DISCOUNT
    )
    return eqx.tree_at(lambda p: p.limit, population, found, is_leaf=lambda x: x is None)


def train(population: Population, agent: AbstractAgent) -> tuple[object, dict[str, jax.Array]]:
    states = init_policies(population, agent)
    updates = 4 * agent.updates_per_rollout
    times = 3
    if isinstance(agent, PPO):
        updates, times = 200 * agent.updates_per_rollout, 1
    for _ in range(times):
        states, metrics = train_block(population, states, agent=agent, updates=updates)
    return jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, states), metrics


def test_the_value_beyond_the_limit_is_the_worst_of_the_known_region() -> None:
    half, two = jnp.array(0.5), jnp.array(2.0)
    # Rewards of at least −1 and a penalty of at most 2 · 0.5 in every step.
    assert make_limit(half, jnp.array(-1.0), two, 0.9).value == pytest.approx(-20.0)
    # With positive rewards the worst is an episode of one step.
    assert make_limit(half, jnp.array(3.0), two, 0.9).value == pytest.approx(2.0)
    assert make_limit(half, jnp.array(3.0), jnp.array(0.0), 0.9).value == pytest.approx(3.0)


@pytest.mark.parametrize("name", AGENTS)
def test_an_action_beyond_the_limit_is_not_taken_whatever_the_model_promises(name: str) -> None:
    """The right action gives 1 in the model, and the other 0. The limit decides."""
    agent = AGENTS[name]
    state, metrics = train(limit_population("action", RightAction()), agent)
    for z in STARTS:
        assert int(jnp.argmax(agent.actor(state).mode(z))) == 0
        np.testing.assert_allclose(agent.value(state, z), 0.0, atol=0.4)
    assert 0 <= float(metrics["unknown"].squeeze()) < 0.2
    free, metrics = train(limit_population("action", RightAction(), limit=1.0), agent)
    for z in STARTS:
        assert int(jnp.argmax(agent.actor(free).mode(z))) == 1, "U = 1 is not above 1"
    assert float(metrics["unknown"].squeeze()) == 0


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_is_bootstrapped_through_the_unknown(name: str) -> None:
    """One step gives 1; the place behind it is unknown, so a start is worth 1 − 0.9 · 10 = −8.

    With a bootstrap, the model's endless reward would make it 10.
    """
    agent = AGENTS[name]
    state, _ = train(limit_population("endless", SecondState()), agent)
    for z in STARTS:
        np.testing.assert_allclose(agent.value(state, z), 1 + DISCOUNT * WORST, rtol=0.06)


def test_lambda_and_the_limit_work_together() -> None:
    """Known steps cost λU, and the worst value contains λ times the limit."""
    agent = replace(test_sac.QUICK, truncation=1.0)
    population = limit_population("both", One(), weight=0.25, limit=1.0)
    states, _ = train_block(
        population, init_policies(population, agent), agent=agent, updates=agent.epoch
    )
    rows = unpack(states.replay.rows[0, 0, :8], 2)
    assert set(np.unique(rows.rewards)) <= {-0.25, 0.75}
    beyond = limit_population("both", One(), weight=0.25, limit=0.5)
    states, metrics = train_block(
        beyond, init_policies(beyond, agent), agent=agent, updates=agent.epoch
    )
    rows = unpack(states.replay.rows[0, 0, :4], 2)
    np.testing.assert_allclose(rows.rewards, (-1 - 0.25 * 0.5) / (1 - DISCOUNT), rtol=1e-6)
    assert (rows.terminated == 1).all() and float(metrics["unknown"].squeeze()) == 1


def test_the_value_beyond_a_large_limit_is_not_clipped() -> None:
    """Without a limit the bound assumes a penalty of at most 3."""
    agent = replace(test_sac.QUICK, truncation=1.0, discount=DISCOUNT)

    def lowest(population: Population) -> float:
        bounds = population.map(lambda view, _: agent.compute_value_bounds(view))
        return float(bounds[0].squeeze())

    plain = limit_population("both", One(), weight=2.0, limit=0.5)
    assert lowest(replace(plain, limit=None)) == lowest(plain) == pytest.approx(-70.0)
    far = limit_population("both", One(), weight=2.0, limit=5.0)
    assert far.limit is not None
    assert lowest(far) == float(far.limit.value.squeeze()) == pytest.approx(-110.0)


def walk(kind: str, steps: int, horizon: int) -> Step:
    mdp = ImaginedMDP(Tiny(kind), STARTS, horizon)
    states = start_episodes(mdp, 5, key=jax.random.key(0))

    def act(z: jax.Array, *, key: jax.Array) -> tuple[jax.Array, None]:
        del z
        return jax.nn.one_hot(jax.random.randint(key, (), 0, 2), 2), None

    return rollout(mdp, states, act, steps, key=jax.random.key(1))[0]


def test_steps_after_one_beyond_the_limit_are_not_valid_until_the_next_start() -> None:
    """Against a plain loop over episodes."""
    steps = walk("endless", steps=12, horizon=4)
    U = jax.random.uniform(jax.random.key(2), steps.reward.shape)
    limit = Limit(jnp.array(0.7), jnp.array(-3.0))
    found = end_unknown_rollouts(steps, U, limit)
    assert found.valid is not None
    for episode in range(5):
        lost = False
        for step in range(12):
            place = (step, episode)
            unknown = bool(U[place] > 0.7)
            assert bool(found.valid[place]) is not lost
            assert bool(found.terminated[place]) is unknown
            assert float(found.reward[place]) == (-3.0 if unknown else 1.0)
            assert not (found.terminated[place] & found.truncated[place])
            lost = (lost or unknown) and not bool(steps.ended[place])
    assert 0 < int(found.valid.sum()) < found.valid.size


def test_only_valid_rows_enter_the_replay_buffer() -> None:
    rng = np.random.default_rng(0)
    ring, kept = ReplayBuffer.create(7, 1), []
    for _ in range(6):
        rows, valid = rng.normal(size=(10, 1)).astype(np.float32), rng.random(10) < 0.5
        ring = ring.write(jnp.asarray(rows), jnp.asarray(valid))
        kept += rows[valid, 0].tolist()
    assert sorted(ring.rows[:, 0].tolist()) == sorted(kept[-7:])
    assert int(ring.written) == len(kept)


def test_rows_that_are_all_valid_are_written_as_ever() -> None:
    rows = jnp.arange(10.0)[:, None]
    for capacity in (4, 10, 16):
        ring = ReplayBuffer.create(capacity, 1).write(rows[:3])
        masked = ring.write(rows, jnp.ones(10, bool))
        plain = ring.write(rows)
        np.testing.assert_array_equal(masked.rows, plain.rows)
        assert int(masked.written) == int(plain.written)


def test_ppo_restarts_the_episodes_that_were_lost() -> None:
    # The horizon is 4, so the last step is the second one of an episode.
    agent = replace(test_ppo.QUICK, truncation=1.0, steps=6)
    population = limit_population("endless", SecondState())
    states = init_policies(population, agent)
    updates = agent.updates_per_rollout
    states, _ = train_block(population, states, agent=agent, updates=updates)
    assert (np.asarray(states.episodes.latent)[..., 0] == 0).all(), "second states are lost"
    free = limit_population("endless", SecondState(), limit=1.0)
    states, _ = train_block(free, init_policies(free, agent), agent=agent, updates=updates)
    assert (np.asarray(states.episodes.latent)[..., 0] == 1).all()


def test_the_pessimistic_mdp_ends_an_episode_at_the_limit() -> None:
    imagined = ImaginedMDP(Tiny("endless"), STARTS, 3)
    limit = Limit(jnp.array(0.5), jnp.array(WORST))
    mdp = PessimisticMDP(imagined, SecondState(), jnp.array(2.0), limit)
    action = jnp.array([1.0, 0.0])
    first = mdp.step(State(STARTS[0], jnp.array(0)), action, key=jax.random.key(0))
    assert (float(first.reward), bool(first.terminated)) == (1.0, False)
    second = mdp.step(State(first.next_latent, jnp.array(2)), action, key=jax.random.key(0))
    assert (float(second.reward), float(second.extra)) == (WORST, 1.0)
    assert bool(second.terminated) and not bool(second.truncated)


@pytest.mark.parametrize("agent", [SAC, PPO])
@pytest.mark.parametrize("quantile", [0.0, 1.5, -1.0])
def test_a_truncation_is_a_quantile(agent: type[SAC | PPO], quantile: float) -> None:
    with pytest.raises(InputError, match=f"truncation is {quantile}"):
        agent(truncation=quantile)


def test_a_truncation_without_a_penalty_is_refused() -> None:
    cases = (SAC(truncation=1.0), LatentFit()), (MOBILE(truncation=1.0), EnsembleFit())
    for agent, fit in cases:
        with pytest.raises(InputError, match="Give a penalty, or truncation=none"):
            gelato.Method("none", agent, fit, "none", 0.0, 0.05)
    assert gelato.Method("some", SAC(truncation=1.0), LatentFit(), "geodesic", 0.0, 0.05).penalises


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training with a limit, two forward networks and normalised layers."""
    dataset = gelato.load(CONTINUOUS)
    parts = choose_tiny(dataset, ppo=False)
    model = replace(parts.latent.model, forwards=2, forward_norm=True)
    method = replace(
        gelato.make_method("gelato", parts),
        agent=replace(parts.sac, truncation=0.9),
        fit=LatentFit(model),
        penalty="euclidean",
    )
    run = tmp_path_factory.mktemp("runs") / "run"
    gelato.train(dataset, run, method, settings=replace(parts.settings, evaluations=0))
    return run


def test_a_training_ends_episodes_above_the_quantile_over_held_out_data(limited: Path) -> None:
    (method,) = json.loads((limited / "run.json").read_text())["methods"]
    assert method["agent"]["truncation"] == 0.9 and "temperature" not in method["agent"]
    assert method["fit"]["model"]["forwards"] == 2
    folder = limited / "policies" / "gelato"
    (limit,) = json.loads((folder / "calibration.json").read_text())["gelato"]["limit"]
    fitted = gelato.load_model(limited)
    latent = FittedLatent(fitted)
    (penalty,) = latent.build_penalties(0, ["euclidean"], PenaltySettings(5, 500))
    held_out = embed(fitted.seed(0), fitted.scaling, fitted.parts[1])
    U = np.asarray(penalise(penalty, held_out.embeddings))
    assert np.mean(limit < U) == pytest.approx(0.1, abs=0.02)
    shares = [float(row["unknown"]) for row in Run(folder).metrics]
    assert all(0 <= share <= 1 for share in shares) and max(shares) > 0


def test_the_environment_ends_an_episode_at_the_same_limit(limited: Path) -> None:
    env = gelato.pessimistic_env(
        limited, penalty="euclidean", penalty_weight=2.0, horizon=50, truncation=0.5, points=500
    )
    assert env.mdp.limit is not None
    largest, value = float(env.mdp.limit.penalty), float(env.mdp.limit.value)
    lowest = float(gelato.load(CONTINUOUS).transitions.rewards.min())
    worst = lowest - 2.0 * largest
    assert value <= min(worst, worst / 0.01) + 1e-3 and largest > 0
    env.reset(seed=0)
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        _, reward, terminated, truncated, info = env.step(rng.uniform(-1, 1, 3))
        if info["penalty"] > largest:
            assert terminated and reward == pytest.approx(value)
        seen.add(info["penalty"] > largest)
        if terminated or truncated:
            env.reset()
    assert seen == {True, False}
    with pytest.raises(InputError, match="truncation is 2"):
        gelato.pessimistic_env(limited, truncation=2.0)


def test_a_fixed_temperature_stays_where_it_is() -> None:
    population = make_population(Known(Tiny("both"), Discrete(2), STARTS, jnp.ones(2)))
    fixed = replace(test_sac.QUICK, temperature=0.2)
    states, metrics = train_block(
        population, init_policies(population, fixed), agent=fixed, updates=fixed.epoch
    )
    np.testing.assert_allclose(metrics["temperature"], 0.2, rtol=1e-5)
    np.testing.assert_allclose(jnp.exp(states.networks.log_temperature), 0.2, rtol=1e-6)
    tuned = train_block(
        population,
        init_policies(population, test_sac.QUICK),
        agent=test_sac.QUICK,
        updates=fixed.epoch,
    )[0]
    assert float(tuned.networks.log_temperature.squeeze()) != 0.0
    with pytest.raises(InputError, match="temperature"):
        SAC(temperature=0.0)
