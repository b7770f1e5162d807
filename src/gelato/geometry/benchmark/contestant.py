"""What is timed: pairs solved at once, in one way or several of which the fastest counts."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

Pairs = tuple[Float[Array, "pairs dim"], Float[Array, "pairs dim"]]


class Contestant(NamedTuple):
    """A solver on its pairs: ways to solve them, and the lengths it finds, by which it is warm as well."""

    name: str
    pairs: int
    ways: Sequence[Callable[[], Any]]
    lengths: Callable[[], Float[np.ndarray, " checked"]]


def fastest(call: Callable[[], Any], seconds: float) -> float:
    """The shortest of the times that a call takes, repeated for some seconds and at least once."""
    best, begin = np.inf, perf_counter()
    while best == np.inf or perf_counter() - begin < seconds:
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best
