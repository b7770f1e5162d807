"""Plugins: modules that register tasks, sources, penalties, methods or figures.

The command line imports them before it reads its arguments. An installed package registers its
module as an entry point of the group `gelato.plugins`. `GELATO_PLUGINS` lists more plugins,
separated by commas, as module names or file paths.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from gelato.errors import InputError

VARIABLE = "GELATO_PLUGINS"


def load_plugins() -> None:
    """Import every plugin. An error in a plugin keeps its traceback."""
    for entry_point in entry_points(group="gelato.plugins"):
        try:
            entry_point.load()
        except Exception as error:
            error.add_note(f"This is the gelato plugin {entry_point.name} ({entry_point.value}).")
            raise
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        _import_named(name.strip())


def _import_named(name: str) -> None:
    module = name
    if name.startswith(".") and not name.endswith(".py"):
        raise InputError(f"{VARIABLE}: {name}: is a relative name; give the full module name")
    if name.endswith(".py"):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise InputError(f"{VARIABLE}: {name}: no such file")
        # Worker processes inherit the search path, so they can import the module too.
        sys.path.insert(0, str(path.parent))
        module = path.stem
        if "." in module:
            raise InputError(f"{VARIABLE}: {name}: a module name has no dots; rename the file")
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        # A dotted name fails at its first part that is missing.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"{VARIABLE}: cannot find the module {name!r}. Correct the name, or give the path of "
            "its Python file"
        ) from error
    except InputError as error:
        raise InputError(f"{VARIABLE}: {name}: {error}") from error
    except Exception as error:
        error.add_note(f"{VARIABLE} names the plugin {name}.")
        raise
