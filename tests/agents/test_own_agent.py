"""An agent from outside the library: it learns, under `vmap`, resumes, and appears in tables."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gelato
from examples.own_agent import IQL
from gelato.cli import main
from gelato.data.spaces import Discrete
from gelato.runs import loop
from gelato.training import Population, group, init_policies, train_block
from tests.agents.conftest import DISCOUNT, Known, Tiny, log_random_actions

AGENT = IQL(hidden=(32, 32), rate=3e-3, discount=DISCOUNT, expectile=0.9, batch_size=64, epoch=1500)


def train(population: Population, updates: int) -> eqx.Module:
    states = init_policies(population, AGENT)
    return train_block(population, states, agent=AGENT, updates=updates)[0]


def test_it_solves_the_tiny_mdps_with_every_seed(known: Known) -> None:
    states = train(log_random_actions(known, (0, 3)), AGENT.epoch)
    for seed in range(2):
        state = jax.tree.map(lambda x, seed=seed: x[0, seed] if eqx.is_array(x) else x, states)
        for z, best in zip(known.starts, known.values, strict=True):
            e = known.dynamics.embed(z, AGENT.actor(state).mode(z))
            first = known.dynamics.imagine(e, key=jax.random.key(0))
            reached = first.reward
            if not first.terminated:
                e = known.dynamics.embed(first.latent, AGENT.actor(state).mode(first.latent))
                later = known.dynamics.imagine(e, key=jax.random.key(0))
                reached = reached + DISCOUNT * later.reward
            np.testing.assert_allclose(reached, best, atol=0.25)
            np.testing.assert_allclose(AGENT.value(state, z), best, atol=0.4)


def test_a_seed_is_the_same_beside_others_and_alone() -> None:
    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    known = Known(Tiny("both"), Discrete(2), starts, jnp.ones(2))
    beside = train(log_random_actions(known, (0, 3)), 5)
    alone = train(log_random_actions(known, (3,)), 5)
    for together, apart in zip(jax.tree.leaves(beside), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together[0, 1], apart[0, 0], rtol=1e-4, atol=1e-6)


def test_it_resumes_bit_for_bit_and_appears_in_the_table(
    shared_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    dataset = gelato.load("four-rooms-hole,transitions=600")
    method = gelato.Method("iql", IQL(hidden=(8,), batch_size=8, updates=6, epoch=2))
    options = {
        "seeds": 2,
        "settings": gelato.TrainSettings(evaluations=2, episodes=2),
        "workers": 1,
    }
    whole = gelato.train(dataset, tmp_path / "whole", method, **options)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    original, calls = group.train_block, []

    def interrupt(*arguments, **settings):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    monkeypatch.setattr(group, "train_block", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gelato.train(dataset, tmp_path / "killed", method, **options)
    monkeypatch.setattr(group, "train_block", original)
    assert gelato.train(dataset, tmp_path / "killed", method, **options) == whole
    first, second = (
        np.load(tmp_path / name / "policies" / "iql" / "last.npz") for name in ("whole", "killed")
    )
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name])
    main(["table", str(tmp_path / "whole")])
    assert "| iql |" in capsys.readouterr().out
