"""Compute rewards with the user's own function, which must be in a Python file."""

import hashlib
import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float

from gelato.data.transitions import Dataset, Transitions
from gelato.errors import InputError, UserCodeError, first_line

_LARGEST = 2**20


def replace_rewards(dataset: Dataset, path: Path, *, trusted: bool = True) -> Dataset:
    """Return the dataset with the rewards of the function `reward(states, actions, next_states)`.

    The function takes arrays with one row per step. Its source text is part of the fingerprint.
    Code is only run if the user named the file, now or in an earlier command. Without `trusted`,
    the name comes from a file, such as that of a run, which somebody else may have written.
    """
    try:
        if path.exists() and not path.is_file():  # Reading a pipe or a device may never end.
            raise InputError(f"reward={path} is not a plain file")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"reward={path} is too large for a Python file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"reward={path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"reward={path} is not a Python file") from error
    if trusted:
        _remember(text)
    elif not _is_remembered(text):
        reference = shlex.quote(f"{dataset.reference},reward={path}")
        raise InputError(
            f"reward={path} is code that you have not run before. If you trust it, run once: "
            f"gelato data info {reference}"
        )
    rewards = _compute(dataset.transitions, text, path)
    transitions = replace(dataset.transitions, rewards=rewards, reward_code=text)
    reference = f"{dataset.reference},reward={path}"
    return replace(dataset, reference=reference, transitions=transitions)


def _compute(transitions: Transitions, text: str, path: Path) -> Float[np.ndarray, " n"]:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise UserCodeError(f"reward={path} cannot be run ({first_line(error)})") from error
    function = getattr(module, "reward", None)
    if not callable(function):
        raise InputError(
            f"reward={path} has no function reward(states, actions, next_states); define it"
        )
    # Copies: the function may write into its arguments.
    arguments = map(np.array, (transitions.states, transitions.actions, transitions.next_states))
    try:
        returned = function(*arguments)
        rewards = np.asarray(returned, np.float64)
    except Exception as error:
        raise UserCodeError(
            f"reward={path}: the function reward raised {type(error).__name__}: {first_line(error)}"
        ) from error
    rows = len(transitions)
    if rewards.shape not in ((rows,), (rows, 1)):
        raise InputError(
            f"reward={path}: reward returned shape {rewards.shape}; it must be ({rows},), one "
            "number per step"
        )
    rewards = rewards.reshape(rows).astype(np.float32)
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise InputError(f"reward={path}: reward returned {rewards[row]} for row {row}")
    return rewards


def _locate_remembered_codes() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "gelato" / "reward_functions"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _is_remembered(text: str) -> bool:
    try:
        return _digest(text) in _locate_remembered_codes().read_text().split()
    except OSError:
        return False


def _remember(text: str) -> None:
    """Note that the user named this code; a home that cannot be written is no error."""
    if _is_remembered(text):
        return
    with suppress(OSError):
        path = _locate_remembered_codes()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(_digest(text) + "\n")
