"""The exception for input that the user can fix, and imports of optional packages.

The command line prints an `InputError` as one line and exits with code 2.
"""

from importlib import import_module
from types import ModuleType


class InputError(ValueError):
    """Bad input. The message says what is wrong, where (file, field, row) and what to do.

    The message is one printable line, also where it quotes a name from a hostile file.
    """

    def __str__(self) -> str:
        return make_printable(super().__str__())


def make_printable(text: str, *, keep: str = "") -> str:
    """Return a text with escape sequences instead of characters that a terminal would obey."""
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


class UserCodeError(InputError):
    """Code that the user provided raised an error, which is the `__cause__`.

    The command line prints the traceback of the cause before the line.
    """


def require_positive(settings: object, *names: str) -> None:
    """Raise an `InputError` unless each of these fields is positive.

    A tuple, such as the widths of hidden layers, needs at least one entry, and positive ones only.
    """
    for name in names:
        value = getattr(settings, name)
        entries = value if isinstance(value, tuple) else (value,)
        numbers = all(isinstance(entry, int | float) for entry in entries)
        if not entries or not numbers or not all(entry > 0 for entry in entries):
            many = "one or more numbers, each" if isinstance(value, tuple) else "a number"
            raise InputError(f"{name}={value}: must be {many} greater than 0")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package; if it is missing, name the extra that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise InputError(
            f"{missing} is not installed. Install it with: pip install 'gelato-rl[{extra}]'"
        ) from error
