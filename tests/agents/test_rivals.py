"""The rivals: IQL, ReBRAC and MOBILE on systems with known answers."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gelato
from gelato.agents import IQL, MOBILE, SAC, AbstractAgent, Critic, Experience, ReBRAC, View, pack
from gelato.agents.networks import Actor
from gelato.agents.rebrac import _gather
from gelato.agents.sac import estimate_value
from gelato.data.spaces import Continuous, Discrete
from gelato.data.transitions import Standardiser
from gelato.dynamics import EnsembleFit, LatentFit
from gelato.dynamics.state import Member, StateDynamics
from gelato.errors import InputError
from gelato.model.latent import Scaling
from gelato.model.networks import MLP
from gelato.training import choose_parts, init_policies, make_method, train_block
from tests.agents.conftest import DISCOUNT, Known, log_random_actions

SIZES = {"hidden": (32, 32), "batch_size": 64, "epoch": 1500, "discount": DISCOUNT}
AGENTS = {
    # Advantages are below 1 here. With a small weight the policy is near the mean logged action.
    "iql": IQL(rate=3e-3, expectile=0.9, advantage_weight=10.0, **SIZES),
    "rebrac": ReBRAC(rate=3e-3, actor_weight=0.01, critic_weight=0.01, **SIZES),
}


def learn(known: Known, agent: AbstractAgent) -> eqx.Module:
    """Train on a log of random actions and return the state of the first policy."""
    population = log_random_actions(known, (0,))
    states, _ = train_block(
        population, init_policies(population, agent), agent=agent, updates=agent.epoch
    )
    return jax.tree.map(lambda x: x[0, 0] if eqx.is_array(x) else x, states)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_model_free_rivals_solve_the_tiny_mdps(name: str, known: Known) -> None:
    agent = AGENTS[name]
    if name == "rebrac" and isinstance(known.space, Discrete):
        pytest.skip("ReBRAC needs continuous actions")
    state = learn(known, agent)
    for z, best in zip(known.starts, known.values, strict=True):
        total, discount, ended = 0.0, 1.0, False
        while not ended:
            e = known.dynamics.embed(z, agent.actor(state).mode(z))
            outcome = known.dynamics.imagine(e, key=jax.random.key(0))
            total += discount * float(outcome.reward)
            z, discount, ended = outcome.latent, discount * DISCOUNT, bool(outcome.terminated)
        np.testing.assert_allclose(total, best, atol=0.25)


def test_the_next_action_is_known_only_within_an_episode() -> None:
    """Rows 0 and 1 are one episode, row 2 ends at once, row 3 is the last of the log."""
    latents = jnp.array([[0.0], [1.0], [5.0], [7.0]])
    after = jnp.array([[1.0], [2.0], [7.0], [8.0]])
    ends = jnp.array([0.0, 0.0, 1.0, 0.0])
    actions = jnp.array([[0.1], [0.2], [0.3], [0.4]])
    rows = Experience(latents, actions, jnp.zeros(4), after, ends)
    view = make_view(pack(rows), Continuous((-1.0,), (1.0,)))
    batch = _gather(view, jnp.arange(4))
    np.testing.assert_array_equal(batch.next_known, [True, False, False, False])
    np.testing.assert_allclose(batch.next_actions[0], actions[1])


def test_rebrac_refuses_discrete_actions() -> None:
    with pytest.raises(InputError, match="rebrac needs continuous actions"):
        ReBRAC().check(Discrete(3))
    ReBRAC().check(Continuous((-1.0,), (1.0,)))


def make_view(rows: jax.Array, space: Continuous, weight: float = 1.0, real: float = 0.5) -> View:
    starts = rows[:, : (rows.shape[1] - space.size - 2) // 2]
    return View(
        None, rows, starts, jnp.array(weight), jnp.array(real), jnp.array([-1.0, 1.0]), space
    )


def make_ensemble(size: int, members: int, *, equal: bool) -> StateDynamics:
    """An untrained ensemble of small networks; `equal` gives all members the same weights."""
    keys = jax.random.split(jax.random.key(0), members)
    if equal:
        keys = jnp.stack([keys[0]] * members)
    bounds = jnp.full(size + 1, -20.0), jnp.full(size + 1, -18.0)

    def make(key: jax.Array) -> Member:
        return Member(MLP(size + 1, 2 * (size + 1) + 1, (8,), "silu", key=key), *bounds)

    wide = jnp.full(size, 100.0)
    unit = Standardiser(np.zeros(size, np.float32), np.ones(size, np.float32))
    rewards = Standardiser(np.zeros(1, np.float32), np.ones(1, np.float32))
    scaling = Scaling(unit, rewards, Continuous((-1.0,), (1.0,)))
    return StateDynamics(eqx.filter_vmap(make)(keys), scaling, -wide, wide, members, None)


def make_networks(size: int) -> tuple[Actor, Critic]:
    space = Continuous((-1.0,), (1.0,))
    make = eqx.filter_vmap(lambda key: Critic(size, 1, (16,), normalised=False, key=key))
    critics = make(jax.random.split(jax.random.key(2), 2))
    return Actor(size, space, (16,), key=jax.random.key(1)), critics


def make_batch(size: int, count: int = 12) -> Experience:
    z = jax.random.normal(jax.random.key(3), (count, size))
    actions = jax.random.uniform(jax.random.key(4), (count, 1), minval=-1.0)
    return Experience(z, actions, jnp.ones(count), z, jnp.zeros(count))


def test_members_that_agree_have_no_inconsistency() -> None:
    """The values of nearly certain next states differ only by the samples of actions."""
    actor, critics = make_networks(3)
    agent = MOBILE(samples=200)
    batch = make_batch(3)
    measure = eqx.filter_jit(agent.measure_inconsistency)
    same = measure(make_ensemble(3, 4, equal=True), actor, critics, batch, key=jax.random.key(0))
    other = measure(make_ensemble(3, 4, equal=False), actor, critics, batch, key=jax.random.key(0))
    assert float(same.mean()) < 0.2 * float(other.mean())


def test_inconsistency_is_the_deviation_of_the_members_mean_values() -> None:
    """A plain loop over members and many samples is the oracle."""
    size, members = 2, 3
    dynamics = make_ensemble(size, members, equal=False)
    actor, critics = make_networks(size)
    batch = make_batch(size, 4)
    agent = MOBILE(samples=2_000)
    found = eqx.filter_jit(agent.measure_inconsistency)(
        dynamics, actor, critics, batch, key=jax.random.key(5)
    )
    for row in range(4):
        pair = dynamics.embed(batch.latents[row], batch.actions[row])
        outcomes, _ = dynamics.predict(pair)
        means = []
        for member in range(members):
            z = jnp.broadcast_to(pair[:size] + outcomes.mean[member, :-1], (2_000, size))
            keys = jax.random.split(jax.random.key(6 + member), 2_000)
            actions = jax.vmap(lambda z, key: actor.sample(z, key=key)[0])(z, keys)
            means.append(float(jnp.mean(estimate_value(critics, z, actions))))
        np.testing.assert_allclose(found[row], np.std(means, ddof=1), rtol=0.1, atol=2e-3)


def test_only_imagined_rows_are_penalised() -> None:
    size = 2
    agent = MOBILE(hidden=(16,), batch_size=8, replay=16)
    space = Continuous((-1.0,), (1.0,))
    rows = pack(make_batch(size))
    view = make_view(rows, space, weight=2.0)
    view = eqx.tree_at(
        lambda v: v.dynamics, view, make_ensemble(size, 3, equal=False), is_leaf=lambda x: x is None
    )
    state = agent.init(view, key=jax.random.key(0))
    batch = make_batch(size, 8)
    from_log = agent.choose_real_rows(view)
    draws = agent._draw(view, state.replay, key=jax.random.key(1))
    prepared = agent.prepare_batch(view, state, batch, from_log, draws)
    assert int(from_log.sum()) == 4
    np.testing.assert_array_equal(prepared.rewards[:4], batch.rewards[:4])
    assert (prepared.rewards[4:] < batch.rewards[4:]).all()


def test_mobile_needs_an_ensemble() -> None:
    with pytest.raises(InputError, match="MOBILE compares the networks of an ensemble"):
        gelato.Method("mobile", MOBILE(), LatentFit(), "none", 1.0, 0.05)
    assert gelato.Method("mobile", MOBILE(), EnsembleFit(), "none", 1.0, 0.05).penalises


def test_targets_without_entropy_do_not_depend_on_the_temperature() -> None:
    """With a high temperature, soft targets move the critics and hard ones do not."""
    space = Continuous((-1.0,), (1.0,))
    rows = pack(make_batch(2))
    view = make_view(rows, space, real=1.0)

    def lose(agent: SAC, temperature: float) -> float:
        state = agent.init(view, key=jax.random.key(0))
        state = eqx.tree_at(lambda s: s.networks.log_temperature, state, jnp.array(temperature))
        draws = agent._draw(view, state.replay, key=jax.random.key(1))
        _, metrics = eqx.filter_jit(agent.update)(view, state, draws)
        return float(metrics[0])

    soft = SAC(hidden=(16,), batch_size=8, replay=4, discount=0.9)
    hard = replace(soft, soft_targets=False)
    assert lose(hard, 0.0) == pytest.approx(lose(hard, 1.0))
    assert lose(soft, 0.0) != pytest.approx(lose(soft, 1.0), rel=1e-3)


@pytest.mark.usefixtures("shared_store")
def test_the_named_methods_use_the_sizes_of_the_preset() -> None:
    dataset = gelato.load("four-rooms-hole,transitions=600")
    for preset in ("small", "default"):
        parts = choose_parts(dataset, preset)
        for name in ("iql", "rebrac", "mobile"):
            assert make_method(name, parts).agent.updates == parts.sac.updates
    few = choose_parts(dataset).change_updates(50)
    for agent in (few.sac, few.cloning, few.iql, few.rebrac, few.mobile):
        assert (agent.updates, agent.epoch) == (50, 50)


def test_many_critics_give_two_random_ones_to_the_target_and_their_mean_to_the_actor() -> None:
    agent = SAC(critics=5, hidden=(16,), batch_size=8, replay=4)
    view = make_view(pack(make_batch(2)), Continuous((-1.0,), (1.0,)), real=1.0)
    state = agent.init(view, key=jax.random.key(0))
    drawn = set()
    for number in range(30):
        two = agent._choose_target_critics(state.target_critics, key=jax.random.key(number))
        first, second = np.asarray(two.layers[0].weight)
        assert not np.array_equal(first, second)
        drawn |= {first.tobytes(), second.tobytes()}
    assert len(drawn) == 5
    z = view.starts[0]
    action = agent.actor(state).mode(z)
    each = eqx.filter_vmap(lambda critic: critic(z, action))(state.networks.critics)
    np.testing.assert_allclose(agent.value(state, z), np.mean(each), rtol=1e-5)
