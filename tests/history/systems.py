"""A rotating point: one coordinate is observed, so its velocity is hidden."""

import jax
import numpy as np

import gelato
from gelato.agents.networks import Actor
from gelato.data.sources import add_history
from gelato.data.spaces import Continuous
from gelato.data.transitions import Standardiser
from gelato.model.latent import Scaling
from gelato.policy.deploy import deploy
from gelato.policy.policy import DeployedPolicy

ANGLE = 0.7


def record(
    episodes: int = 60, steps: int = 30, history: int = 1, seed: int = 0, **options: object
) -> gelato.Dataset:
    """Record `x′ = cos·x + sin·v`, `v′ = cos·v − sin·x + 0.3 a`; only `x` is observed."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(episodes):
        x, v = rng.normal(size=2)
        for step in range(steps):
            a = rng.uniform(-1, 1)
            after = np.cos(ANGLE) * x + np.sin(ANGLE) * v
            v = np.cos(ANGLE) * v - np.sin(ANGLE) * x + 0.3 * a
            rows.append((x, a, -(after**2), after, step == steps - 1))
            x = after
    x, a, reward, after, end = np.array(rows, np.float32).T
    data = gelato.make_dataset(
        x[:, None], a[:, None], reward, next_observations=after[:, None], timeouts=end, **options
    )
    return data if history == 1 else add_history(data, history)


def make_policy(history: int) -> DeployedPolicy:
    """Return an untrained policy for Pendulum, without an encoder."""
    units = [Standardiser(np.zeros(n, np.float32), np.ones(n, np.float32)) for n in (3, 1)]
    scaling = Scaling(*units, Continuous((-2.0,), (2.0,)), history)
    key = jax.random.key(0)
    return deploy(Actor(scaling.layout.size, scaling.action_space, (8,), key=key), None, scaling)
