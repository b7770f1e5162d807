"""Many pytrees as one with a further first axis, and back: each a single program, where leaf by leaf is hundreds."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


def stacked(trees: Sequence[Any]) -> Any:
    """Pytrees of one structure as one, with a new first axis on every array."""
    return _stacked(tuple(trees))


def taken(tree: Any, index: int | Int[np.ndarray, " k"]) -> Any:
    """That place, or these, of the first axis of every array."""
    return _taken(tree, jnp.asarray(index))


def copied(tree: Any) -> Any:
    """The same with a buffer of its own for every array: a block of training takes over those of the state it is given,
    and no two of them may be the same.
    """
    return jax.tree.map(lambda leaf: jnp.array(leaf) if eqx.is_array(leaf) else leaf, tree)


@eqx.filter_jit
def _stacked(trees: tuple[Any, ...]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array_like(leaves[0]) else leaves[0], *trees)


@eqx.filter_jit
def _taken(tree: Any, index: Int[Array, "*k"]) -> Any:
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, tree)
