"""`run.json`: what a run is. A foreign one may hold anything, so its fields are checked."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gelato.errors import InputError
from gelato.runs.files import read_json

FORMAT = 1
# Metadata of a setting that a later version added. At its default it is not recorded, so the run
# folders of earlier versions stay valid.
ADDED_LATER = {"added_later": True}
_PACKAGES = (
    "gelato-rl",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "gymnasium",
    "mujoco",
    "minari",
)


class _Description(dict[str, Any]):
    """The contents of a run.json. A missing field is reported as damage."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{self._path}: damaged (the field {name} is missing)")


def _is_data(value: Any) -> bool:
    known = isinstance(value, dict) and isinstance(value.get("reference"), str)
    return known and isinstance(value.get("environment"), str | None)


def _is_seeds(value: Any) -> bool:
    return isinstance(value, list) and all(type(seed) is int for seed in value)


def _is_methods(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    numbers = ("penalty_weight", "real_fraction", "real_share")
    for method in value:
        if isinstance(method, str):
            continue
        if not isinstance(method, dict) or not isinstance(method.get("name"), str):
            return False
        if not isinstance(method.get("penalty", "none"), str):
            return False
        if not isinstance(method.get("fit"), dict | None):
            return False
        if not all(isinstance(method.get(name, 0.0), int | float) for name in numbers):
            return False
    return True


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "kind": lambda value: isinstance(value, str),
    "fingerprint": lambda value: isinstance(value, str),
    "versions": lambda value: isinstance(value, dict),
    "config": lambda value: isinstance(value, dict),
    "model": lambda value: isinstance(value, str | None),
    "data": _is_data,
    "seeds": _is_seeds,
    "methods": _is_methods,
}


def read_description(path: Path) -> dict[str, Any]:
    """Read a run.json; its known fields have the types that gelato writes."""
    fields = read_json(path)
    if not isinstance(fields, dict) or not {"format", "kind"} <= fields.keys():
        raise InputError(f"{path}: is not a run.json of gelato")
    if fields["format"] != FORMAT:
        raise InputError(f"{path}: has format {fields['format']} of a newer gelato; upgrade gelato")
    for name, is_right in _CHECKS.items():
        if name in fields and not is_right(fields[name]):
            raise InputError(f"{path}: damaged (the field {name} has a value of another type)")
    return _Description(path, fields)


def list_recorded(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration that a run records."""
    found = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if not (each.metadata.get("added_later") and value == each.default):
            found[each.name] = value
    return found


def list_versions() -> dict[str, str]:
    """Return the versions of what computes a run."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except ModuleNotFoundError:
            installed[package] = "not installed"
    return installed
