"""The parser of the command line, our way: commands that are found before they run, and refusals in one line."""

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo
from tyro.extras import SubcommandApp

from gelato.errors import InputError

registry = ConstructorRegistry()
_REFUSED = 2
_PLAINER = (
    (r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is no whole number"),
    (r"could not convert string to float: ('.*?')", r"\1 is no number"),
)


class Commands(SubcommandApp):
    """Commands, or groups of them, of which parsing finds one and does not run it yet."""

    def command(self, func: Any = None, **settings: Any) -> Any:
        """Register a command, as `SubcommandApp` does."""
        if func is None:
            return functools.partial(self.command, **settings)
        super().command(func if isinstance(func, SubcommandApp) else _found(func), **settings)
        return func

    def parse(self, arguments: Sequence[str] | None, *, program: str, description: str) -> Callable[[], None]:
        """The command that the arguments name, with them; what is wrong with them is an `InputError`."""
        said = StringIO()
        try:
            with redirect_stderr(said):
                return self.cli(prog=program, description=description, args=arguments, registry=registry)
        except SystemExit as end:
            if end.code != _REFUSED:
                raise
            raise InputError(in_one_line(said.getvalue())) from None


def _found(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    @functools.wraps(command)
    def found(*positional: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(command, *positional, **named)

    return found


def in_one_line(box: str) -> str:
    """What the parser says in a box, under a title: its sections, less what explains options, and how to see more.

    Such explanations are indented twice, names of options once.
    """
    lines = [re.sub(r"[│╰╯]", " ", line).rstrip() for line in box.splitlines()[1:]]
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip(" ─-")), default=0)
    sections: list[list[str]] = [[]]
    for line in lines:
        if not line.strip(" ─-"):
            sections.append([])
        elif not line[margin:].startswith(" " * 8):
            sections[-1].append(line[margin:])
    told = [_section(lines) for lines in sections if lines and not lines[0].startswith("Argument helptext")]
    if len(told) < 2:
        return " ".join(box.split())
    *reasons, footer = told
    line = "; ".join(text.rstrip(".") for text in reasons)
    for strange, plain in _PLAINER:
        line = re.sub(strange, plain, line)
    return f"{line}. See `gelato{footer.partition('gelato')[2]}`"


def _section(lines: list[str]) -> str:
    head = " ".join(line for line in lines if not line.startswith(" "))
    options = ", ".join(line.strip() for line in lines if line.startswith(" "))
    return f"{head} {options}".strip()


@registry.primitive_rule
def _unless_told(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """An option that may be left out is `--updates INT`, where the library itself would have `--updates {None}|INT`."""
    kinds = set(get_args(info.type))
    named = [kind for kind in (int, float, str, Path) if kinds == {kind, NoneType}]
    if not named:
        return None
    (kind,) = named
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda given: kind(given[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )
