"""The registry of penalties. Only building a penalty needs JAX, not listing the names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from gelato.errors import InputError

if TYPE_CHECKING:
    from gelato.uncertainty.build import PenaltyInputs
    from gelato.uncertainty.penalty import AbstractPenalty

Space = Literal["latent", "state"]
Build = Callable[["PenaltyInputs"], "AbstractPenalty"]


@dataclass(frozen=True)
class RegisteredPenalty:
    """How to build a penalty, the spaces it works in, and one line of help.

    `build` is a function, or the name of one in `gelato.uncertainty.build`.
    """

    build: Build | str
    spaces: tuple[str, ...]
    help: str

    def load(self) -> Build:
        """Return the build function."""
        if isinstance(self.build, str):
            return getattr(import_module("gelato.uncertainty.build"), self.build)
        return self.build


_LATENT, _BOTH = ("latent",), ("latent", "state")
# The built-in penalties, in the order in which tables list them.
_PENALTIES = {
    "transport": RegisteredPenalty(
        "build_transport", _LATENT, "model errors at neighbours plus their growth along geodesics"
    ),
    "extrapolation": RegisteredPenalty(
        "build_extrapolation",
        _LATENT,
        "only the part of `transport` that grows with distance from the data",
    ),
    "geodesic": RegisteredPenalty(
        "build_geodesic", _LATENT, "mean geodesic distance to neighbours, as in the paper"
    ),
    "euclidean": RegisteredPenalty(
        "build_euclidean", _BOTH, "mean Euclidean distance to neighbours"
    ),
    "unusual-action": RegisteredPenalty(
        "build_unusual_action", _LATENT, "how rare the action is at similar states"
    ),
    "guard": RegisteredPenalty(
        "build_guard", _LATENT, "the larger of euclidean and unusual-action, for trust and export"
    ),
    "ensemble": RegisteredPenalty("build_ensemble", _LATENT, "disagreement of the decoders"),
    "aleatoric": RegisteredPenalty("build_aleatoric", _LATENT, "largest decoder σ, as in MOPO"),
    "forward": RegisteredPenalty("build_forward", _LATENT, "σ of the forward model"),
    "ambient": RegisteredPenalty(
        "build_ambient", _LATENT, "distance to neighbours in state space, as in SUMO"
    ),
    "none": RegisteredPenalty("build_no_penalty", _BOTH, "zero everywhere"),
}


def register_penalty(
    name: str, build: Build, spaces: Sequence[Space] = ("latent",), help: str = ""
) -> None:
    """Register a penalty, so that methods, `judge_penalties` and `Trust` know its name.

    `build(inputs: PenaltyInputs)` returns an `AbstractPenalty`. `spaces` lists where it works: in
    the embedding of the latent model ("latent"), on state-action pairs ("state"), or both.
    """
    if not name or name in _PENALTIES:
        problem = "is registered already" if name else "is empty"
        raise InputError(f"penalty name {name!r} {problem}. Choose another name")
    if not spaces or not set(spaces) <= set(_BOTH):
        raise InputError(f"penalty {name!r}: spaces are {spaces}. Use 'latent', 'state' or both")
    if not callable(build):
        raise InputError(f"penalty {name!r}: build is {build!r}. Pass a function of PenaltyInputs")
    _PENALTIES[name] = RegisteredPenalty(build, tuple(spaces), help)


def list_penalties(space: Space | None = None) -> tuple[str, ...]:
    """List the registered penalties, or those that work in one space."""
    found = _PENALTIES.items()
    return tuple(name for name, entry in found if space is None or space in entry.spaces)


def describe_penalties(space: Space | None = None) -> str:
    """Describe the penalties in one line, for help texts."""
    parts = []
    for name in list_penalties(space):
        about = _PENALTIES[name].help
        parts.append(f"{name} ({about})" if about else name)
    return ", ".join(parts)


def find_penalty(name: str, space: Space) -> RegisteredPenalty:
    """Find a penalty by name. Raise an error if it is unknown or does not work in the space."""
    known = ", ".join(list_penalties(space))
    if name not in _PENALTIES:
        raise InputError(f"penalty {name!r} is not one of {known}")
    entry = _PENALTIES[name]
    if space not in entry.spaces:
        raise InputError(
            f"penalty {name!r} works in {' and '.join(entry.spaces)} space, not in {space} space. "
            f"Use one of {known}"
        )
    return entry
