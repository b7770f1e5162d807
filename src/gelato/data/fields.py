"""Choose which columns of a file become which field of the transitions."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from gelato.errors import InputError

# The usual names of each field, most common first.
FIELD_NAMES = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "next_observations": (
        "next_observations",
        "next_observation",
        "next_obs",
        "new_obs",
        "obs_next",
        "next_states",
        "next_state",
    ),
    "terminals": (
        "terminals",
        "terminations",
        "terminated",
        "terminateds",
        "terminal",
        "is_terminal",
        "dones",
        "done",
    ),
    "timeouts": (
        "timeouts",
        "truncations",
        "truncated",
        "truncateds",
        "episode_terminals",
        "is_last",
    ),
    "action_probabilities": ("action_probabilities", "action_probability", "action_prob"),
    "episode": ("episode_id", "episode_index", "eps_id", "episode", "traj_id", "trajectory_id"),
    "time": ("time", "timestamp", "timestamps"),
    "splits": ("indices",),
}
REQUIRED = ("observations", "actions", "rewards")
# A column of text with a usual name of these fields is an error, or the name of an episode.
_MAY_BE_TEXT = (*REQUIRED, "episode")
# A field that is set to this has no column, whatever names the file has.
NONE = "none"
# Largest number of a file's columns that an error lists.
_MOST_NAMED = 20


class MissingRewardsError(InputError):
    """The file has no rewards, and nothing says how to compute them."""


def choose_columns(
    available: Sequence[str],
    given: Mapping[str, str],
    source: str,
    *,
    texts: Collection[str] = (),
) -> dict[str, list[str]]:
    """Return the columns of every field: those that the user names, else those with usual names.

    A column that the user names for one field is not found automatically for another one. A column
    of text is found automatically only for fields that need one.
    """
    chosen = {}
    for field, pattern in given.items():
        chosen[field] = [] if pattern == NONE else match_columns(pattern, available, field, source)
    _refuse_shared_flags(chosen, source)
    named = {name for names in chosen.values() for name in names}
    free = [name for name in available if name not in named]
    for field, usual in FIELD_NAMES.items():
        if field not in chosen:
            fit = [name for name in free if field in _MAY_BE_TEXT or name not in texts]
            chosen[field] = _find_usual(usual, fit)
        if field in REQUIRED and not chosen[field] and given.get(field) != NONE:
            _report_missing(field, available, source)
    for field in ("observations", "actions"):
        if not chosen[field]:
            raise InputError(
                f"{source}: {field} is required, so it cannot be {NONE}; name its columns"
            )
    return {field: chosen[field] for field in FIELD_NAMES if chosen[field]}


def match_columns(pattern: str, available: Sequence[str], field: str, source: str) -> list[str]:
    """Return the columns of a pattern such as `x*|speed`, in the order of the alternatives.

    An alternative is a name, a name with wildcards, or the name of a group of columns.
    """
    found: list[str] = []
    alternatives = [pattern] if pattern in available else pattern.split("|")
    for alternative in alternatives:
        names = _match_one(alternative, available)
        if not names:
            near = _suggest(alternative, available)
            raise InputError(
                f"{source}: {field}={pattern}: no column {alternative!r}{near}; the file has "
                f"{list_names(available)}"
            )
        found += [name for name in names if name not in found]
    return found


def list_names(names: Iterable[str]) -> str:
    """Return the first names, for an error message."""
    shown = list(names)
    if not shown:
        return "no columns"
    return ", ".join([*shown[:_MOST_NAMED], "…"] if len(shown) > _MOST_NAMED else shown)


def _match_one(name: str, available: Sequence[str]) -> list[str]:
    if name in available:
        return [name]
    inside = _list_group(name, available)
    return inside or [each for each in available if fnmatchcase(each, name)]


def _list_group(name: str, available: Sequence[str]) -> list[str]:
    """Return the columns inside a group, a struct or a dictionary of this name."""
    return [each for each in available if each.startswith((f"{name}/", f"{name}."))]


def _find_usual(usual: Sequence[str], available: Sequence[str]) -> list[str]:
    """Return the columns with a usual name: one column, a group, or numbered columns."""
    for name in usual:
        if name in available:
            return [name]
    for name in usual:
        inside = _list_group(name, available)
        if inside:
            return inside
        numbered = []
        for each in available:
            found = re.fullmatch(re.escape(name) + r"[_.\[]?(\d{1,18})\]?", each)
            if found:
                numbered.append((int(found[1]), each))
        if numbered:
            return [each for _, each in sorted(numbered)]
    return []


def _suggest(name: str, available: Sequence[str]) -> str:
    groups = {each.rpartition(separator)[0] for each in available for separator in "/."} - {""}
    available = [*available, *sorted(groups)]
    near = get_close_matches(name, available, n=1, cutoff=0.5)
    if not near:
        lower = {each.lower(): each for each in available}
        near = [lower[each] for each in get_close_matches(name.lower(), lower, n=1, cutoff=0.5)]
    return f"; did you mean {near[0]}?" if near else ""


def _refuse_shared_flags(chosen: Mapping[str, list[str]], source: str) -> None:
    """A flag that ends the task cannot also be a time limit."""
    shared = set(chosen.get("terminals", [])) & set(chosen.get("timeouts", []))
    if shared:
        raise InputError(
            f"{source}: {shared.pop()} is named for both terminals and timeouts; choose timeouts "
            "if the recording stopped, terminals if the task was over"
        )


def _report_missing(field: str, available: Sequence[str], source: str) -> None:
    names = " or ".join(FIELD_NAMES[field])
    message = f"{source}: no field {names}; the file has {list_names(available)}. "
    if field == "rewards":
        raise MissingRewardsError(
            f"{message}Name the field with ,rewards=NAME after the path, compute rewards with "
            ",reward=my_reward.py, or add ,rewards=none"
        )
    raise InputError(f"{message}Name the field with ,{field}=NAME after the path")
