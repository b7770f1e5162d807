"""Build the inputs of all policies of one program from the fitted dynamics."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gelato.agents.replay import Experience, pack
from gelato.arrays import stack, take
from gelato.data.transitions import Transitions, choose_evenly
from gelato.dynamics.fit import AbstractFitted, PenaltySettings
from gelato.dynamics.interface import AbstractDynamics
from gelato.mdp.pessimistic import make_limit
from gelato.model.fit import encode_columns, normalise_inputs
from gelato.model.latent import Scaling
from gelato.model.split import Split
from gelato.progress import note, working
from gelato.runs.folder import Run
from gelato.training.method import Method
from gelato.training.program import Population
from gelato.uncertainty.build import Penalty
from gelato.uncertainty.calibration import Calibrated, penalise_in_parts
from gelato.uncertainty.penalty import AbstractPenalty, Nothing

_STARTS = 100_000
_INITIAL = 1_000
# Logged transitions on the device, if the data is on the disk.
_MOST_LOGGED = 1_000_000
_CHUNK = 8192
# Held-out transitions that the limit of imagined episodes is measured on.
_HELD_OUT = 10_000


def build_population(
    split: Split,
    fitted: AbstractFitted | None,
    methods: Sequence[Method],
    seeds: tuple[int, ...],
    settings: PenaltySettings,
    folder: Run,
) -> Population:
    """Encode the data, build and calibrate the penalties, and stack everything by seed.

    The scales of the penalties and the limits of imagined episodes are stored in
    `calibration.json`; later calls use the stored ones.
    """
    agent = methods[0].agent
    scaling = split.scaling if fitted is None else fitted.scaling
    every = split.dataset.transitions
    # A terminal row needs no successor, because its target has no future value.
    transitions = every[np.asarray(every.has_successor | every.terminated)]
    if every.on_disk:
        transitions = _sample_logged(transitions)
    actions, _, terminated = encode_columns(transitions, scaling)
    rewards = jnp.asarray(transitions.rewards, jnp.float32)
    firsts = np.append(0, every.episode_stops[:-1])[:_INITIAL]
    chosen = np.random.default_rng(0).permutation(len(transitions))[:_STARTS]
    logged, starts, initial = [], [], []
    for dynamics in [None] * len(seeds) if fitted is None else fitted.dynamics:
        z = encode_rows(dynamics, transitions, scaling)
        after = encode_rows(dynamics, transitions, scaling, following=True)
        logged.append(pack(Experience(z, actions, rewards, after, terminated)))
        starts.append(z[chosen])
        initial.append(encode_rows(dynamics, every[firsts], scaling))
    weights = np.array([method.penalty_weight for method in methods], np.float32)
    distinct, penalty_of = list_distinct_penalties(methods)
    penalties = _build_penalties(fitted, distinct, len(seeds), settings)
    limits = None
    if fitted is not None and agent.truncation is not None:
        limits = measure_limits(fitted, split, penalties, agent.truncation)
    penalties, limits = _store_scales(folder, methods, penalties, penalty_of, limits)
    lowest, highest = rewards.min(), rewards.max()
    limit = None
    if limits is not None:
        by_variant = jnp.stack([limits[place] for place in penalty_of])
        # Only agents with a discount have a truncation.
        discount: float = agent.discount  # type: ignore[attr-defined]
        limit = make_limit(by_variant, lowest, jnp.asarray(weights)[:, None], discount)
    return Population(
        dynamics=None if fitted is None else stack(fitted.dynamics),
        logged=jnp.stack(logged),
        starts=jnp.stack(starts),
        initial=jnp.stack(initial),
        penalties=penalties,
        weights=jnp.asarray(weights),
        real_fractions=jnp.array([method.real_fraction for method in methods]),
        reward_range=jnp.stack([lowest, highest]),
        seeds=jnp.array(seeds),
        action_space=transitions.action_space,
        penalty_of=penalty_of,
        limit=limit,
    )


def _sample_logged(transitions: Transitions) -> Transitions:
    """Return logged transitions that fit on the device, of more that are on the disk."""
    if len(transitions) > _MOST_LOGGED:
        note(
            f"agents see {_MOST_LOGGED:,} of the {len(transitions):,} logged transitions, spread "
            "evenly"
        )
        return transitions[choose_evenly(transitions, _MOST_LOGGED)]
    return transitions.read(0, len(transitions))


def list_distinct_penalties(methods: Sequence[Method]) -> tuple[list[Penalty], tuple[int, ...]]:
    """List the distinct penalties, and the place of each method's penalty in the list.

    Names are compared as text and penalty objects by identity, because they may hold arrays.
    """
    distinct: list[Penalty] = []
    places = []
    for method in methods:
        same = [place for place, known in enumerate(distinct) if _is_same(known, method.penalty)]
        if not same:
            distinct.append(method.penalty)
        places.append(same[0] if same else len(distinct) - 1)
    return distinct, tuple(places)


def _is_same(one: Penalty, other: Penalty) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    return one is other


def _build_penalties(
    fitted: AbstractFitted | None,
    distinct: Sequence[Penalty],
    seeds: int,
    settings: PenaltySettings,
) -> tuple[AbstractPenalty, ...]:
    """Build every distinct penalty once, its arrays stacked by seed."""
    if fitted is None:
        return (Nothing(),) * len(distinct)
    by_seed = []
    with working("embedding the data and calibrating penalties"):
        for index in range(seeds):
            by_seed.append(fitted.build_penalties(index, distinct, settings))
    return tuple(stack(built) for built in zip(*by_seed, strict=True))


def measure_limits(
    fitted: AbstractFitted,
    split: Split,
    penalties: Sequence[AbstractPenalty],
    quantile: float,
) -> list[Float[Array, " seeds"]]:
    """Return the quantile of every penalty over held-out transitions, for every seed.

    Held-out transitions are not among the neighbours, and the model was not fitted to them.
    """
    held_out = split.held_out[choose_evenly(split.held_out, _HELD_OUT)]
    inputs = normalise_inputs(held_out, fitted.scaling)
    actions, _, _ = encode_columns(held_out, fitted.scaling)
    limits = []
    for penalty in penalties:
        of_seeds = []
        for index, dynamics in enumerate(fitted.dynamics):
            embeddings = _embed(dynamics, inputs, actions)
            U = penalise_in_parts(take(penalty, index), embeddings)
            of_seeds.append(jnp.quantile(U, quantile))
        limits.append(jnp.stack(of_seeds))
    return limits


def _store_scales(
    folder: Run,
    methods: Sequence[Method],
    penalties: tuple[AbstractPenalty, ...],
    penalty_of: tuple[int, ...],
    limits: list[Float[Array, " seeds"]] | None,
) -> tuple[tuple[AbstractPenalty, ...], list[Float[Array, " seeds"]] | None]:
    """Store the penalties' scales and limits in the run once; return the stored ones."""
    scales = {}
    for method, place in zip(methods, penalty_of, strict=True):
        penalty = penalties[place]
        if isinstance(penalty, Calibrated):
            level, unit = np.asarray(penalty.scale.level), np.asarray(penalty.scale.unit)
            scales[method.name] = {"level": level.tolist(), "unit": unit.tolist()}
            if limits is not None:
                scales[method.name]["limit"] = np.asarray(limits[place]).tolist()
    stored = folder.record("calibration", scales)
    found = list(penalties)
    for method, place in zip(methods, penalty_of, strict=True):
        penalty = penalties[place]
        if isinstance(penalty, Calibrated):
            scale = stored[method.name]
            values = [jnp.asarray(scale["level"]), jnp.asarray(scale["unit"])]
            found[place] = eqx.tree_at(lambda p: (p.scale.level, p.scale.unit), penalty, values)
            if limits is not None:
                limits[place] = jnp.asarray(scale["limit"])
    return tuple(found), limits


def encode_rows(
    dynamics: AbstractDynamics | None,
    transitions: Transitions,
    scaling: Scaling,
    *,
    following: bool = False,
) -> Float[Array, "n latent"]:
    """Encode rows, or with `following` what follows them, as inputs of the policy.

    Windows and images of all rows together could be too large, so they are made in parts.
    """
    found, size = [], transitions.part_size
    for start in range(0, len(transitions), size):
        rows = transitions[start : start + size]
        inputs = jnp.asarray(scaling.inputs(rows.next_inputs if following else rows.inputs))
        found.append(inputs if dynamics is None else _encode(dynamics, inputs))
    return found[0] if len(found) == 1 else jnp.concatenate(found)


@eqx.filter_jit
def _embed(
    dynamics: AbstractDynamics, states: Float[Array, "n input"], actions: Float[Array, "n action"]
) -> Float[Array, "n embedding"]:
    def one(row: tuple[Array, Array]) -> Float[Array, " embedding"]:
        return dynamics.embed(dynamics.encode(row[0]), row[1])

    return jax.lax.map(one, (states, actions), batch_size=min(_CHUNK, len(states)))


@eqx.filter_jit
def _encode(
    dynamics: AbstractDynamics, states: Float[Array, "n input"]
) -> Float[Array, "n latent"]:
    return jax.lax.map(dynamics.encode, states, batch_size=min(_CHUNK, len(states)))
