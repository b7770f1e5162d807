"""Geodesics in the latent space of a PyTorch decoder.

    pip install torch
    python examples/torch_decoder.py

The weights of a `torch.nn.Sequential` become one JAX function, so that geodesics are compiled and
differentiated by JAX. Nothing is copied between the libraries while a geodesic is found.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Float

from gelato.geometry import Pullback, geodesics

ACTIVATIONS: dict[type, Callable[[Array], Array]] = {
    torch.nn.ELU: jax.nn.elu,
    torch.nn.GELU: lambda x: jax.nn.gelu(x, approximate=False),
    torch.nn.Sigmoid: jax.nn.sigmoid,
    torch.nn.SiLU: jax.nn.silu,
    torch.nn.Softplus: jax.nn.softplus,
    torch.nn.Tanh: jnp.tanh,
}


def convert(network: torch.nn.Sequential) -> Callable[[Float[Array, " dim"]], Float[Array, " out"]]:
    """Convert linear layers and smooth activations to a JAX function of one point.

    ReLU is refused: its metric is piecewise constant, so that it has no curvature to follow.
    """
    layers: list[tuple[Array, Array] | Callable[[Array], Array]] = []
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            weight = jnp.asarray(layer.weight.detach().numpy())
            bias = jnp.zeros(len(weight))
            if layer.bias is not None:
                bias = jnp.asarray(layer.bias.detach().numpy())
            layers.append((weight, bias))
        elif type(layer) in ACTIVATIONS:
            layers.append(ACTIVATIONS[type(layer)])
        else:
            raise TypeError(f"{layer} cannot be converted. Use Linear and smooth activations.")

    def decode(z: Float[Array, " dim"]) -> Float[Array, " out"]:
        for layer in layers:
            z = layer(z) if callable(layer) else layer[0] @ z + layer[1]
        return z

    return decode


def fit(steps: int = 300) -> torch.nn.Sequential:
    """Fit a decoder from a plane to points on a curved sheet."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.SiLU(), torch.nn.Linear(64, 64), torch.nn.SiLU()
    )
    network.append(torch.nn.Linear(64, 3))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(steps):
        z = 2 * torch.rand(256, 2) - 1
        target = torch.stack([z[:, 0], z[:, 1], torch.exp(-4 * (z**2).sum(dim=1))], dim=1)
        optimiser.zero_grad()
        loss = ((network(z) - target) ** 2).mean()
        loss.backward()
        optimiser.step()
    return network


def main() -> None:
    """Print distances between random points of the latent space."""
    network = fit()
    metric = Pullback(convert(network))
    rng = np.random.default_rng(0)
    starts, ends = rng.uniform(-1, 1, size=(2, 5, 2)).astype(np.float32)
    found = geodesics(metric, starts, ends)
    for length, error, straight in zip(
        found.length, found.error, np.linalg.norm(ends - starts, axis=1)
    ):
        print(f"distance {length:.4f} (error {error:.1e}), in coordinates {straight:.4f}")


if __name__ == "__main__":
    main()
