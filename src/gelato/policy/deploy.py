"""Convert trained networks to policies that run without JAX."""

from typing import TypeVar

import equinox as eqx
import jax
import numpy as np

from gelato.agents.networks import Actor
from gelato.model.latent import Scaling
from gelato.model.networks import MLP, GaussianMLP
from gelato.policy.policy import DeployedPolicy, Stage

Tree = TypeVar("Tree")


def deploy(actor: Actor, encoder: GaussianMLP | None, scaling: Scaling) -> DeployedPolicy:
    """Return the deterministic policy. If it acts on latent states, it includes the encoder."""
    stages = [make_stage(actor.network, actor.space.size)]
    if encoder is not None:
        latent_size = actor.network.layers[0].weight.shape[-1]
        stages.insert(0, make_stage(encoder.network, latent_size))
    mean, scale = np.asarray(scaling.states.mean), np.asarray(scaling.states.scale)
    return DeployedPolicy(mean, scale, tuple(stages), actor.space, scaling.history)


def deploy_all(
    actors: Actor, encoders: GaussianMLP | None, scaling: Scaling, variants: int, seeds: int
) -> list[DeployedPolicy]:
    """Deploy actors `[variants, seeds]` with encoders `[seeds]`, variant by variant."""
    actors, encoders = jax.tree.map(
        lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, (actors, encoders)
    )

    def at(tree: Tree, *place: int) -> Tree:
        return jax.tree.map(
            lambda leaf: leaf[place] if isinstance(leaf, np.ndarray) else leaf, tree
        )

    return [
        deploy(at(actors, variant, seed), None if encoders is None else at(encoders, seed), scaling)
        for variant in range(variants)
        for seed in range(seeds)
    ]


def make_stage(network: MLP, outputs: int) -> Stage:
    """Turn a network into plain arrays; its first `outputs` values are used."""
    layers = tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers)
    shortcut = None if network.shortcut is None else np.asarray(network.shortcut.weight)
    return Stage(layers, shortcut, network.activation, outputs)
