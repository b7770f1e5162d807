"""Compare a training with limits on four devices with one on one device. `test_devices` runs it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from gelato.data.spaces import Discrete
from gelato.mdp.pessimistic import make_limit
from gelato.training.program import init_policies, train_block
from gelato.training.sharding import choose_mesh, place_policies, place_population, train_parts
from tests.agents.conftest import DISCOUNT, Known, RightAction, Tiny, make_population
from tests.agents.test_sac import QUICK

AGENT = replace(QUICK, truncation=1.0)


def main() -> None:
    """Train two variants of two seeds. Every policy has its own limit."""
    known = Known(Tiny("both"), Discrete(2), jnp.eye(2), jnp.zeros(2))
    population = make_population(known, (0, 1), (0.5, 1.0), RightAction())
    population = replace(
        population,
        # Both variants have the same penalty, so they can be divided.
        penalties=population.penalties[:1],
        penalty_of=(0, 0),
        limit=make_limit(
            jnp.array([[0.5, 1.0], [1.0, 0.5]]),
            population.reward_range[0],
            population.weights[:, None],
            DISCOUNT,
        ),
    )
    _, alone = train_block(
        population, init_policies(population, AGENT), agent=AGENT, updates=AGENT.epoch
    )
    mesh = choose_mesh(population)
    assert mesh is not None and mesh.size == 4
    _, together = train_parts(
        place_population(population, mesh),
        place_policies(init_policies(population, AGENT), mesh),
        agent=AGENT,
        updates=AGENT.epoch,
        mesh=mesh,
    )
    assert (np.asarray(alone["unknown"]) > 0).tolist() == [[True, False], [False, True]]
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
