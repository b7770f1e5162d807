"""What is timed: pairs solved at once, in one way or several of which the fastest counts."""

from collections.abc import Callable, Sequence
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
