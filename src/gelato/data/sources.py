"""References to data, and the registry of the sources that load them.

A reference is `SOURCE:TARGET,option=value,…`. A reference without a source is a named dataset.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from gelato.data.fields import NONE
from gelato.data.history import read_history
from gelato.data.rewards import replace_rewards
from gelato.data.transitions import Dataset
from gelato.errors import InputError

NAMED = "named"
# Options of every source.
_COMMON_OPTIONS = ("reward", "history")
# Words that users try, and the options that they mean.
_OTHER_WORDS = {
    "states": "observations",
    "next_states": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
    "dones": "terminals",
    "episodes": "episode",
    "delimiter": "separator",
}
# Options that are paths of files.
_PATHS = ("reward", "mapping")


@dataclass(frozen=True)
class Reference:
    """A parsed reference: the source, the name or path in it, and its options."""

    source: str
    target: str
    options: dict[str, str]

    def __str__(self) -> str:
        prefix = "" if self.source == NAMED else f"{self.source}:"
        options = [f",{name}={value}" for name, value in self.options.items()]
        return f"{prefix}{self.target}{''.join(options)}"


LoadData = Callable[[Reference], Dataset]


@dataclass(frozen=True)
class NamedSource:
    """A source of data, such as files or Minari."""

    name: str
    load: LoadData
    options: tuple[str, ...] = ()
    is_path: bool = False
    help: str = ""

    @property
    def known_options(self) -> tuple[str, ...]:
        """Its own options, and those of every source."""
        return (*self.options, *_COMMON_OPTIONS)


_SOURCES: dict[str, NamedSource] = {}


def register_source(
    name: str,
    load: LoadData,
    *,
    options: tuple[str, ...] = (),
    is_path: bool = False,
    help: str = "",
) -> None:
    """Let `load` and the command line read `name:TARGET,option=value`.

    `load` receives the parsed `Reference` and returns a `Dataset`; `make_dataset` makes one from
    arrays. Only the `options` named here are accepted. With `is_path` the target is a path: `load`
    receives the absolute path, so that a run finds its data from every working directory.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]+", name):
        raise InputError(
            f"source {name!r}: a source name starts with a letter and has at least two characters: "
            "a–z, 0–9, _ and -"
        )
    if name in _SOURCES:
        raise InputError(f"source {name!r} is already registered; choose another name")
    if not callable(load):
        raise InputError(f"source {name!r}: load must be a function of a Reference")
    wrong = [option for option in options if not re.fullmatch(r"\w+", str(option))]
    if isinstance(options, str) or wrong:
        raise InputError(f"source {name!r}: options must be a tuple of words, not {options!r}")
    _SOURCES[name] = NamedSource(name, load, tuple(options), is_path, help)


def list_sources() -> dict[str, NamedSource]:
    """Return every registered source by name."""
    return dict(_SOURCES)


def parse_reference(reference: str) -> Reference:
    """Split a reference into source, target and options."""
    prefix, colon, rest = reference.partition(":")
    known = colon and prefix in _SOURCES and prefix != NAMED
    source, target = (_SOURCES[prefix], rest) if known else (_SOURCES[NAMED], reference)
    # A path may contain commas, so options are taken from the end and must be known.
    pattern = rf"(.*),({'|'.join(source.known_options)})=([^,]*)"
    found: list[tuple[str, str]] = []
    while match := re.fullmatch(pattern, target):
        if match[2] in dict(found):
            raise InputError(f"{reference}: the option {match[2]}= is given twice")
        found.append((match[2], match[3]))
        target = match[1]
    unknown = re.fullmatch(r"(.*?),(\w+=.*)", target)
    if unknown and not (source.is_path and Path(target).expanduser().exists()):
        _refuse_option(reference, source, unknown[1], unknown[2])
    if not target:
        raise InputError(f"{reference!r} is not a reference to data. Write {describe_sources()}")
    return Reference(source.name, target, dict(reversed(found)))


def make_absolute(reference: Reference) -> Reference:
    """Make the paths of a reference absolute, so that it works in every working directory."""
    options, target = dict(reference.options), reference.target
    for name in _PATHS:
        if name in options:
            options[name] = str(Path(options[name]).expanduser().absolute())
    if _SOURCES[reference.source].is_path:
        target = str(Path(target).expanduser().absolute())
    return replace(reference, target=target, options=options)


def load_reference(reference: Reference, *, trusted: bool = True) -> Dataset:
    """Load the data with its source, and compute its rewards if the reference says how.

    Without `trusted`, the reference comes from a file that somebody else may have written: code
    that the user has not named before is not run.
    """
    source = _SOURCES[reference.source]
    reference = make_absolute(reference)
    options = dict(reference.options)
    history = options.pop("history", None)
    length = None if history is None else read_history(history, str(reference))
    reward = options.pop("reward", None)
    if reward is not None and options.get("rewards", NONE) != NONE:
        raise InputError(f"{reference}: rewards= and reward= exclude each other; choose one")
    if reward is not None and "rewards" in source.options:
        options["rewards"] = NONE
    dataset = _call_source(source, replace(reference, options=options))
    if reward is not None:
        dataset = replace_rewards(dataset, Path(reward), trusted=trusted)
    return dataset if length is None else add_history(dataset, length)


def add_history(dataset: Dataset, length: int) -> Dataset:
    """Let models and policies read the last `length` observations and actions of a dataset."""
    transitions = dataset.transitions
    longest = max(rows.stop - rows.start for rows in transitions.episode_slices)
    if length > longest:
        raise InputError(
            f"{dataset.reference}: history={length} is longer than every episode; the longest has "
            f"{longest} step{'s' * (longest > 1)}. Use a shorter history"
        )
    reference = f"{dataset.reference},history={length}"
    return replace(dataset, reference=reference, transitions=transitions.with_history(length))


def _call_source(source: NamedSource, reference: Reference) -> Dataset:
    dataset = source.load(reference)
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"source {source.name!r}: load returned {type(dataset).__name__}, not a Dataset"
        )
    return dataset


def describe_sources() -> str:
    """Return the possible forms of a reference, for error messages."""
    others = []
    for source in _SOURCES.values():
        if source.name != NAMED:
            others.append(f"{source.name}:{'PATH' if source.is_path else 'ID'}")
    return f"a dataset's name, {', '.join(others[:-1])} or {others[-1]}"


def _refuse_option(reference: str, source: NamedSource, target: str, option: str) -> NoReturn:
    """Raise an error about an unknown option, and suggest a known one."""
    if source.name == NAMED and Path(target).suffix:
        raise InputError(
            f"{reference}: no dataset has this name; for a file write file:{reference}"
        )
    known = source.known_options
    name = option.partition("=")[0]
    near = [_OTHER_WORDS[name]] if _OTHER_WORDS.get(name) in known else []
    near = near or get_close_matches(name, known, n=1, cutoff=0.8)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        subject = "a named dataset" if source.name == NAMED else f"{source.name}:"
        hint = f"{subject} takes {', '.join(source.known_options)}"
    if source.name == "d4rl":
        hint += "; file:PATH reads the same files and takes low=, high= and more"
    raise InputError(f"{reference}: unknown option {option!r}; {hint}")
