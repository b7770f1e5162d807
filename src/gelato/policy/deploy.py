"""Convert trained networks to policies that run without JAX."""

from dataclasses import replace
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np

from gelato.agents.networks import Actor
from gelato.model.images import ImageEncoder, find_inputs
from gelato.model.latent import Scaling
from gelato.model.networks import MLP, AbstractNetwork, GaussianMLP, Linear
from gelato.policy.policy import DeployedConvolutions, DeployedPolicy, Stage

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


def make_stage(network: AbstractNetwork, outputs: int) -> Stage:
    """Turn a network into plain arrays; its first `outputs` values are used."""
    if isinstance(network, ImageEncoder):
        kept, images = find_inputs(network.reading)
        convolutions = tuple(
            DeployedConvolutions(places.ravel().astype(np.int32), _copy_layers(trunk.layers))
            for trunk, places in zip(network.trunks, images, strict=True)
        )
        head = make_stage(network.head, outputs)
        return replace(head, kept=kept.astype(np.int32), convolutions=convolutions)
    assert isinstance(network, MLP)
    shortcut = None if network.shortcut is None else np.asarray(network.shortcut.weight)
    return Stage(_copy_layers(network.layers), shortcut, network.activation, outputs)


def _copy_layers(layers: tuple[Linear, ...]) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    return tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in layers)
