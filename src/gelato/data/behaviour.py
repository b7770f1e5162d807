"""Behaviour policies of the named datasets: uniform actions, and trained policies in this package.

The policies use NumPy only: worker processes that step a simulator do not need JAX.
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
    """Return the policy `random`, or a trained policy such as `hopper-medium`."""
    if name == "random":
        return _make_uniform_policy(action_space)
    weights = load_weights(name)
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return lambda observation, rng: sample_categorical(weights, observation.ravel(), rng)
    if not isinstance(action_space, gymnasium.spaces.Box):
        raise TypeError(f"no policy {name} for {action_space}")
    middle, half = (
        (action_space.high + action_space.low) / 2,
        (action_space.high - action_space.low) / 2,
    )

    def act(observation: np.ndarray, rng: np.random.Generator) -> Action:
        return middle + half * sample_tanh_gaussian(weights, observation.ravel(), rng)

    return act


def load_weights(name: str) -> dict[str, np.ndarray]:
    """Return the weights of a trained policy for `sample_tanh_gaussian` or `sample_categorical`."""
    with (files("gelato.data") / "policies" / f"{name}.npz").open("rb") as file:
        return {key: np.asarray(value, np.float32) for key, value in np.load(file).items()}


def _make_uniform_policy(space: gymnasium.Space[Any]) -> Policy:
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda _, rng: rng.integers(space.n)
    if isinstance(space, gymnasium.spaces.Box):
        return lambda _, rng: rng.uniform(space.low, space.high).astype(np.float32)
    raise TypeError(f"no uniform policy for {space}")


def sample_tanh_gaussian(
    weights: dict[str, np.ndarray],
    observation: Float[np.ndarray, " state"],
    rng: np.random.Generator,
) -> Float[np.ndarray, " action"]:
    """Sample `tanh(μ + σ ε)`; two hidden ReLU layers compute `(μ, log σ)`."""
    out = _compute_outputs(weights, observation)
    size = len(out) // 2
    mean, log_std = out[:size], out[size:].clip(*_LOG_STD_RANGE)
    return np.tanh(mean + np.exp(log_std) * rng.standard_normal(size, dtype=np.float32))


def sample_categorical(
    weights: dict[str, np.ndarray],
    observation: Float[np.ndarray, " state"],
    rng: np.random.Generator,
) -> np.int64:
    """Sample a discrete action; two hidden ReLU layers compute its logits."""
    # The argmax of logits with Gumbel noise is a sample from their softmax.
    logits = _compute_outputs(weights, observation)
    return np.int64(np.argmax(logits + rng.gumbel(size=len(logits))))


def _compute_outputs(
    weights: dict[str, np.ndarray], observation: Float[np.ndarray, " state"]
) -> Float[np.ndarray, " out"]:
    hidden = observation.astype(np.float32)
    for layer in ("0", "1"):
        hidden = hidden @ weights[f"w{layer}"]
        hidden += weights[f"b{layer}"]
        np.maximum(hidden, 0, out=hidden)
    return hidden @ weights["w2"] + weights["b2"]
