"""One contestant of the benchmark: a solver and the pairs on which it is timed."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

Pairs = tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"]]


class Contestant(NamedTuple):
    """A solver and its pairs.

    `variants` are calls that solve all pairs; the fastest call counts. `lengths` returns the
    lengths that the solver finds for the checked pairs; calling it also compiles the solver.
    """

    name: str
    pairs: int
    variants: Sequence[Callable[[], Any]]
    lengths: Callable[[], Float[np.ndarray, " checked"]]


def measure_fastest(call: Callable[[], Any], seconds: float) -> float:
    """Repeat a call for some seconds, at least once, and return the shortest time."""
    best, begin = np.inf, perf_counter()
    while best == np.inf or perf_counter() - begin < seconds:
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best
