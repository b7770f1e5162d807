"""A trained policy as plain arrays, in NumPy: for simulators, export and users without JAX.

observation ─► standardise ─► encoder's mean ─► actor ─► tanh into the box, or the best action

A policy that reads a history has a window of observations and actions as its input. `begin` makes
a copy that takes single observations and carries the window of one episode.
"""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from gelato.data.history import WindowLayout, encode_actions
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.errors import InputError
from gelato.runs.npz import read_arrays

Weights = Float[np.ndarray, "_ _"]
Bias = Float[np.ndarray, " _"]
# A file that claims a longer history is damaged.
_LONGEST_HISTORY = 100_000


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": _gelu,
    "softplus": _softplus,
    "relu": lambda x: np.maximum(x, 0),
}


@dataclass(frozen=True)
class DeployedConvolutions:
    """Layers that read the inputs at `places` by blocks: the pixels of an image, patch by patch.

    A place beyond the last input is zero: the image is padded there.
    """

    places: Int[np.ndarray, " pixels"]
    layers: tuple[tuple[Weights, Bias], ...]

    def __call__(
        self, x: Float[np.ndarray, "*batch in"], activation: str
    ) -> Float[np.ndarray, "*batch out"]:
        hidden = np.concatenate([x, np.zeros_like(x[..., :1])], axis=-1)[..., self.places]
        for weight, bias in self.layers:
            hidden = ACTIVATIONS[activation](_apply(weight, bias, hidden))
        return hidden


@dataclass(frozen=True)
class Stage:
    """A network `x ↦ W_L a(… a(W_1 x)) + S x`; its first `outputs` values are used.

    With `convolutions`, it reads the inputs at `kept` and the features of the images.
    """

    layers: tuple[tuple[Weights, Bias], ...]
    shortcut: Weights | None
    activation: str
    outputs: int
    kept: Int[np.ndarray, " kept"] | None = None
    convolutions: tuple[DeployedConvolutions, ...] = ()

    def __call__(self, x: Float[np.ndarray, "*batch in"]) -> Float[np.ndarray, "*batch out"]:
        if self.kept is not None:
            features = [convolve(x, self.activation) for convolve in self.convolutions]
            x = np.concatenate([x[..., self.kept], *features], axis=-1)
        hidden = x
        for weight, bias in self.layers[:-1]:
            hidden = ACTIVATIONS[self.activation](_apply(weight, bias, hidden))
        out = _apply(*self.layers[-1], hidden)
        if self.shortcut is not None:
            out = out + _multiply(self.shortcut, x)
        return out[..., : self.outputs]


def _apply(
    weight: Weights, bias: Bias, x: Float[np.ndarray, "*batch in"]
) -> Float[np.ndarray, "*batch out"]:
    """Apply a layer; it reads a longer input in blocks, and joins the results."""
    if x.shape[-1] == weight.shape[1]:
        return _multiply(weight, x) + bias
    blocks = x.reshape(*x.shape[:-1], -1, weight.shape[1])
    return (blocks @ weight.T + bias).reshape(*x.shape[:-1], -1)


def _multiply(
    weight: Weights, x: Float[np.ndarray, "*batch in"]
) -> Float[np.ndarray, "*batch out"]:
    return weight @ x if x.ndim == 1 else x @ weight.T


@dataclass(frozen=True)
class DeployedPolicy:
    """The deterministic policy on observations in the environment's own units.

    Call it with one observation or with a batch of them. With a `history` above 1, call it with
    windows (`layout`), or run episodes with `begin`.
    """

    mean: Float[np.ndarray, " state"]
    scale: Float[np.ndarray, " state"]
    stages: tuple[Stage, ...]
    space: ActionSpace
    history: int = 1

    @property
    def layout(self) -> WindowLayout:
        """The columns of a window."""
        return WindowLayout(self.history, len(self.mean), self.space.size)

    def begin(self) -> "DeployedPolicy | RunningPolicy":
        """Return the policy for one episode, called with one observation after the other."""
        return self if self.history == 1 else RunningPolicy(self)

    def __call__(
        self, observation: Num[np.ndarray, "*shape"]
    ) -> Float[np.ndarray, "*batch action"] | Int[np.ndarray, " batch"] | np.int64:
        """Return the action for one observation, or one action per row of a batch."""
        given = np.asarray(observation, np.float32)
        size = self.layout.size
        if given.size == size:
            given = given.ravel() if given.ndim < 2 or given.shape[0] != 1 else given
        x = given.reshape(-1) if given.ndim == 1 else given.reshape(len(given), -1)
        if x.shape[-1] != size and self.history > 1:
            raise InputError(
                f"observation has shape {given.shape}; the policy reads windows of {self.history} "
                f"observations and actions, {size} values. For single observations, call begin() "
                "at the start of each episode, and call what it returns"
            )
        if x.shape[-1] != size:
            raise InputError(
                f"observation has shape {given.shape}; the policy expects {size} values, "
                "or a batch of rows with that many"
            )
        x = np.asarray(self.layout.normalise(x, self.mean, self.scale))
        for stage in self.stages:
            x = stage(x)
        if isinstance(self.space, Discrete):
            return np.argmax(x, axis=-1)
        low, high = np.array(self.space.low, np.float32), np.array(self.space.high, np.float32)
        return (low + high) / 2 + (high - low) / 2 * np.tanh(x)


class RunningPolicy:
    """A policy with a history in one episode: it carries the window itself.

    The window holds the actions that the policy chose. If another one was taken, pass it to
    `replace_action` before the next observation.
    """

    def __init__(self, policy: DeployedPolicy) -> None:
        self.policy = policy
        self._memory = policy.layout.start()
        self._window: Float[np.ndarray, " window"] | None = None

    @property
    def window(self) -> Float[np.ndarray, " window"]:
        """The window of the last observation, in the environment's units."""
        if self._window is None:
            raise InputError("there is no window before the first observation")
        return self._window

    def __call__(
        self, observation: Num[np.ndarray, "*shape"]
    ) -> Float[np.ndarray, " action"] | np.int64:
        """Return the action for the next observation of the episode."""
        layout = self.policy.layout
        given = np.asarray(observation, np.float32).ravel()
        if len(given) != layout.state_size:
            raise InputError(
                f"observation has {len(given)} values; the policy expects {layout.state_size}"
            )
        self._window = np.asarray(layout.open(given, self._memory))
        action = self.policy(self._window)
        self.replace_action(action)
        return action

    def replace_action(self, action: Num[np.ndarray, "*action"] | np.int64) -> None:
        """Note the action that was taken after the last observation."""
        policy = self.policy
        encoded = encode_actions(policy.space, action)
        self._memory = np.asarray(policy.layout.remember(self.window, encoded))


def begin_episode(policy: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    """Return what acts in the next episode: `policy.begin()` if it has one, else the policy."""
    begin = getattr(policy, "begin", None)
    return begin() if callable(begin) else policy


def pack_policies(policies: Sequence[DeployedPolicy]) -> dict[str, np.ndarray]:
    """Return policies as named arrays that describe themselves."""
    arrays: dict[str, np.ndarray] = {}
    described = []
    for index, policy in enumerate(policies):
        arrays |= {f"{index}.mean": policy.mean, f"{index}.scale": policy.scale}
        stages = []
        for number, stage in enumerate(policy.stages):
            place = f"{index}.{number}"
            for depth, (weight, bias) in enumerate(stage.layers):
                arrays |= {f"{place}.weight{depth}": weight, f"{place}.bias{depth}": bias}
            if stage.shortcut is not None:
                arrays[f"{place}.shortcut"] = stage.shortcut
            described_stage: dict[str, Any] = {
                "activation": stage.activation,
                "outputs": stage.outputs,
                "layers": len(stage.layers),
            }
            if stage.kept is not None:
                arrays[f"{place}.kept"] = stage.kept
                described_stage["images"] = [len(each.layers) for each in stage.convolutions]
            for image, each in enumerate(stage.convolutions):
                arrays[f"{place}.image{image}.places"] = each.places
                for depth, (weight, bias) in enumerate(each.layers):
                    arrays[f"{place}.image{image}.weight{depth}"] = weight
                    arrays[f"{place}.image{image}.bias{depth}"] = bias
            stages.append(described_stage)
        entry = {"stages": stages, "space": _describe_space(policy.space)}
        described.append(entry if policy.history == 1 else {**entry, "history": policy.history})
    return {"description": np.array(json.dumps(described)), **arrays}


def load_policies(path: Path) -> list[DeployedPolicy]:
    """Read policies from a file of packed policies."""
    arrays = read_arrays(path)
    try:
        found = []
        for index, entry in enumerate(json.loads(str(arrays["['description']"]))):
            policy = _policy(arrays, index, entry)
            _check_sizes(policy)
            found.append(policy)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(f"{path}: does not describe policies of gelato ({error!r})") from error
    return found


def _check_sizes(policy: DeployedPolicy) -> None:
    """Raise a `ValueError` unless every network fits to the one before it and to the actions."""
    sizes = [policy.mean.shape, policy.scale.shape]
    size = policy.mean.shape[0]
    if sizes != [(size,), (size,)] or not policy.stages:
        raise ValueError(f"mean and scale have shapes {sizes}")
    if not isinstance(policy.history, int) or not 1 <= policy.history <= _LONGEST_HISTORY:
        raise ValueError(f"history is {policy.history}")
    size = policy.layout.size
    for stage in policy.stages:
        if stage.kept is not None:
            size = _check_convolutions(stage, stage.kept, size)
        first, width = size, _check_layers(stage.layers, size)
        shortcut = stage.shortcut
        if shortcut is not None and shortcut.shape != (width, first):
            raise ValueError(f"a shortcut has shape {shortcut.shape}")
        whole = type(stage.outputs) is int
        if stage.activation not in ACTIVATIONS or not (whole and 0 < stage.outputs <= width):
            raise ValueError(f"activation {stage.activation}, {stage.outputs} outputs")
        size = stage.outputs
    if size != policy.space.size:
        raise ValueError(f"{size} values for the actions {policy.space}")


def _check_layers(layers: Sequence[tuple[Weights, Bias]], width: int) -> int:
    """Return the number of outputs of layers with so many inputs; refuse shapes that do not fit."""
    for weight, bias in layers:
        fits = weight.ndim == 2 and weight.size > 0 and width % weight.shape[1] == 0
        if not fits or bias.shape != weight.shape[:1]:
            raise ValueError(f"a layer has shapes {weight.shape} and {bias.shape}")
        width = len(bias) * (width // weight.shape[1])
    return width


def _check_convolutions(stage: Stage, kept: Int[np.ndarray, " kept"], inputs: int) -> int:
    """Return the number of values after the convolutions of a stage."""
    width = len(kept)
    for each in stage.convolutions:
        width += _check_layers(each.layers, len(each.places))
    # A place equal to the number of inputs is padding.
    every = np.concatenate([kept, *(each.places for each in stage.convolutions)])
    if every.ndim != 1 or (every < 0).any() or (every > inputs).any() or inputs in kept:
        raise ValueError("places of inputs are outside of the input")
    return width


def _policy(arrays: Mapping[str, np.ndarray], index: int, entry: dict[str, Any]) -> DeployedPolicy:
    def array(name: str, kind: str = "f") -> np.ndarray:
        found = arrays[f"['{index}.{name}']"]
        if found.dtype.kind != kind:
            raise ValueError(f"{index}.{name} holds {found.dtype}")
        return found

    def layers(place: str, count: int) -> tuple[tuple[Weights, Bias], ...]:
        return tuple((array(f"{place}.weight{d}"), array(f"{place}.bias{d}")) for d in range(count))

    stages = []
    for number, stage in enumerate(entry["stages"]):
        has_shortcut = f"['{index}.{number}.shortcut']" in arrays
        shortcut = array(f"{number}.shortcut") if has_shortcut else None
        convolutions = []
        for image, count in enumerate(stage.get("images", ())):
            place = f"{number}.image{image}"
            convolutions.append(
                DeployedConvolutions(array(f"{place}.places", "i"), layers(place, count))
            )
        stages.append(
            Stage(
                layers(str(number), stage["layers"]),
                shortcut,
                stage["activation"],
                stage["outputs"],
                array(f"{number}.kept", "i") if "images" in stage else None,
                tuple(convolutions),
            )
        )
    space, history = _read_space(entry["space"]), entry.get("history", 1)
    return DeployedPolicy(array("mean"), array("scale"), tuple(stages), space, history)


def _describe_space(space: ActionSpace) -> dict[str, Any]:
    return {"n": space.n} if isinstance(space, Discrete) else {"low": space.low, "high": space.high}


def _read_space(described: dict[str, Any]) -> ActionSpace:
    if "n" in described:
        return Discrete(operator.index(described["n"]))
    low, high = (tuple(map(float, described[end])) for end in ("low", "high"))
    return Continuous(low, high)
