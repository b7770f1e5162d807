"""Settings by name, for any dataclass: `--set sac.horizon=10`."""

import ast
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from gelato.errors import InputError


def set_options(parts: Any, options: tuple[str, ...]) -> Any:
    """Apply `NAME=VALUE` options to a dataclass; a dot in NAME goes into a nested dataclass."""
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"--set {option}: write NAME=VALUE, such as sac.horizon=10")
        try:
            parts = _set(parts, name.split("."), text)
        except InputError as error:
            raise InputError(f"--set {option}: {error}") from error
    return parts


def _set(settings: Any, path: list[str], text: str) -> Any:
    name, *rest = path
    names = [each.name for each in fields(settings)]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; choose one of {', '.join(names)}"
        raise InputError(f"no setting is called {name!r}{hint}")
    value = getattr(settings, name)
    if rest:
        if not is_dataclass(value):
            raise InputError(f"{name} has no settings for this data")
        return replace(settings, **{name: _set(value, rest, text)})
    return replace(settings, **{name: _read_value(type(settings), name, text)})


def _read_value(kind: type, name: str, text: str) -> Any:
    """Read a value as Python writes it: 10, 1e-3, True, none, 256,256 or a word."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None if text.lower() == "none" else text
    hint = get_type_hints(kind)[name]
    if type(value) is int and float in (hint, *get_args(hint)):
        value = float(value)
    if "tuple" in str(hint) and not isinstance(value, tuple):
        value = (value,)
    allowed = get_args(hint) if type(None) in get_args(hint) else (hint,)
    plain = tuple(getattr(each, "__origin__", each) for each in allowed)
    if not isinstance(value, plain):
        wanted = getattr(hint, "__name__", str(hint))
        raise InputError(f"{text!r} is not a value of type {wanted}")
    return value
