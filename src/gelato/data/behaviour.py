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
    draw = categorical if isinstance(action_space, gymnasium.spaces.Discrete) else tanh_gaussian

    def act(observation: np.ndarray, rng: np.random.Generator) -> Action:
        return draw(weights, observation.ravel(), rng)

    return act


def shipped_weights(name: str) -> dict[str, np.ndarray]:
    """The weights of a trained policy, as `tanh_gaussian` and `categorical` take them."""
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
    out = _outputs(weights, observation)
    size = len(out) // 2
    mean, log_std = out[:size], out[size:].clip(*_LOG_STD_RANGE)
    return np.tanh(mean + np.exp(log_std) * rng.standard_normal(size, dtype=np.float32))


def categorical(
    weights: dict[str, np.ndarray], observation: Float[np.ndarray, " state"], rng: np.random.Generator
) -> np.int64:
    """A discrete action, its log-probabilities (up to a constant) from two hidden ReLU layers."""
    # The largest of the logits, each with Gumbel noise, is a draw from their softmax.
    logits = _outputs(weights, observation)
    return np.int64(np.argmax(logits + rng.gumbel(size=len(logits))))


def _outputs(weights: dict[str, np.ndarray], observation: Float[np.ndarray, " state"]) -> Float[np.ndarray, " out"]:
    hidden = observation.astype(np.float32)
    for layer in ("0", "1"):
        hidden = hidden @ weights[f"w{layer}"]
        hidden += weights[f"b{layer}"]
        np.maximum(hidden, 0, out=hidden)
    return hidden @ weights["w2"] + weights["b2"]
