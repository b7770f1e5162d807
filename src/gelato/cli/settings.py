"""The settings of `--set NAME=VALUE`, with their values and explanations."""

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

from gelato.options import set_options

__all__ = ["list_settings", "set_options"]


def list_settings(parts: Any, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return name, value and explanation of every setting below a dataclass."""
    helps = _read_field_help(type(parts))
    rows = []
    for each in fields(parts):
        value, name = getattr(parts, each.name), f"{prefix}{each.name}"
        if value is None and each.name == "ppo":
            continue
        if is_dataclass(value):
            rows += list_settings(value, f"{name}.")
        else:
            rows.append((name, str(value), helps.get(each.name, "")))
    return rows


def _read_field_help(settings: type) -> dict[str, str]:
    """Read the docstrings below the fields of a dataclass."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
            text = str(after.value.value)  # type: ignore[attr-defined]
            found[node.target.id] = " ".join(text.split())  # type: ignore[union-attr]
    return found
