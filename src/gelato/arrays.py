"""Stack pytrees, take rows of them, and map over rows in chunks of bounded memory.

`stack` and `take` each run as one compiled program, not as one operation per leaf.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from gelato.progress import progress

Tree = TypeVar("Tree")
# Fewer chunks than this are done before a progress bar would help.
BAR_CHUNKS = 8


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack pytrees of equal structure; every array gets a new first axis."""
    return _stack(tuple(trees))


def take(tree: Tree, index: int | Int[np.ndarray, " k"]) -> Tree:
    """Take one or several entries of the first axis of every array."""
    # `jnp.asarray` would compile a program for every shape.
    return _take(tree, jax.device_put(np.asarray(index, np.int32)))


def copy_arrays(tree: Tree) -> Tree:
    """Copy every array into a separate buffer.

    A training block donates the buffers of its input state, so two arrays must not share a buffer.
    Weakly typed arrays become strongly typed, like arrays loaded from a file.
    """

    return jax.tree.map(
        lambda leaf: jnp.array(leaf, leaf.dtype) if eqx.is_array(leaf) else leaf, tree
    )


def map_in_chunks(
    function: Callable[..., Tree],
    arrays: Sequence[Array | np.ndarray | None],
    chunk_size: int,
    description: str | None = None,
) -> Tree:
    """Call a batched function on chunks of rows and join its results on the host.

    The device holds one chunk at a time. All chunks have the same shape, so that `function` is
    compiled once: the last chunk repeats its last row, and the result drops the repetitions. Arrays
    have the row as first axis and at least one row; None is passed on. With a description, many
    chunks show a progress bar.
    """
    rows = next(len(array) for array in arrays if array is not None)
    chunk_size = max(1, min(chunk_size, rows))
    begins = range(0, rows, chunk_size)
    show_bar = description is not None and len(begins) >= BAR_CHUNKS
    results = []
    with progress(description or "", len(begins)) if show_bar else nullcontext() as advance:
        for begin in begins:
            index = np.minimum(np.arange(begin, begin + chunk_size), rows - 1)
            chunk = [None if array is None else array[index] for array in arrays]
            results.append(jax.tree.map(np.asarray, function(*chunk)))
            if advance is not None:
                advance(1)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:rows], *results)


@eqx.filter_jit
def _stack(trees: tuple[Tree, ...]) -> Tree:
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array_like(leaves[0]) else leaves[0], *trees
    )


@eqx.filter_jit
def _take(tree: Tree, index: Int[Array, "*k"]) -> Tree:
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, tree)
