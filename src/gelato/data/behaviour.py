"""The policies that make the named datasets: uniform actions, and trained ones shipped as package data.

NumPy only: workers that do nothing but step a simulator need no accelerator library.
"""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float

Action = np.ndarray | np.int64
Policy = Callable[[np.ndarray, np.random.Generator], Action]

_LOG_STD_RANGE = (-5.0, 2.0)


def load_policy(name: str, action_space: gymnasium.Space[Any]) -> Policy:
    """The policy called `random`, or a trained one such as `hopper-medium`."""
    if name == "random":
        return _uniform(action_space)
    weights = shipped_weights(name)

    def act(observation: np.ndarray, rng: np.random.Generator) -> Action:
        return tanh_gaussian(weights, observation, rng)

    return act


def shipped_weights(name: str) -> dict[str, np.ndarray]:
    """The weights of a trained policy, as `tanh_gaussian` takes them."""
    with (files("gelato.data") / "policies" / f"{name}.npz").open("rb") as file:
        return {key: np.asarray(value, np.float32) for key, value in np.load(file).items()}


def _uniform(space: gymnasium.Space[Any]) -> Policy:
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda _, rng: rng.integers(space.n)
    if isinstance(space, gymnasium.spaces.Box):
        return lambda _, rng: rng.uniform(space.low, space.high).astype(np.float32)
    raise TypeError(f"no uniform policy for {space}")


def tanh_gaussian(
    weights: dict[str, np.ndarray], observation: Float[np.ndarray, " state"], rng: np.random.Generator
) -> Float[np.ndarray, " action"]:
    """`tanh(μ + σ ε)` with `(μ, log σ)` from two hidden ReLU layers."""
    hidden = observation.astype(np.float32)
    for layer in ("0", "1"):
        hidden = hidden @ weights[f"w{layer}"]
        hidden += weights[f"b{layer}"]
        np.maximum(hidden, 0, out=hidden)
    out = hidden @ weights["w2"] + weights["b2"]
    size = len(out) // 2
    mean, log_std = out[:size], out[size:].clip(*_LOG_STD_RANGE)
    return np.tanh(mean + np.exp(log_std) * rng.standard_normal(size, dtype=np.float32))
