"""A rotating point: one coordinate is observed, so its velocity is hidden."""

import numpy as np

import gelato
from gelato.data.sources import add_history

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
