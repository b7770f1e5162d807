"""The training program on several devices: every device has some variants and some seeds."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

from gelato.agents.agent import AbstractAgent
from gelato.compilation import compile_training
from gelato.devices import (
    BY_POLICY,
    BY_SEED,
    BY_VARIANT,
    EVERYWHERE,
    VARIANTS,
    make_mesh,
    place,
    run_in_parts,
)
from gelato.training.program import Measured, Population, update_policies, value_policies

# How every array of a population is divided.
_SPECS: dict[str, PartitionSpec] = {
    "dynamics": BY_SEED,
    "logged": BY_SEED,
    "starts": BY_SEED,
    "initial": BY_SEED,
    "penalties": BY_SEED,
    "weights": BY_VARIANT,
    "real_fractions": BY_VARIANT,
    "reward_range": EVERYWHERE,
    "seeds": BY_SEED,
    "limit": BY_POLICY,
}


def choose_mesh(population: Population) -> Mesh | None:
    """Return the devices for a program, or None for one device."""
    places = population.penalty_of or tuple(range(len(population.weights)))
    return make_mesh(len(population.seeds), list_parts(places))


def list_parts(places: tuple[int, ...]) -> list[int]:
    """List the numbers of parts that variants can be divided into, given their penalties' places.

    All parts must have the same penalties in the same order.
    """
    counts = []
    for count in range(1, len(places) + 1):
        size = len(places) // count
        if count * size == len(places) and places[:size] * count == places:
            counts.append(count)
    return counts


def place_population(population: Population, mesh: Mesh) -> Population:
    """Divide the inputs of the policies among the devices."""
    divided = {name: place(getattr(population, name), mesh, spec) for name, spec in _SPECS.items()}
    return replace(population, **divided)


def place_policies(states: PyTree, mesh: Mesh) -> PyTree:
    """Divide policies among the devices; nothing moves if they are divided already."""
    return place(states, mesh, BY_POLICY)


@compile_training
def train_parts(
    population: Population, states: PyTree, *, agent: AbstractAgent, updates: int, mesh: Mesh
) -> tuple[PyTree, Measured]:
    """Do what `train_block` does, on several devices."""

    def call(population: Population, states: PyTree) -> tuple[PyTree, Measured]:
        return update_policies(population, states, agent, updates)

    return _run(call, population, states, mesh)


@eqx.filter_jit
def value_parts(
    population: Population, states: PyTree, agent: AbstractAgent, mesh: Mesh
) -> Float[Array, "variants seeds"] | None:
    """Do what `value_initial_states` does, on several devices."""

    def call(population: Population, states: PyTree) -> Float[Array, "variants seeds"] | None:
        return value_policies(population, states, agent)

    return _run(call, population, states, mesh)


def _run(
    call: Callable[[Population, PyTree], PyTree], population: Population, states: PyTree, mesh: Mesh
) -> PyTree:
    places = population.penalty_of
    if places is not None:
        places = places[: len(places) // mesh.shape[VARIANTS]]

    def call_part(fields: dict[str, PyTree], states: PyTree) -> PyTree:
        return call(replace(population, penalty_of=places, **fields), states)

    fields = {name: getattr(population, name) for name in _SPECS}
    return run_in_parts(call_part, mesh, (fields, states), (_SPECS, BY_POLICY), BY_POLICY)
