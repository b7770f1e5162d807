"""Several devices in one process: the policies or models of a program are divided among them.

Every device runs the program of one device on its own part. Parts never exchange anything, so the
compiled program has no communication. A program on one device is not changed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gelato.progress import note

VARIANTS, SEEDS = "variants", "seeds"
BY_VARIANT, BY_SEED = PartitionSpec(VARIANTS), PartitionSpec(SEEDS)
BY_POLICY, EVERYWHERE = PartitionSpec(VARIANTS, SEEDS), PartitionSpec()


def make_mesh(
    seeds: int,
    parts_of_variants: Sequence[int] = (1,),
    devices: Sequence[jax.Device] | None = None,
) -> Mesh | None:
    """Arrange as many devices as divide the work evenly; None if that is only one.

    `parts_of_variants` are the numbers of parts that the variants can be divided into. Default of
    `devices`: all that are visible.
    """
    devices = jax.devices() if devices is None else devices
    best = (1, 1)
    for variant_parts in parts_of_variants:
        for seed_parts in range(1, seeds + 1):
            used = variant_parts * seed_parts
            if seeds % seed_parts == 0 and best[0] * best[1] < used <= len(devices):
                best = variant_parts, seed_parts
    used = best[0] * best[1]
    if used < len(devices):
        note(
            f"using {used} of {len(devices)} devices, because {seeds} seeds and the variants of "
            "the methods cannot be divided evenly among more"
        )
    if used == 1:
        return None
    grid = np.array(devices[:used]).reshape(best)
    return Mesh(grid, (VARIANTS, SEEDS), axis_types=(AxisType.Auto, AxisType.Auto))


def place(tree: Any, mesh: Mesh | None, spec: Any) -> Any:
    """Put every array on the devices that need it. `spec` may be a tree of specifications."""
    if mesh is None:
        return tree
    arrays, static = eqx.partition(tree, eqx.is_array)
    shardings = jax.tree.map(
        lambda each: NamedSharding(mesh, each),
        spread(spec, arrays),
        is_leaf=lambda each: isinstance(each, PartitionSpec),
    )
    return eqx.combine(jax.device_put(arrays, shardings), static)


def join_devices(tree: Any, mesh: Mesh | None) -> Any:
    """Bring the arrays of a divided tree together on the first device."""
    if mesh is None:
        return tree
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, tree
    )


def spread(spec: Any, arrays: Any) -> Any:
    """Give every array the specification of the smallest subtree of `spec` that contains it."""
    is_spec = lambda each: isinstance(each, PartitionSpec)  # noqa: E731
    return jax.tree.map(
        lambda each, part: jax.tree.map(lambda _: each, part), spec, arrays, is_leaf=is_spec
    )


def run_in_parts(
    function: Callable[..., Any],
    mesh: Mesh,
    arguments: tuple[Any, ...],
    specs: tuple[Any, ...],
    out_spec: PartitionSpec,
) -> Any:
    """Call a function on every device's part of the arguments; the result is divided in the same
    way.

    Call it inside a compiled function. Only arrays are divided; everything else is passed on.
    """
    arrays, static = eqx.partition(arguments, eqx.is_array)
    others: list[Any] = []

    def call(arrays: tuple[Any, ...]) -> Any:
        found, other = eqx.partition(function(*eqx.combine(arrays, static)), eqx.is_array)
        others.append(other)
        return found

    divided = jax.shard_map(
        call,
        mesh=mesh,
        in_specs=(spread(specs, arrays),),
        out_specs=out_spec,
        check_vma=False,
    )
    found = divided(arrays)
    return eqx.combine(found, others[-1])
