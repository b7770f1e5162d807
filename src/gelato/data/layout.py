"""What the options of a reference say about the columns of a file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from gelato.data.fields import FIELD_NAMES
from gelato.data.spaces import ActionSpace, Continuous, Discrete
from gelato.errors import InputError, first_line

# Options of every source that reads columns by name.
LAYOUT_OPTIONS = (
    *FIELD_NAMES,
    "low",
    "high",
    "discrete",
    "scale",
    "clip",
    "gap",
    "environment",
    "mapping",
)
_LARGEST_MAPPING = 2**20
_MOST_DIGITS = 9


@dataclass(frozen=True)
class Layout:
    """Which columns of a file mean what, and how its actions are stored."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Field → pattern of columns, or `none`."""
    action_space: ActionSpace | None = None
    scale: tuple[float, ...] | None = None
    """The file's actions are multiplied by this."""
    clip: bool = False
    """Actions outside their range are clipped, as the environment did."""
    gap: float | None = None
    """An episode ends where time jumps by more than this, or runs backwards."""
    environment: str | None = None


def read_layout(options: Mapping[str, str]) -> Layout:
    """Read the options of a reference; they overrule those of a mapping file."""
    if "mapping" in options:
        options = {**_read_mapping(Path(options["mapping"]).expanduser()), **options}
    columns = {name: options[name] for name in FIELD_NAMES if name in options}
    scale = _read_numbers(options, "scale")
    gap = _read_numbers(options, "gap")
    if scale is not None and 0 in scale:
        raise InputError("scale= must not be 0")
    if gap is not None and (len(gap) > 1 or gap[0] <= 0):
        raise InputError(f"gap={options['gap']} must be one number above 0")
    clip = options.get("clip", "no")
    if clip not in ("yes", "no"):
        raise InputError(f"clip={clip} must be yes or no")
    space = _read_action_space(options)
    if clip == "yes" and not isinstance(space, Continuous):
        raise InputError("clip=yes needs the range of the actions: low= and high=")
    if scale is not None and isinstance(space, Discrete):
        raise InputError(
            "scale= is for continuous actions and discrete= for discrete ones; use one"
        )
    return Layout(
        columns,
        space,
        scale,
        clip == "yes",
        None if gap is None else gap[0],
        options.get("environment"),
    )


def _read_action_space(options: Mapping[str, str]) -> ActionSpace | None:
    if "discrete" in options:
        text = options["discrete"]
        if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < 2:
            raise InputError(f"discrete={text[:20]} must be the number of actions, at least 2")
        return Discrete(int(text))
    if ("low" in options) != ("high" in options):
        raise InputError("the action range needs both low= and high=")
    low, high = _read_numbers(options, "low"), _read_numbers(options, "high")
    if low is None or high is None:
        return None
    if len(low) != len(high) or not all(a < b for a, b in zip(low, high)):
        raise InputError(
            f"low={options['low']} must lie below high={options['high']} in every dimension"
        )
    return Continuous(low, high)


def _read_numbers(options: Mapping[str, str], name: str) -> tuple[float, ...] | None:
    """Read numbers separated by `/`, one for each action dimension."""
    if name not in options:
        return None
    try:
        # Round like actions and Gymnasium's spaces, so that equal bounds compare as equal.
        with np.errstate(over="ignore"):
            numbers = tuple(float(np.float32(part)) for part in options[name].split("/"))
    except ValueError as error:
        raise InputError(
            f"{name}={options[name]}: low=, high= and scale= take numbers, one for each action "
            "dimension, separated by /; gap= takes one number"
        ) from error
    if not np.isfinite(numbers).all():
        raise InputError(f"{name}={options[name]} must be finite")
    return numbers


def _read_mapping(path: Path) -> dict[str, str]:
    """Read the options in a TOML file; lists become `a|b`, or `1/2` for numbers."""
    try:
        if path.exists() and not path.is_file():  # Reading a pipe or a device may never end.
            raise InputError(f"mapping={path} is not a plain file")
        if path.stat().st_size > _LARGEST_MAPPING:
            raise InputError(f"mapping={path} is too large for a mapping")
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"mapping={path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"mapping={path} is not valid TOML ({first_line(error)})") from error
    return {name: _write_option(name, value, path) for name, value in values.items()}


def _write_option(name: str, value: Any, path: Path) -> str:
    allowed = [option for option in LAYOUT_OPTIONS if option != "mapping"]
    if name == "reward":
        raise InputError(
            f"mapping={path}: a mapping cannot name code; add ,reward=FILE to the reference"
        )
    if name not in allowed:
        near = get_close_matches(name, allowed, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(allowed)}"
        raise InputError(f"mapping={path}: unknown key {name!r}; {hint}")
    if isinstance(value, bool):
        return "yes" if value else "no"
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str | int | float) for part in parts):
        raise InputError(f"mapping={path}: {name} must be a text, a number, or a list of them")
    return ("|" if name in FIELD_NAMES else "/").join(map(str, parts))
