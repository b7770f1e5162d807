"""The command-line parser: finds a command without running it, and reports errors in one line."""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import tyro
from tyro import _errors as parse_errors
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo
from tyro.extras import SubcommandApp

from gelato.errors import InputError

registry = ConstructorRegistry()
# Messages of Python's conversions, and our plainer ones.
_PLAIN_MESSAGES = (
    (r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is not a whole number"),
    (r"could not convert string to float: ('.*?')", r"\1 is not a number"),
)


class Commands(SubcommandApp):
    """Commands or groups of commands. Parsing finds one of them and does not run it yet."""

    def command(self, func: Any = None, **settings: Any) -> Any:
        """Register a command, as `SubcommandApp` does."""
        if func is None:
            return functools.partial(self.command, **settings)
        super().command(func if isinstance(func, SubcommandApp) else _defer(func), **settings)
        name = settings.get("name") or func.__name__
        self._commands = {**getattr(self, "_commands", {}), name: func}
        return func

    def parse(
        self, arguments: Sequence[str] | None, *, program: str, description: str
    ) -> Callable[[], None]:
        """Return the command with its arguments; bad arguments raise an `InputError`."""
        self._refuse_unknown(sys.argv[1:] if arguments is None else arguments)
        with parse_errors.on_parse_error(_refuse):
            return self.cli(
                prog=program,
                description=description,
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=registry,
            )

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Raise an error for a misspelled or repeated option, which tyro would not name."""
        found: Any = self
        program, seen = "gelato", set[str]()
        for argument in arguments:
            if isinstance(found, Commands):
                found = found._commands.get(argument)
                program += f" {argument}"
            elif found is not None and argument.startswith("--") and argument != "--":
                given = argument.partition("=")[0].replace("_", "-")
                names = [name.replace("_", "-") for name in inspect.signature(found).parameters]
                known = ["--help"]
                for name in names:
                    known += [f"--{name}", f"--no-{name}"]
                if given not in known:
                    near = get_close_matches(given, known, n=1)
                    hint = f" (did you mean {near[0]}?)" if near else ""
                    raise InputError(f"unknown option {given}{hint}. See `{program} --help`")
                if given in seen:  # The parser would use the last one and say nothing.
                    raise InputError(f"{given} is given twice; give it once, with all its values")
                seen.add(given)


def _defer(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Return a function that binds a command's arguments; tyro reads its signature and help."""

    def bind(*positional: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(command, *positional, **named)

    signature, parameters = inspect.signature(inspect.unwrap(command)), []
    for parameter in signature.parameters.values():
        if parameter.default in (None, ()) or isinstance(parameter.default, bool):
            # The help text already states the default; that of a flag is to leave it out.
            kind: Any = parameter.annotation
            hidden = tyro.conf.arg(help_behavior_hint="")
            parameter = parameter.replace(annotation=Annotated[kind, hidden])
        parameters.append(parameter)
    bind.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    bind.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # A run-time type checker wraps every function. tyro must read the wrapper, not the function.
    vars(bind).pop("__wrapped__", None)
    bind.__name__, bind.__module__ = command.__name__, command.__module__
    # tyro starts a new line in the help before every line that begins with a sign.
    bind.__doc__ = re.sub(r"(?<=\S)\n( {4}| {12,})(?=\S)", " ", command.__doc__ or "")
    return bind


def _refuse(event: parse_errors.ParseErrorEvent) -> None:
    """Raise one line that says what is wrong and where to read more."""
    programs = event._help_progs()
    program = programs if isinstance(programs, str) else programs[0]
    raise InputError(f"{_describe(event)}. See `{program} --help`")


def _describe(event: parse_errors.ParseErrorEvent) -> str:
    if isinstance(event, parse_errors.MissingArgs):
        names = ", ".join(_name(missing.arg) for missing in event.missing_arguments)
        text = f"missing {names}"
        if event.unrecognized_tokens:
            text += f"; unknown {' '.join(event.unrecognized_tokens)}"
        return text
    if isinstance(event, parse_errors.MissingSubcommand):
        choices = ", ".join(event.subcommand_spec.parser_from_name)
        if event.found_token is None:
            return f"no command given; choose one of {choices}"
        return f"unknown command {event.found_token!r}; choose one of {choices}"
    if isinstance(event, parse_errors.InvalidChoice):
        choices = ", ".join(event.choices)
        return f"{_name(event.argument)}: {event.value!r} is not one of {choices}"
    if isinstance(event, parse_errors.BadValue):
        return f"{_name(event.argument)}: wrong number of values"
    if isinstance(event, parse_errors.UnrecognizedArgs):
        return f"unknown option or argument: {' '.join(event.tokens)}"
    if isinstance(event, parse_errors.InstantiationFailure):
        message = " ".join(str(event.message).split())
        for technical, plain in _PLAIN_MESSAGES:
            message = re.sub(technical, plain, message)
        where = "" if event.argument is None else f"{_name(event.argument)}: "
        return f"{where}{message}"
    return "cannot parse the arguments"


def _name(argument: Any) -> str:
    return str(argument.display_name())


@registry.primitive_rule
def _show_optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Show an optional value as `--updates INT` instead of `--updates {None}|INT`."""
    kinds = get_args(info.type)
    named = [kind for kind in kinds if kind in (int, float, str, Path)]
    if len(kinds) != 2 or NoneType not in kinds or len(named) != 1:
        return None
    (kind,) = named
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda given: kind(given[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )
