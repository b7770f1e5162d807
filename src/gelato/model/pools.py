"""Fit to rows on the disk: pools of shuffled blocks of rows that follow each other on the device.

A pool is a `FitData` of constant size: many blocks of consecutive training rows, from everywhere in
the data. Updates draw their batches from one pool, with the program of data in memory, until a row
was drawn once on average. Meanwhile a thread reads the next pool.

The blocks follow each other in random order, and each is used once before any is used again. The
order depends only on the phase and the number of the pool, so a resumed fit continues exactly, and
a model does not depend on the seeds that are fitted with it.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from gelato.data.transitions import Transitions, choose_evenly
from gelato.model.config import ModelConfig
from gelato.model.fit import (
    FitData,
    draw_bootstrap_counts,
    join_rows,
    normalise_inputs,
    prepare_data,
    prepare_held_out,
)
from gelato.model.latent import Scaling

POOL_ROWS, BLOCK_ROWS = 2**19, 1024
# A pool of wide rows has fewer of them.
_POOL_BYTES = 2**28


class Pools:
    """The pools of a fit. Close it when the fit ends."""

    def __init__(
        self,
        train: Transitions,
        held_out: Transitions,
        scaling: Scaling,
        config: ModelConfig,
        seeds: Sequence[int],
        *,
        pool_rows: int,
        block_rows: int,
    ):
        self.train, self._scaling, self._seeds = train, scaling, tuple(seeds)
        self._members, self._block_rows = config.decoders, block_rows
        self._updates_per_pool = max(1, pool_rows // config.batch_size)
        self._held_out = prepare_held_out(held_out, scaling, config)
        self._blocks = -(-len(train) // block_rows)
        self._per_pool = max(1, min(pool_rows // block_rows, self._blocks))
        self._reader = ThreadPoolExecutor(1, "read rows")
        self._coming: dict[tuple[int, int], Future[FitData]] = {}
        self._current: tuple[tuple[int, int], FitData] | None = None

    def __enter__(self) -> "Pools":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)

    def choose_pool(self, phase: int, step: int, length: int, total: int) -> FitData:
        """Return the pool for the `length` updates of a phase from `step` on, and begin to read
        the next one if the phase needs it until its `total`.
        """
        blocks_per_pool = max(1, self._updates_per_pool // length)
        number = step // length // blocks_per_pool
        more = (number + 1) * blocks_per_pool * length < total
        return self._take(phase, number, more=more)

    def _take(self, phase: int, number: int, *, more: bool) -> FitData:
        key = phase, number
        if self._current is None or self._current[0] != key:
            # A pool that is no longer used makes room for the next one.
            self._current = None
            coming = self._coming.pop(key, None) or self._reader.submit(self._read, *key)
            self._current = key, coming.result()
            self._coming.clear()
        after = phase, number + 1
        if more and after not in self._coming:
            self._coming[after] = self._reader.submit(self._read, *after)
        return self._current[1]

    def choose_inputs(self, count: int) -> Float[Array, "k input"]:
        """Read the encoder's inputs at and after at most `count` training rows, spread evenly."""
        rows = choose_evenly(self.train, count)
        chosen = self.train[rows]
        after = self._scaling.states(np.asarray(chosen.next_states))
        return jnp.concatenate([normalise_inputs(chosen, self._scaling), jnp.asarray(after)])

    def list_blocks(self, phase: int, number: int) -> Int[np.ndarray, " blocks"]:
        """Return the numbers of the blocks of a pool."""
        first = number * self._per_pool
        found: list[int] = []
        while len(found) < self._per_pool:
            epoch, place = divmod(first + len(found), self._blocks)
            order = np.random.default_rng([phase, epoch]).permutation(self._blocks)
            found += order[place : place + self._per_pool - len(found)].tolist()
        return np.array(found)

    def _read(self, phase: int, number: int) -> FitData:
        blocks = self.list_blocks(phase, number)
        rows = self._block_rows
        # The last block begins earlier, so that all have the same size.
        starts = np.minimum(blocks * rows, max(len(self.train) - rows, 0)).tolist()
        parts = [self.train.read(start, start + rows) for start in starts]
        joined = jax.tree.map(lambda *columns: np.concatenate(columns), *parts)
        counts = [self._draw_counts(seed, blocks) for seed in self._seeds]
        return FitData(
            rows=join_rows(joined, self._scaling),
            counts=jnp.asarray(np.stack(counts)),
            held_out=self._held_out,
            state_size=joined.states.shape[1],
            action_size=joined.action_space.size,
        )

    def _draw_counts(
        self, seed: int, blocks: Int[np.ndarray, " blocks"]
    ) -> UInt8[np.ndarray, "rows members"]:
        """Draw how often each decoder uses each row; the counts of a block are always the same."""
        found = []
        for block in blocks.tolist():
            found.append(draw_bootstrap_counts(self._block_rows, self._members, seed, block))
        return np.concatenate(found)


def prepare_rows(
    train: Transitions,
    held_out: Transitions,
    scaling: Scaling,
    config: ModelConfig,
    seeds: Sequence[int],
) -> FitData | Pools:
    """Put the rows on the device; many rows on the disk are read in pools instead."""
    row_bytes = 4 * (2 * train.states.shape[1] + train.action_space.size + 2)
    pool_rows = min(POOL_ROWS, max(BLOCK_ROWS, _POOL_BYTES // row_bytes))
    if not train.on_disk:
        return prepare_data(train, held_out, scaling, config, seeds)
    if len(train) <= pool_rows:
        train = train.read(0, len(train))
        return prepare_data(train, held_out, scaling, config, seeds)
    sizes = {"pool_rows": pool_rows, "block_rows": BLOCK_ROWS}
    return Pools(train, held_out, scaling, config, seeds, **sizes)
