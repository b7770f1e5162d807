"""Five tiny MDPs with known values. Every agent must solve them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

from gelato.agents import Experience, pack
from gelato.arrays import stack
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.dynamics.interface import AbstractDynamics, Imagined
from gelato.training.program import Population
from gelato.uncertainty.penalty import AbstractPenalty, Nothing

DISCOUNT = 0.9


KINDS = ("constant", "sign", "delayed", "action", "both", "endless")


class Tiny(AbstractDynamics):
    """States are `(position, sign)`. The kind decides what is rewarded:

    `constant`: 1, then the end. `sign`: what the state shows. `delayed`: 1 after a second step.
    `action`: 1 for the right action. `both`: 1 for the action that the state shows. `endless`: 1
    forever. The kind is a number, so that one program serves them all.
    """

    kind: Array

    def __init__(self, kind: str) -> None:
        self.kind = jnp.array(KINDS.index(kind))

    def encode(self, state: Array) -> Array:
        return state

    def embed(self, latent: Array, action: Array) -> Array:
        return jnp.concatenate([latent, action])

    def imagine(self, embedding: Array, *, key: Any) -> Imagined:
        del key
        position, sign, chosen = embedding[0], embedding[1], embedding[-1]
        right = (chosen > 0.5).astype(jnp.float32) if embedding.shape[0] > 3 else (chosen + 1) / 2
        second, shown, one = position > 0.5, (sign > 0).astype(jnp.float32), jnp.ones(())
        rewards = jnp.stack(
            [one, sign, second.astype(jnp.float32), right, 1 - jnp.abs(right - shown), one]
        )
        last = jnp.array([True, True, False, True, True, False])[self.kind]
        last = last | ((self.kind == KINDS.index("delayed")) & second)
        return Imagined(jnp.stack([one, sign]), rewards[self.kind], last)


class Known(eqx.Module):
    """A tiny MDP, its starts, and the value of the best policy in each."""

    dynamics: Tiny
    space: ActionSpace = eqx.field(static=True)
    starts: Array
    values: Array


@pytest.fixture(params=KINDS[:5])
def kind(request: Any) -> str:
    return request.param


@pytest.fixture(params=["discrete", "continuous"])
def known(request: Any, kind: str) -> Known:
    """Each of the five, with two actions or a box of them."""
    space: ActionSpace = Discrete(2) if request.param == "discrete" else Continuous((-1.0,), (1.0,))
    starts = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    values = {
        "constant": [1, 1],
        "sign": [1, -1],
        "delayed": [DISCOUNT] * 2,
        "action": [1, 1],
        "both": [1, 1],
    }[kind]
    return Known(Tiny(kind), space, starts, jnp.array(values, jnp.float32))


class RightAction(AbstractPenalty):
    """`U = 1` for the right action, 0 for the other."""

    def __call__(self, e: Array, exclude: Array | int = -1) -> Array:
        del exclude
        return (e[-1] > 0.5).astype(e.dtype)


class SecondState(AbstractPenalty):
    """`U = 1` for every action in a second state, 0 in a first one."""

    def __call__(self, e: Array, exclude: Array | int = -1) -> Array:
        del exclude
        return (e[0] > 0.5).astype(e.dtype)


class One(AbstractPenalty):
    """`U = 1` everywhere."""

    def __call__(self, e: Array, exclude: Array | int = -1) -> Array:
        del exclude
        return jnp.ones((), e.dtype)


def make_population(
    known: Known,
    seeds: tuple[int, ...] = (0,),
    weights: tuple[float, ...] = (0.0,),
    penalty: AbstractPenalty | None = None,
) -> Population:
    starts = jnp.stack([known.starts] * len(seeds))
    columns = 2 * 2 + known.space.size + 2
    variants = len(weights)
    return Population(
        dynamics=stack([known.dynamics] * len(seeds)),
        logged=jnp.zeros((len(seeds), 1, columns)),
        starts=starts,
        initial=starts,
        penalties=(penalty or Nothing(),) * variants,
        weights=jnp.array(weights),
        real_fractions=jnp.zeros(variants),
        # With γ = 0.9 values lie between −10 and 10.
        reward_range=jnp.array([-1.0, 1.0]),
        seeds=jnp.array(seeds),
        action_space=known.space,
    )


def log_random_actions(known: Known, seeds: tuple[int, ...]) -> Population:
    """A log of random actions in a tiny MDP, without a model."""
    keys = jax.random.split(jax.random.key(0), 2)
    z = jnp.tile(known.starts, (128, 1))
    second = z.at[:, 0].set(1.0)
    z = jnp.concatenate([z, second])
    if known.space.size == 2:
        actions = jax.nn.one_hot(jax.random.randint(keys[0], (len(z),), 0, 2), 2)
    else:
        actions = jax.random.uniform(keys[0], (len(z), 1), minval=-1.0)
    e = jax.vmap(known.dynamics.embed)(z, actions)
    after = jax.vmap(lambda e: known.dynamics.imagine(e, key=keys[1]))(e)
    rows = Experience(z, actions, after.reward, after.latent, after.terminated.astype(float))
    count = len(seeds)
    return Population(
        dynamics=None,
        logged=jnp.stack([pack(rows)] * count),
        starts=jnp.stack([known.starts] * count),
        initial=jnp.stack([known.starts] * count),
        penalties=(Nothing(),),
        weights=jnp.zeros(1),
        real_fractions=jnp.ones(1),
        reward_range=jnp.array([-1.0, 1.0]),
        seeds=jnp.array(seeds),
        action_space=known.space,
    )
