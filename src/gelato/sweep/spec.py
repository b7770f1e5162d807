"""A sweep as a value, and its specification as a short Python file.

```python
from gelato.sweep import Sweep

sweep = Sweep(datasets=["hopper-medium", "walker2d-medium"], methods=["gelato", "mopo"], seeds=5)
```
"""

import ast
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, no_type_check

from gelato.data.sources import make_absolute, parse_reference
from gelato.errors import InputError, UserCodeError, first_line
from gelato.runs.folder import list_seeds
from gelato.training.method import check_penalty_weight
from gelato.training.presets import PresetName, list_methods

_NAME = "sweep"
_LISTS_OF_TEXT = ("datasets", "methods", "settings")
_LISTS_OF_NUMBERS = ("penalty_weights", "real_fractions")
_WHOLE_NUMBERS = ("seeds", "first_seed", "seeds_per_group", "updates", "evaluations", "episodes")


class FieldError(InputError):
    """Bad input in one field of a sweep, and in one of its entries if it is a list."""

    def __init__(self, message: str, field: str, entry: object = None) -> None:
        super().__init__(message)
        self.message, self.field, self.entry = message, field, entry

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str, object]]:
        return FieldError, (self.message, self.field, self.entry)


@contextmanager
def blame(field: str, entry: object = None) -> Iterator[None]:
    """Convert an `InputError` into a `FieldError` of this field."""
    try:
        yield
    except FieldError:
        raise
    except InputError as error:
        raise FieldError(str(error), field, entry) from error


@no_type_check  # `__post_init__` checks the types, and its messages name the field.
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Datasets × methods × penalty weights × fractions of real data × seeds.

    Lists become tuples. Methods are registered names (`gelato methods`).
    """

    datasets: Sequence[str]
    """References to data, as for `gelato train`."""
    methods: Sequence[str] = ("gelato",)
    penalty_weights: Sequence[float] = ()
    """Penalty weights λ. Default: the grid of the preset."""
    real_fractions: Sequence[float] = ()
    """Fractions of real data in a batch. Default: the grid of the preset, or the preset's value if
    there are penalty weights."""
    penalty: str | None = None
    """The penalty of methods that imagine steps. Default: that of the method."""
    seeds: int = 1
    first_seed: int = 0
    seeds_per_group: int | None = None
    """Most seeds of one group. Smaller groups use more machines. Default: all seeds."""
    preset: PresetName = "default"
    updates: int | None = None
    """Updates of each policy. Default: those of the preset."""
    evaluations: int | None = None
    episodes: int | None = None
    settings: Sequence[str] = ()
    """Any other settings as `NAME=VALUE` (`gelato settings` lists them)."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_references()
        known = ", ".join(list_methods())
        for name in self.methods:
            if name not in list_methods():
                raise FieldError(f"method {name!r} is not one of {known}", "methods", name)
        for field in ("datasets", "methods", "penalty_weights", "real_fractions"):
            self._refuse_repeats(field)
        for weight in self.penalty_weights:
            with blame("penalty_weights", weight):
                check_penalty_weight(weight)
        for fraction in self.real_fractions:
            if not 0 <= fraction <= 1:
                raise FieldError(f"{fraction} must lie between 0 and 1", "real_fractions", fraction)
        with blame("seeds"):
            list_seeds(self.seeds, self.first_seed)
        if self.preset not in get_args(PresetName):
            allowed = ", ".join(get_args(PresetName))
            raise FieldError(f"{self.preset!r} is not one of {allowed}", "preset")
        least = {"seeds_per_group": 1, "updates": 1, "episodes": 1, "evaluations": 0}
        for field, smallest in least.items():
            value = getattr(self, field)
            if value is not None and value < smallest:
                raise FieldError(f"{value} must be at least {smallest}", field)

    def _check_references(self) -> None:
        if not self.datasets:
            raise FieldError("give at least one dataset", "datasets")
        if not self.methods:
            raise FieldError("give at least one method", "methods")
        references = []
        for reference in self.datasets:
            with blame("datasets", reference):
                references.append(str(make_absolute(parse_reference(reference))))
        # Workers run in other folders.
        object.__setattr__(self, "datasets", tuple(references))

    def _check_types(self) -> None:
        """Check the types of all fields, and turn lists into tuples."""
        for field in _LISTS_OF_TEXT:
            self._check_list(field, str, "text")
        for field in _LISTS_OF_NUMBERS:
            self._check_list(field, int | float, "a number")
            numbers = tuple(float(value) for value in getattr(self, field))
            object.__setattr__(self, field, numbers)
        for field in _WHOLE_NUMBERS:
            value = getattr(self, field)
            is_default = value is None and field not in ("seeds", "first_seed")
            if type(value) is not int and not is_default:
                raise FieldError(f"{value!r} is not a whole number", field)
        if not isinstance(self.penalty, str | None):
            raise FieldError(f"{self.penalty!r} is not text", "penalty")

    def _check_list(self, field: str, entry: type | UnionType, noun: str) -> None:
        values = getattr(self, field)
        if not isinstance(values, list | tuple):
            raise FieldError(f"{values!r} is not a list; write [{values!r}]", field)
        for value in values:
            if not isinstance(value, entry) or isinstance(value, bool):
                raise FieldError(f"{value!r} is not {noun}", field, value)
        object.__setattr__(self, field, tuple(values))

    def _refuse_repeats(self, field: str) -> None:
        values = getattr(self, field)
        for value in values:
            if values.count(value) > 1:
                raise FieldError(f"{value!r} is given twice", field, value)

    @property
    def seed_ranges(self) -> list[tuple[int, int]]:
        """The first seed and the number of seeds of every group of one program."""
        size = self.seeds_per_group or self.seeds
        stop = self.first_seed + self.seeds
        return [(first, min(size, stop - first)) for first in range(self.first_seed, stop, size)]

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain values for `run.json`."""
        return asdict(self)


@dataclass(frozen=True)
class SweepSource:
    """Where a sweep is written, for error messages: a file, or options of the command line."""

    path: Path | None = None
    text: str = ""

    def locate(self, error: FieldError) -> InputError:
        """Return the error with the line and the field, or the option, that caused it."""
        if self.path is None:
            option = _OPTIONS.get(error.field, error.field).replace("_", "-")
            # The message about a setting starts with `--set NAME=VALUE`.
            named = error.message.startswith(f"--{option} ")
            return InputError(error.message if named else f"--{option}: {error.message}")
        line = _find_line(self.text, error.field, error.entry)
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        return InputError(f"{where}, {error.field}: {error.message}")


# Options of the command line whose names differ from those of the fields.
_OPTIONS = {
    "datasets": "dataset",
    "methods": "method",
    "penalty_weights": "penalty-weight",
    "real_fractions": "real-fraction",
    "settings": "set",
}


def read_sweep(path: Path) -> tuple[Sweep, SweepSource]:
    """Run a specification and return its sweep. Mistakes are reported with line and field."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a Python file that defines `{_NAME}`")
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a Python file ({first_line(error)})") from error
    source = SweepSource(path.absolute(), text)
    found = run_specification(source).get(_NAME)
    if not isinstance(found, Sweep):
        what = "is not defined" if found is None else f"is {found!r}"
        raise InputError(f"{path}: `{_NAME}` {what}; write {_NAME} = Sweep(datasets=[...])")
    return found, source


def run_specification(source: SweepSource) -> dict[str, Any]:
    """Execute the text of a specification, which may register methods; return its names."""
    path = str(source.path)
    # The specification may import modules that lie next to it.
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names: dict[str, Any] = {"__name__": "gelato_sweep", "__file__": path}
    try:
        exec(compile(source.text, path, "exec"), names)
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except FieldError as error:
        raise source.locate(error) from error
    except Exception as error:
        raise _explain(source, error) from error
    return names


def _explain(source: SweepSource, error: Exception) -> InputError:
    """Say which line of a specification caused an error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(source.path)
    ]
    line = lines[-1] if lines else None
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is not None and "Sweep" in str(error):
        known = ", ".join(each.name for each in fields(Sweep))
        line = _find_line(source.text, unknown[1]) or line
        return InputError(
            f"{source.path}, line {line}, {unknown[1]}: a sweep has no such field; choose among "
            f"{known}"
        )
    where = f"{source.path}, line {line}"
    if isinstance(error, InputError):
        return InputError(f"{where}: {error}")
    what = f"{type(error).__name__}: {first_line(error)}"
    found = UserCodeError(f"{where}: {what}")
    found.__cause__ = error
    return found


def _find_line(text: str, field: str, entry: object = None) -> int | None:
    """Return the line of a keyword argument, or of one entry of its list."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.keyword) or node.arg != field:
            continue
        if isinstance(node.value, ast.List | ast.Tuple):
            for element in node.value.elts:
                if isinstance(element, ast.Constant) and element.value == entry:
                    return element.lineno
        return node.value.lineno
    return None
