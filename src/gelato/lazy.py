"""Public names that a package imports on first use, so that workers and `--help` start quickly."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_on_use(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package, given the module of each public name."""

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(modules)
